"""Groupings over the wire: a client that asks a grouping service, and our own service."""
