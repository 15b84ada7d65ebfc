"""Settings of the three programs and options of parts: each described once, as a field of a dataclass."""
