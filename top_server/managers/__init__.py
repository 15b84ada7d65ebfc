"""Group managers as the top server sees them: processes that it starts, asks and replaces."""
