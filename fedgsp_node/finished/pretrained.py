"""Folders that `from_pretrained` of transformers reads, and adapters of peft; both packages are optional."""

from pathlib import Path
from typing import Any

import torch

from fedgsp.errors import ConfigError, not_written

_REMEDY = "give --out FILE.safetensors: it gets all tensors"


def write_folder(module: torch.nn.Module, folder: Path, merge_adapters: bool) -> list[str]:
    """Writes the model of transformers that `module` is, or has inside; returns the tensors outside of it.

    A PeftModel gives a folder with its adapter, or with `merge_adapters` the whole model. Adapters that were injected
    into a model are always merged. Raises ConfigError if there is no such model, or more than one.
    """
    place, model = _found(module)
    outside = [name for name in module.state_dict() if place and not name.startswith(f"{place}.")]
    if hasattr(model, "merge_and_unload"):
        model = model.merge_and_unload() if merge_adapters else model
    else:
        _merge_injected(model)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise ConfigError(f"--out {folder} is not empty", "give another folder")
        model.save_pretrained(folder)
    except OSError as error:
        raise not_written(folder, error) from error
    return outside


def _found(module: torch.nn.Module) -> tuple[str, Any]:
    """The outermost models with `save_pretrained`, of which there must be one, and its place in the module."""
    found: dict[str, torch.nn.Module] = {}
    for name, one in module.named_modules():
        if hasattr(one, "save_pretrained") and not any(not at or name.startswith(f"{at}.") for at in found):
            found[name] = one
    if not found:
        raise ConfigError("the task's model is no model of transformers or peft, and has none inside", _REMEDY)
    if len(found) > 1:
        raise ConfigError(f"the task's model has several models of transformers: {', '.join(found)}", _REMEDY)
    return next(iter(found.items()))


def _merge_injected(model: Any) -> None:
    """Replaces each layer that peft has injected by the layer inside, with the adapter merged into it."""
    try:
        from peft.tuners.tuners_utils import BaseTunerLayer
    except ImportError:
        return
    injected = {name: one for name, one in model.named_modules() if isinstance(one, BaseTunerLayer)}
    for name, layer in injected.items():
        layer.merge()
        parent, _, last = name.rpartition(".")
        setattr(model.get_submodule(parent), last, layer.get_base_layer())
    if injected and hasattr(model, "_hf_peft_config_loaded"):
        model._hf_peft_config_loaded = False
