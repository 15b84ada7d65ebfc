"""The form of a model's state: which tensors it has, with their shapes and dtypes. A training must not change it."""

import contextlib
from collections.abc import Iterator

import torch

from fedgsp.errors import TaskError
from fedgsp.require import require
from fedgsp_node.model.named_state import state_of


@contextlib.contextmanager
def form_kept(module: torch.nn.Module) -> Iterator[None]:
    """A context at whose end the state of a module must have the form that it had before; raises TaskError if not.

    A tensor may have a dtype whose values all fit into the first one, as bfloat16 does into float32: with autocast, a
    layer may give such a buffer a value.
    """
    before = {name: (tensor.shape, tensor.dtype) for name, tensor in state_of(module).items()}
    yield
    after = state_of(module)
    for name in sorted(after.keys() - before.keys()):
        require(
            not isinstance(after[name], torch.nn.Parameter),
            f"the model made a new parameter {name!r}",
            "make all of its layers in model()",
        )
        raise TaskError(
            f"the model gave its buffer {name!r}, which had none, a value",
            "register it with a value, or with persistent=False if it need not travel",
        )
    for name, (shape, dtype) in before.items():
        require(name in after, f"the model removed its tensor {name!r}", "let it keep the tensor")
        tensor = after[name]
        require(
            tensor.shape == shape,
            f"the model changed the shape of its tensor {name!r} from {tuple(shape)} to {tuple(tensor.shape)}",
            "make it in model() with the shape that it keeps",
        )
        require(
            torch.promote_types(tensor.dtype, dtype) == dtype,
            f"the model changed the dtype of its tensor {name!r} from {_named(dtype)} to {_named(tensor.dtype)}",
            f"make it in model() with the dtype torch.{_named(torch.promote_types(tensor.dtype, dtype))}",
        )


def _named(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
