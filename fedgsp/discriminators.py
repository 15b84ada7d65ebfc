"""What processes agree on about client discriminators: what their weights look like, and how large (FedCollab)."""

from __future__ import annotations

from fedgsp.messages import TensorSpec

#: Hidden units.
HIDDEN = 200
#: The most features of a sample; a task with more gives its discriminators an encoder.
MOST_FEATURES = 1 << 14


#: Larger weights are refused: an average with them would make those of an honest client overflow.
LARGEST = 1e6


def tensors(networks: int, outputs: int, features: int, labels: int, hidden: int = HIDDEN) -> tuple[TensorSpec, ...]:
    """What a stack of networks looks like."""
    shapes = {
        "features.weight": (networks, hidden, features),
        "features.bias": (networks, hidden),
        "labels.weight": (networks, hidden, labels),
        "labels.bias": (networks, hidden),
        "output.weight": (networks, outputs, hidden),
        "output.bias": (networks, outputs),
    }
    return tuple(TensorSpec(name, "float32", shape) for name, shape in shapes.items())


def most_bytes(networks: int, outputs: int, labels: int) -> int:
    """Of so many networks in float32, with as many features as there may be."""
    floats = networks * (HIDDEN * (MOST_FEATURES + labels + 2 + outputs) + outputs)
    return 4 * floats + 64  # tensors are padded
