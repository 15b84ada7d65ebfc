"""What clients reveal of their updates, and the inner products taken from it."""
