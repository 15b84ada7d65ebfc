"""Sizes and limits of client discriminators, the networks that tell clients' data apart (FedCollab)."""

from __future__ import annotations

#: Number of hidden units.
HIDDEN = 200
#: Largest number of features of a sample. A task with more features must define an encoder (`Task.features`).
MOST_FEATURES = 1 << 14
#: Larger weights are refused, because an average with them could overflow.
LARGEST = 1e6
#: The distance of two clients if no discriminator could be trained: the largest, so that they are not grouped.
UNKNOWN = 1.0
#: Largest size of all networks in one process, in bytes.
MOST_BYTES = 8 * 1024**3


def most_bytes(networks: int, outputs: int, labels: int) -> int:
    """Largest size in bytes of float32 networks with `outputs` outputs each, for data with `labels` classes."""
    floats = networks * (HIDDEN * (MOST_FEATURES + labels + 2 + outputs) + outputs)
    return 4 * floats + 64  # tensors are padded
