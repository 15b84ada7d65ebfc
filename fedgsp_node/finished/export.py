"""Puts a whole model of a run into a file, or into a folder that transformers reads."""

import contextlib
from pathlib import Path

import safetensors.torch
import torch

from fedgsp.errors import ConfigError, not_written, reason_of
from fedgsp.files import sync
from fedgsp.messages import Constant, TensorSpec
from fedgsp.task import Task
from fedgsp_node.finished.pretrained import write_folder
from fedgsp_node.finished.record import ModelFile, RunRecord
from fedgsp_node.finished.tensors import Arrays, Tell, check_constants, tensors_of
from fedgsp_node.hosted_data import hosted_ids
from fedgsp_node.kept.personal_state import PersonalState
from fedgsp_node.model.arrays import same_values
from fedgsp_node.model.making import model_of
from fedgsp_node.model.named_state import saved_of, state_of
from fedgsp_node.model.torch_weights import as_tensor, constants, digest, dtype_name, tensor_specs
from fedgsp_node.users_code import guarded

SUFFIX = ".safetensors"


def check_out(out: Path) -> None:
    """Raises ConfigError if `out` exists already, unless it is a folder, or cannot be made: no file is replaced."""
    is_file_name = out.suffix == SUFFIX
    try:
        exists, is_folder = out.exists() or out.is_symlink(), out.is_dir()
        in_the_way = [str(path) for path in out.parents if path.exists() and not path.is_dir()]
    except (OSError, ValueError) as error:  # ValueError: a NUL byte
        raise ConfigError(f"--out {out} cannot be used: {reason_of(error)}", "give another path") from None
    ConfigError.refuse(
        [
            (in_the_way, f"--out {out}: {', '.join(in_the_way)} is a file and no folder", "give another path"),
            (
                exists and not is_folder and not is_file_name,
                f"--out {out} is a file already, and its name does not end in {SUFFIX}",
                f"give a new name that ends in {SUFFIX}, or a folder for a model of transformers",
            ),
            (exists and not is_folder, f"--out {out} exists already", "give another name, or remove that file"),
            (
                is_folder and is_file_name,
                f"--out {out} is a folder, and a name that ends in {SUFFIX} is that of a file",
                "give another name",
            ),
        ]
    )


def export(
    run: RunRecord,
    task: Task,
    file: ModelFile,
    out: Path,
    *,
    client: int | None,
    personal: PersonalState | None,
    merge_adapters: bool,
    tell: Tell,
) -> None:
    """Writes a model of the run with all its tensors: to a file if `out` ends in .safetensors, otherwise to a folder.

    `client` and `personal` say whose head or personal model is put in. Raises UserError.
    """
    if client is not None:
        hosted_ids(task, (client,), "--client")
    module = guarded(lambda: model_of(task, run.constants_seed), "model()")
    named = tuple(task.constant)
    stays = constants(module, named)
    check_constants(
        run,
        [
            Constant(TensorSpec(name, dtype_name(tensor), tuple(tensor.shape)), digest(tensor))
            for name, tensor in stays.items()
        ],
        tell,
    )
    arrays = tensors_of(run, file, tensor_specs(module, tuple(task.head), named), client, personal, tell, "--client")
    added = _load(module, arrays)
    if out.suffix == SUFFIX:
        _write(out, {**_contents(module), **{name: as_tensor(arrays[name]) for name in added}}, run, file)
        return
    if added:
        raise ConfigError(
            f"the run's training added tensors to the model: {', '.join(added)}", "give --out FILE.safetensors"
        )
    if outside := write_folder(module, out, merge_adapters):
        tell(
            f"these tensors are outside the model of transformers, and not in {out}: {', '.join(outside)};"
            f" --out FILE{SUFFIX} has them"
        )


def _load(module: torch.nn.Module, arrays: Arrays) -> list[str]:
    """Gives a module these values; returns the names that the module does not have."""
    found = state_of(module)
    for name, array in arrays.items():
        if name in found:
            found[name].data = as_tensor(array)
    return [name for name in arrays if name not in found]


def _contents(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """What `load_state_dict()` takes: `state_dict()`, and what it leaves out. The values of the module may be lost.

    If `state_dict()` leaves out a tensor and gives its name to another one, all have their names in the module.
    """
    state, saved = state_of(module), saved_of(module)
    left_out = {name: tensor.detach().clone() for name, tensor in state.items() if name not in saved}
    if not left_out:
        return saved
    if any(not same_values(saved[name], tensor) for name, tensor in state.items() if name in saved):
        return state
    # It may have given copies of them other names: then loading these sets them.
    copies = {name: tensor.detach().clone() for name, tensor in saved.items()}
    others = {name: _others(tensor) for name, tensor in left_out.items()}
    for name, values in others.items():
        state[name].data = values.clone()
    with contextlib.suppress(Exception):  # some are missing
        module.load_state_dict(copies)
    loaded = state_of(module)
    return copies | {name: tensor for name, tensor in left_out.items() if same_values(loaded[name], others[name])}


def _others(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor with other values."""
    floats = tensor.is_floating_point() or tensor.is_complex()
    return torch.full_like(tensor, float("nan")) if floats else ~tensor


def _write(out: Path, tensors: dict[str, torch.Tensor], run: RunRecord, file: ModelFile) -> None:
    said = {"run": run.run_id, "scheme": run.config.scheme, "round": str(file.round), "seed": str(run.config.seed)}
    said["clients"] = ",".join(map(str, file.clients))
    # Copies: tensors that share memory, such as tied layers, are written under each of their names.
    copies = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in tensors.items()}
    aside = out.with_name(f".{out.name}.tmp")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        aside.unlink(missing_ok=True)  # a link of that name would be followed
        safetensors.torch.save_file(copies, aside, {"format": "pt", **said})
        sync(aside)
        aside.replace(out)
    except (OSError, safetensors.SafetensorError) as error:
        with contextlib.suppress(OSError):
            aside.unlink()
        raise not_written(out, error) from error
