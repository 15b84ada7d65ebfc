"""What processes agree on about client discriminators: how large they are (FedCollab)."""

from __future__ import annotations

#: Hidden units.
HIDDEN = 200
#: The most features of a sample; a task with more gives its discriminators an encoder.
MOST_FEATURES = 1 << 14
#: Larger weights are refused: an average with them would make those of an honest client overflow.
LARGEST = 1e6
#: The distance of clients whose discriminator could not be trained: nobody joins by mistake.
UNKNOWN = 1.0
#: Networks that may be in a process at once.
MOST_BYTES = 8 * 1024**3


def most_bytes(networks: int, outputs: int, labels: int) -> int:
    """Of so many networks in float32, with as many features as there may be."""
    floats = networks * (HIDDEN * (MOST_FEATURES + labels + 2 + outputs) + outputs)
    return 4 * floats + 64  # tensors are padded
