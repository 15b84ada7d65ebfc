"""The graph that autograd makes of a loss."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn


def parameters_behind(loss: torch.Tensor) -> Iterator[nn.Parameter]:
    """The parameters to which the backward pass of a loss leads."""
    waiting: list[Any] = [loss.grad_fn]
    seen: set[Any] = set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        found = getattr(node, "variable", None)  # only the nodes that collect gradients have one
        if isinstance(found, nn.Parameter):
            yield found
        waiting.extend(before for before, _ in node.next_functions)
