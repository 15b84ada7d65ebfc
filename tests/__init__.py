"""Tests of all packages. Processes play beside each other, so each of them computes in one thread."""

import os

# Set here because it must be set before torch is imported. Pytest has several workers, and each starts processes.
# Together they keep all processors busy, so more threads in one process would only slow down the others.
os.environ.setdefault("OMP_NUM_THREADS", "1")
