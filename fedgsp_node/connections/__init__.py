"""The connections of a node: who it is, whom it dials, and the managers that it serves."""
