"""Processes: how they start, fork, end, and know whether they were awake."""
