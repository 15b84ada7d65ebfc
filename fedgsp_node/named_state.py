"""The state of a model: the tensors that training may change, by the names under which they travel."""

import itertools
from collections.abc import Iterator

import torch


def state_of(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Parameters (a shared one only once), then persistent buffers with a value, by name."""
    return dict(named_state(module))


def named_state(module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """The same tensors one by one.

    The names are those of `state_dict()`, so that `load_state_dict()` takes them: a wrapper (`checkpoint_wrapper`) may
    leave out its own name there. A tensor that `state_dict()` leaves out or copies has its name in the module.
    """
    saved = module.state_dict(keep_vars=True)
    first = {id(tensor): name for name, tensor in reversed(saved.items())}
    for name, tensor in itertools.chain(module.named_parameters(), _persistent(module)):
        yield name if saved.get(name) is tensor else first.get(id(tensor), name), tensor


def every_name(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """All names of these tensors: in the module, and in `state_dict()`; a shared tensor has several there."""
    state = state_of(module)
    named = itertools.chain(
        module.named_parameters(remove_duplicate=False),
        module.named_buffers(remove_duplicate=False),
        module.state_dict(keep_vars=True).items(),
    )
    known = {id(tensor) for tensor in state.values()}
    return {name: tensor for name, tensor in named if id(tensor) in known} | state


def _persistent(module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Persistent buffers with a value, a shared one only once, by their names in the module."""
    seen = set()
    for path, layer in module.named_modules():
        for name, buffer in layer._buffers.items():
            if buffer is not None and is_persistent(layer, name) and id(buffer) not in seen:
                seen.add(id(buffer))
                yield f"{path}.{name}" if path else name, buffer


def is_persistent(layer: torch.nn.Module, name: str) -> bool:
    """Whether a buffer of a layer belongs to the state. A model's own `state_dict()` may leave it out nevertheless."""
    return name not in layer._non_persistent_buffers_set
