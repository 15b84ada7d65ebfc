"""What stays with a client between two trainings, and what a training leaves."""
