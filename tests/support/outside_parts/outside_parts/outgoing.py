"""A share of each update."""

from __future__ import annotations

import numpy as np

from fedgsp.tensors.updates import trainable
from fedgsp.tensors.weights import Weights
from fedgsp_node.outgoing.base import Outgoing

from .declared import ShortenedOptions


def shorten(outgoing: Outgoing, options: ShortenedOptions) -> Weights:
    """The start, and to it a share of the update."""
    assert outgoing.start is not None
    result = outgoing.model.to_change()
    for spec in trainable(result.tensors):
        start = outgoing.start.arrays[spec.name].astype(np.float64)
        after = result.arrays[spec.name].astype(np.float64)
        result.arrays[spec.name][...] = start + options.share * (after - start)
    return result
