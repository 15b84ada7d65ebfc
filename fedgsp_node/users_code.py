"""Calls the user's code. Errors are shown with file and line, and returned values are checked."""

import re
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from fedgsp.errors import TaskError, UserError
from fedgsp.messages import MOST_SAMPLES
from fedgsp.require import require

T = TypeVar("T")

#: Errors of torch about devices that are not there, or that differ.
_OF_DEVICES = re.compile(r"CUDA|\bMPS\b|HIP GPUs|Expected all tensors to be on the same device")
_TORCH = Path(torch.__file__).parent  # for errors in torch, the line of the task that called torch is shown


def guarded(call: Callable[[], T], what: str) -> T:
    """Calls the function of a task that is named `what`.

    A UserError of the task is raised unchanged. Every other exception becomes a TaskError.
    """
    try:
        return call()
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        remedy = "fix the task module"
        if _OF_DEVICES.search(str(error)):
            remedy = "leave out .cuda() and .to(device) in the task: --device places the model and the batches"
        raise TaskError(f"the task's {what} raised {where(error)}", remedy) from error


def where(error: BaseException) -> str:
    """The text of an error. Unless it is a UserError, the text has the file and line in the user's code."""
    text = str(error)
    if not isinstance(error, UserError):
        frames = traceback.extract_tb(error.__traceback__)
        frame = next((frame for frame in reversed(frames) if _TORCH not in Path(frame.filename).parents), frames[-1])
        text = f"{type(error).__name__}: {error} ({Path(frame.filename).name}:{frame.lineno})"
    # File names may contain bytes that are not text, and cannot be sent.
    return text.encode(errors="replace").decode()


def whole(count: object) -> int:
    """The result of correct() as an int; TypeError if it is not a whole number."""
    try:
        number = float(count)  # type: ignore[arg-type]
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(f"correct() returned {type(count).__name__}, not the number of correct samples") from None
    if not number.is_integer():
        raise TypeError(f"correct() returned {number}, not the number of correct samples")
    return int(number)


def histogram(counts: Any, classes: int) -> tuple[int, ...]:
    """The result of class_counts() as ints; TaskError unless it has one number of samples for each class."""
    require(
        np.shape(counts) == (classes,),
        f"class_counts() returned shape {tuple(np.shape(counts))}",
        f"return one count for each of the {classes} classes",
    )
    found = tuple(int(count) for count in counts)
    for count in found:
        require(
            0 <= count <= MOST_SAMPLES,
            f"class_counts() returned {count} samples for a class",
            f"return numbers from 0 to {MOST_SAMPLES}",
        )
    return found


def numbers(figures: Any) -> dict[str, float]:
    """The result of metrics() as floats by name; TypeError or ValueError if it is not a dict of numbers."""
    if not isinstance(figures, dict) or not all(isinstance(name, str) for name in figures):
        raise TypeError("metrics() must return a dict from names to numbers")
    return {name: float(value) for name, value in figures.items()}
