"""The state of a model: the tensors that training may change, by the names under which they travel."""

import itertools
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence

import torch


def state_of(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Parameters (a shared one only once), then persistent buffers with a value, by name.

    The names are those of `state_dict()`, so that `load_state_dict()` takes them: a wrapper (`checkpoint_wrapper`) may
    leave out its own name there. A tensor that `state_dict()` leaves out or copies has its name in the module. If two
    tensors had one name then, all have their names in the module.

    A buffer belongs to the state unless its layer leaves it out of its own `state_dict()`; what the layers around it
    leave out does not count.
    """
    return _state_by(module, _names_of(_as_saved(module), saved_of(module)))


def _state_by(module: torch.nn.Module, names: Mapping[int, Sequence[str]]) -> dict[str, torch.Tensor]:
    """As `state_of`; `names` are those in `state_dict()`, by the `id()` of each tensor."""
    own: dict[str, torch.Tensor] = dict(module.named_parameters())
    own |= {name: one for name, layer, one in _registered(module) if id(one) in names or _saves(layer, name, one)}
    found = {}
    for name, tensor in own.items():
        saved = names.get(id(tensor), (name,))
        found[name if name in saved else saved[0]] = tensor
    return found if len(found) == len(own) else own


def every_name(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """All names of these tensors: in the module, and in `state_dict()`; a shared tensor has several there."""
    names = _names_of(_as_saved(module), saved_of(module))
    state = _state_by(module, names)
    known = {id(tensor): tensor for tensor in state.values()}
    named = itertools.chain(
        module.named_parameters(remove_duplicate=False), module.named_buffers(remove_duplicate=False)
    )
    in_module = {name: tensor for name, tensor in named if id(tensor) in known}
    return {name: one for number, one in known.items() for name in names.get(number, ())} | in_module | state


def saved_of(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The tensors of `state_dict()`, by name: those of the module itself, unless it ignores `keep_vars`."""
    saved = module.state_dict(keep_vars=True)
    return {name: value for name, value in saved.items() if isinstance(value, torch.Tensor)}


def _registered(module: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module, torch.Tensor]]:
    """Buffers with a value that are registered as persistent, a shared one only once: name, layer and buffer."""
    seen = set()
    for path, layer in module.named_modules():
        for name, buffer in layer._buffers.items():
            if buffer is not None and name not in layer._non_persistent_buffers_set and id(buffer) not in seen:
                seen.add(id(buffer))
                yield f"{path}.{name}" if path else name, layer, buffer


def _as_saved(module: torch.nn.Module) -> Iterator[torch.Tensor]:
    """Parameters and persistent buffers, as often as a module has them, in the order of a usual `state_dict()`."""
    for _, layer in module.named_modules(remove_duplicate=False):
        buffers = (one for name, one in layer._buffers.items() if name not in layer._non_persistent_buffers_set)
        yield from (one for one in itertools.chain(layer._parameters.values(), buffers) if one is not None)


def _saves(layer: torch.nn.Module, full: str, buffer: torch.Tensor) -> bool:
    """Whether the `state_dict()` of a layer has its buffer, or a copy of it, whose full name this is."""
    name, saved = full.rpartition(".")[2], saved_of(layer)
    return name in saved or bool(_names_of([buffer], saved))


def _names_of(own: Iterable[torch.Tensor], saved: Mapping[str, torch.Tensor]) -> Mapping[int, Sequence[str]]:
    """The names in `state_dict()` of each of these tensors that it has, by the `id()` of the tensor.

    A `state_dict()` that ignores `keep_vars` returns other tensors in the same memory.
    """
    tensors = list(own)
    known = set(map(id, tensors))
    places: dict[Hashable, list[int]] = defaultdict(list)
    if any(id(tensor) not in known for tensor in saved.values()):
        for tensor in tensors:
            places[_place(tensor)].append(id(tensor))
    found: dict[int, list[str]] = defaultdict(list)
    for name, tensor in saved.items():
        if id(tensor) in known:
            found[id(tensor)].append(name)
        elif there := places.get(_place(tensor)):
            found[there[0]].append(name)
            if len(there) > 1:  # tied or empty tensors, or equal views of a constant: their order is the same here
                there.pop(0)
    return found


def _place(tensor: torch.Tensor) -> Hashable:
    if tensor.layout != torch.strided or tensor.is_nested:
        return id(tensor)
    return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype
