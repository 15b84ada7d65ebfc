"""A share of each update."""

from __future__ import annotations

from fedgsp.updates import trainable
from fedgsp.weights import Weights
from fedgsp_node.outgoing.base import Outgoing

from .declared import ShortenedOptions


def shorten(outgoing: Outgoing, options: ShortenedOptions) -> Weights:
    """The start, and to it a share of the update."""
    assert outgoing.start is not None
    result = outgoing.model.to_change()
    for spec in trainable(result.tensors):
        start = outgoing.start.arrays[spec.name]
        result.arrays[spec.name][...] = start + options.share * (result.arrays[spec.name] - start)
    return result
