"""How a node gets its certificate from a top server, keeps it in a folder, and renews it."""
