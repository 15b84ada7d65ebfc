"""One group's part of a round: its task, its run on a manager, and what its members report."""
