"""Refuses models whose tensors cannot travel, or would not follow the training of a client."""

import itertools

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from fedgsp.messages import TensorSpec
from fedgsp.names import TEXT_RULE, is_text
from fedgsp.require import require
from fedgsp_node.devices import CPU
from fedgsp_node.model.named_state import state_of
from fedgsp_node.model.shared_memory import check_memory
from fedgsp_node.model.torch_weights import values_of
from fedgsp_node.users_code import guarded


def check_model(module: nn.Module) -> None:
    """Raises TaskError if a layer is compiled by torch.jit or has an extra state, or if a tensor cannot be sent.

    Every tensor must have a shape and a name that can be shown, and be dense and on the CPU.
    Parameters must not share memory with other tensors, see `check_memory`.
    """
    require(
        isinstance(module, nn.Module),
        f"the task's model() returned {type(module).__name__}",
        "return a torch.nn.Module",
    )
    for path, layer in module.named_modules():
        described = f"the model's layer {path!r} ({type(layer).__name__})"
        require(
            not isinstance(layer, torch.jit.ScriptModule),
            f"{described} is compiled by torch.jit, and the tensors of such a layer cannot be replaced",
            "return the nn.Module itself, without torch.jit.script and torch.jit.trace",
        )
        require(
            type(layer).get_extra_state is nn.Module.get_extra_state,
            f"{described} has an extra state, which cannot be sent",
            "keep it in a buffer",
        )
        require(
            not any(map(is_lazy, itertools.chain(layer.parameters(recurse=False), layer.buffers(recurse=False)))),
            f"{described} has no shape yet",
            "run one batch through the model in model(), or give the layer its sizes",
        )
    state = guarded(lambda: state_of(module), "model().state_dict()")
    for name, tensor in itertools.chain(state.items(), module.named_parameters(), module.named_buffers()):
        require(
            is_text(name),
            f"the model's tensor {name!r} has a name that cannot be sent",
            f"rename its layer: the whole name has to be {TEXT_RULE}",
        )
        _check_tensor(f"the model's tensor {name!r}", tensor)
    check_memory(module)


def values_anew(
    made: nn.Module, module: nn.Module, tensors: tuple[TensorSpec, ...], device: torch.device
) -> dict[str, torch.Tensor]:
    """The values of `made` on a device, by name. TaskError if it has tensors of `module`, made by an earlier model().

    The module's tensors have the values of one client after the other, and none in between.
    """
    own = {spec.name for spec in tensors}
    earlier = {id(tensor) for tensor in itertools.chain(module.parameters(), module.buffers())}
    for name, tensor in state_of(made).items():
        require(
            name not in own or id(tensor) not in earlier,
            f"the task's model() returned the same tensor {name!r} twice, and each call has to make it anew",
            "make the layers in model() itself, or return copy.deepcopy() of those that the task keeps",
        )
    return values_of(made, tensors, device)


def check_values(module: nn.Module, tensors: tuple[TensorSpec, ...]) -> None:
    """Raises TaskError if one of these tensors holds values that no model may have when it travels."""
    for name, found in values_of(module, tensors, CPU).items():
        extremes = torch.stack(torch.aminmax(found)) if found.is_floating_point() and found.numel() else torch.zeros(1)
        require(  # NaN is an extreme, too; a mask of all values would take a quarter of a large model's memory
            bool(torch.isfinite(extremes).all()),
            f"the model's tensor {name!r} holds NaN or infinite values",
            "initialise it in model(); a mask with infinite values that never changes belongs into a buffer with"
            " persistent=False",
        )


def _check_tensor(named: str, tensor: torch.Tensor) -> None:
    require(
        not tensor.is_meta,
        f"{named} is on device meta and has no values",
        "build the model without device='meta', or call model.to_empty(device='cpu') and initialise its weights",
    )
    require(
        tensor.device.type == "cpu",
        f"{named} is on device {tensor.device}",
        "return the model on the CPU (model.cpu()), and leave its place to --device",
    )
    layout = "nested" if tensor.is_nested else str(tensor.layout).removeprefix("torch.").lstrip("_")
    require(
        layout == "strided",
        f"{named} has the layout {layout}",
        "store it as a dense tensor (to_dense(), or to_padded_tensor() for a nested one)",
    )
