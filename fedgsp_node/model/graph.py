"""The graph that autograd makes of a loss."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from fedgsp_node.model.nested import leaves

#: Where layers have what torch finds.
_REGISTERED = ("_modules", "_parameters")


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


def unregistered(module: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """The parameters in lists, tuples and dicts that are attributes of layers, each with the name of the attribute.

    If they stand nowhere else, torch does not find them there.
    """
    for path, layer in module.named_modules():
        for name, value in vars(layer).items():
            for part in leaves(value if name not in _REGISTERED else ()):
                found = part.parameters() if isinstance(part, nn.Module) else [part]
                full = f"{path}.{name}" if path else name
                yield from ((full, one) for one in found if isinstance(one, nn.Parameter))
