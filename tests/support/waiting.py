"""A program that a template forks: it tells its arguments and a random number, and lives until its lifeline ends."""

import sys

import numpy as np

if __name__ == "__main__":
    sys.stdout.write(f"{sys.argv[1:]}\n{np.random.rand()}\n")
    sys.stdout.flush()
    sys.stdin.read()
