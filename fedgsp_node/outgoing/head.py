"""The classifier head stays with the client."""

from typing import Any

from fedgsp.tensors.weights import Weights, without_head
from fedgsp_node.outgoing.base import Outgoing


def take(outgoing: Outgoing, _: Any) -> Weights:
    """The model without its head."""
    return outgoing.model.part(without_head(outgoing.model.tensors))
