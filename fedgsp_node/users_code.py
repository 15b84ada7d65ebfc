"""Calls code of the user: exceptions are shown with file and line, and results are checked."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from fedgsp.errors import TaskError, UserError
from fedgsp.messages import MOST_SAMPLES

T = TypeVar("T")

_TORCH = Path(torch.__file__).parent  # errors are shown where the task called it


def guarded(call: Callable[[], T], what: str) -> T:
    """Calls code of the task, named `what` in errors; raises TaskError, or the UserError that the task raised."""
    try:
        return call()
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        raise TaskError(f"the task's {what} raised {where(error)}", "mend the task module") from error


def where(error: BaseException) -> str:
    """An error with file and line in the user's code; the text alone of a UserError."""
    if isinstance(error, UserError):
        return _as_text(str(error))
    frames = traceback.extract_tb(error.__traceback__)
    frame = next((frame for frame in reversed(frames) if _TORCH not in Path(frame.filename).parents), frames[-1])
    return _as_text(f"{type(error).__name__}: {error} ({Path(frame.filename).name}:{frame.lineno})")


def _as_text(found: str) -> str:
    return found.encode(errors="replace").decode()  # names of files may hold what is no text, and no message


def whole(count: object) -> int:
    """The result of correct() as an int; raises TypeError if it is not a whole number."""
    try:
        number = float(count)  # type: ignore[arg-type]
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(f"correct() returned {type(count).__name__}, not how many samples are right") from None
    if not number.is_integer():
        raise TypeError(f"correct() returned {number}, not how many samples are right")
    return int(number)


def histogram(counts: Any, classes: int) -> tuple[int, ...]:
    """The result of class_counts() as ints; raises TaskError if it is not one count for each class."""
    if np.shape(counts) != (classes,):
        raise TaskError(
            f"class_counts() returned shape {tuple(np.shape(counts))}", f"return a count for each of {classes} classes"
        )
    found = tuple(int(count) for count in counts)
    wrong = next((count for count in found if not 0 <= count <= MOST_SAMPLES), None)
    if wrong is not None:
        raise TaskError(f"class_counts() counts {wrong} samples of a class")
    return found


def numbers(figures: Any) -> dict[str, float]:
    """The result of metrics() as numbers by name; raises TypeError if it is anything else."""
    if not isinstance(figures, dict) or not all(isinstance(name, str) for name in figures):
        raise TypeError("metrics() must return a dict of numbers by name")
    return {name: float(value) for name, value in figures.items()}
