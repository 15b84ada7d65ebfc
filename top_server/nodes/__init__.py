"""Nodes as the top server sees them: who joins, who is refused, and those that it starts itself."""
