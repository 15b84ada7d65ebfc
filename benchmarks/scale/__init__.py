"""How the time of a round follows the number of machines: see `__main__`."""
