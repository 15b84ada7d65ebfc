"""Values as models take and return them: a tensor, or tuples, lists and dicts of such values."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch.nn.utils.rnn import PackedSequence


def mapped(change: Callable[[Any], Any], value: Any) -> Any:
    """The same structure, with a function applied to everything that is no tuple, list or mapping."""
    if isinstance(value, PackedSequence):  # its sizes stay on the CPU, and without an order it has None
        order = [part if part is None else change(part) for part in value[2:]]
        return PackedSequence(change(value.data), value.batch_sizes, *order)
    if isinstance(value, Mapping):
        return {name: mapped(change, part) for name, part in value.items()}
    if isinstance(value, tuple | list):
        parts = [mapped(change, part) for part in value]
        # a named tuple takes its fields as separate arguments
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    return change(value)


def leaves(value: Any) -> Iterator[Any]:
    """Everything in a structure that is no tuple, list or mapping."""
    if isinstance(value, PackedSequence):
        yield from (part for part in value if part is not None)
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from leaves(part)
    elif isinstance(value, tuple | list):
        for part in value:
            yield from leaves(part)
    else:
        yield value
