"""The device on which a node trains and evaluates: a value that says where tensors go."""

import contextlib
import os
import re
from typing import TypeVar

import torch

from fedgsp.errors import ConfigError
from fedgsp_node import determinism
from fedgsp_node.model.nested import mapped

T = TypeVar("T")

CPU = torch.device("cpu")
_GIB = 2**30
_FULL = re.compile(r"can't allocate memory|out of memory|not enough memory", re.IGNORECASE)


def device_of(text: str) -> torch.device:
    """The device that `--device` names; raises ConfigError if this machine does not have it.

    `auto` is the first GPU, or the CPU if there is none. `auto:K` is the K-th GPU, counted in turn: so several nodes
    of one machine share its GPUs.
    """
    kind, _, index = text.partition(":")
    gpus = torch.cuda.device_count()
    if kind == "auto":
        if gpus:
            return torch.device("cuda", int(index or 0) % gpus)
        return torch.device("mps") if torch.backends.mps.is_available() else CPU
    if kind == "cuda" and int(index or 0) >= gpus:
        has = f"it has {gpus} of them, numbered from 0" if gpus else f"torch {torch.__version__} finds none"
        raise ConfigError(
            f"--device is {text}, and this machine has no such GPU: {has}",
            "give --device cpu, or install a build of torch for this GPU (docs/training.md)",
        )
    if kind == "mps" and not torch.backends.mps.is_available():
        raise ConfigError(f"--device is {text}, and this machine has no such GPU", "give --device cpu")
    return torch.device("cuda", int(index or 0)) if kind == "cuda" else torch.device(kind)


def prepare(device: torch.device) -> None:
    """Lets torch compute the same bits each time on this device, as far as it can; called before it is used."""
    if device == CPU:
        return
    determinism.ask()
    torch.backends.cudnn.allow_tf32 = False  # float32 then means float32; matrix products have it off by default


def moved(batch: T, device: torch.device) -> T:
    """The tensors of a batch on a device. On a GPU of CUDA they may still be on their way, which torch knows.

    A copy from ordinary memory would wait until the GPU has finished all earlier work. Tensors with gaps, or with
    elements that share memory (`expand`), are copied in that way: torch cannot put them into memory that a GPU reads.
    """

    def there(one: torch.Tensor) -> torch.Tensor:
        plain = one.device == CPU and one.layout == torch.strided and one.is_contiguous()
        return one.pin_memory().to(device, non_blocking=True) if plain and device.type == "cuda" else one.to(device)

    return mapped(there, batch)  # type: ignore[no-any-return]


def described(device: torch.device) -> tuple[str, int]:
    """The device in words, and its memory in bytes; 0 if that is not known."""
    if device.type == "cuda":
        found = torch.cuda.get_device_properties(device)
        return f"{device} ({found.name})", int(found.total_memory)
    if device == CPU and hasattr(os, "sysconf"):
        with contextlib.suppress(ValueError, OSError):
            return "cpu", os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return str(device), 0


def memory_full(error: BaseException, device: torch.device) -> str:
    """What to tell of an error that says that memory is full, with figures; empty for other errors."""
    full = isinstance(error, MemoryError | torch.OutOfMemoryError)
    if not full and not (isinstance(error, RuntimeError) and _FULL.search(str(error))):
        return ""
    figures = ""
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        held = torch.cuda.max_memory_allocated(device)
        figures = f": {free / _GIB:.2f} of {total / _GIB:.2f} GiB are free, and this node took up to {held / _GIB:.2f}"
        torch.cuda.empty_cache()
    elif asked := re.search(r"tried to allocate ([0-9]+) bytes", str(error)):
        figures = f": it asked for {int(asked[1]) / _GIB:.2f} GiB at once"
    return (
        f"the memory of {device} is full{figures}. Lower --batch-size (--accumulate makes up for it), or use a smaller"
        " model or optimiser"
    )
