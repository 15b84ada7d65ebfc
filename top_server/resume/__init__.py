"""A run that goes on after its top server ended: its saved state, and how it is found."""
