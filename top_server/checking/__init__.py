"""Answers nodes that are checked before the first round, and join no run by that."""
