"""Tests of all packages. Processes play beside each other, so each of them computes in one thread."""

import os

# Before torch is imported. Several workers of pytest, each with processes of its own, have more work than processors,
# and threads that wait for each other would only take time from others.
os.environ.setdefault("OMP_NUM_THREADS", "1")
