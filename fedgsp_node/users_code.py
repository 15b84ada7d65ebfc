"""Calls the user's code. Errors are shown with file and line, and returned values are checked."""

import asyncio
import sysconfig
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

import fedgsp
from fedgsp.errors import TaskError, UserError
from fedgsp.messages import MOST_SAMPLES
from fedgsp.names import TEXT_RULE, is_text
from fedgsp.require import require
from fedgsp.scoring import MOST_METRICS, RATIO, taken_by
from fedgsp_node.model.nested import leaves
from fedgsp_node.remedies import remedy_of, text_of
from fedgsp_node.tasks.loading import remedy_for

T = TypeVar("T")

#: No faults of a task. Packages may raise other errors that are no Exception.
NOT_OF_TASKS = (KeyboardInterrupt, asyncio.CancelledError)

#: For errors in torch, or in FedGSP, the line of the task that called it is shown.
_NOT_USERS = (Path(torch.__file__).parent, Path(__file__).parent, Path(fedgsp.__file__).parent)
_TASKS = Path(__file__).parent / "tasks"
_STANDARD, _PACKAGES = Path(sysconfig.get_path("stdlib")), Path(sysconfig.get_path("purelib"))


def guarded(call: Callable[[], T], what: str) -> T:
    """Calls the function of a task that is named `what`.

    A UserError of the task is raised unchanged. Every other exception becomes a TaskError.
    """
    try:
        return call()
    except (UserError, *NOT_OF_TASKS):
        raise
    except BaseException as error:
        raise raised(f"the task's {what}", error) from error


def raised(what: str, error: BaseException) -> TaskError:
    """The TaskError about an error that the user's code raised in `what`, with its place and a remedy."""
    return TaskError(f"{what} raised {where(error)}", remedy_of(error) or remedy_for(error, "fix the task module"))


def where(error: BaseException) -> str:
    """The text of an error. Unless it is a UserError, the text has the file and line in the user's code.

    There may be none: a model that is an `nn.Sequential`, for example, is called by FedGSP, and raises in torch.
    """
    text = text_of(error)
    if not isinstance(error, UserError):
        frames = traceback.extract_tb(error.__traceback__)
        users = [frame for frame in reversed(frames) if _is_users(frame)]
        # The innermost one is often of a package that the task calls, where there is nothing to mend.
        own = [frame for frame in users if _PACKAGES not in Path(frame.filename).parents]
        frame = next(iter(own or users), None)
        place = f" ({Path(frame.filename).name}:{frame.lineno})" if frame is not None else ""
        text = f"{type(error).__name__}: {text}{place}"
    # File names may contain bytes that are not text, and cannot be sent.
    return text.encode(errors="replace").decode()


def batch_of(found: Any, what: str) -> tuple[Any, Any]:
    """The result of a task's method that returns a batch; TaskError unless it is (x, y) of tensors."""
    if not isinstance(found, tuple | list) or len(found) != 2:
        shown = f"{len(found)} values" if isinstance(found, tuple | list) else type(found).__name__
        raise TaskError(f"the task's {what} returned {shown}", "return (x, y)")
    for side, value in zip("xy", found, strict=True):
        for leaf in leaves(value):
            require(
                isinstance(leaf, torch.Tensor),
                f"the task's {what} returned {side} with {type(leaf).__name__}, not torch.Tensor",
                "return tensors, or tuples, lists or dicts of them; torch.from_numpy makes a tensor of an array",
            )
    return found[0], found[1]


def _is_users(frame: traceback.FrameSummary) -> bool:
    if frame.filename.startswith("<") and not frame.line:
        return False  # made by Python, as the constructor of a data class is; the lines of a notebook are known
    file = Path(frame.filename)
    standard = _STANDARD in file.parents and _PACKAGES not in file.parents
    return _TASKS in file.parents or not (standard or any(folder in file.parents for folder in _NOT_USERS))


def judged(found: object, targets: Any, samples: int) -> tuple[int, int] | None:
    """The result of correct() for a batch: how many labels are correct, and of how many; None without accuracy.

    A single number is one of `samples` or, if the targets are a tensor, of its rows: a graph has a label per node.
    TypeError if it is neither a number, nor a pair of numbers, nor None; TaskError for numbers that cannot be.
    """
    if found is None:
        return None
    rows = len(targets) if isinstance(targets, torch.Tensor) and targets.ndim else samples
    pair = found if isinstance(found, tuple) and len(found) == 2 else (found, rows)
    correct, labels = whole(pair[0]), whole(pair[1])
    what = "labels" if pair is found else "samples"
    require(
        0 <= correct <= labels <= MOST_SAMPLES,
        f"the task's correct() counts {correct} of {labels} {what}",
        f"return the number of correct {what} of the batch",
    )
    return correct, labels


def whole(count: object) -> int:
    """A count of correct() as an int; TypeError if it is not a whole number."""
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
    require(
        all(one == other for one, other in zip(found, counts, strict=True)),
        "class_counts() returned counts that are no whole numbers",
        "return numbers of samples",
    )
    for count in found:
        require(
            0 <= count <= MOST_SAMPLES,
            f"class_counts() returned {count} samples for a class",
            f"return numbers from 0 to {MOST_SAMPLES}",
        )
    return found


def numbers(figures: Any, combine: Mapping[str, str]) -> tuple[dict[str, float], dict[str, float]]:
    """The result of metrics() as floats by name, and the denominators of those that `combine` calls ratios.

    TypeError or ValueError if it is not a dict of numbers, and of pairs of numbers for ratios.
    """
    if not isinstance(figures, Mapping) or not all(isinstance(name, str) for name in figures):
        raise TypeError("metrics() must return a dict from names to numbers")
    if len(figures) > MOST_METRICS:
        raise ValueError(f"metrics() returned {len(figures)} metrics, and {MOST_METRICS} are read")
    values, denominators = {}, {}
    for name, found in figures.items():
        if not is_text(name):
            raise ValueError(f"metrics() returned a metric named {name[:60]!r}: a name has to be {TEXT_RULE}")
        if taken := taken_by(name):
            raise ValueError(f"metrics() returned {name!r}, which {taken}: give it another name")
        if combine.get(name) == RATIO:
            if not isinstance(found, tuple | list) or len(found) != 2:
                raise TypeError(f"metrics() must return a pair (numerator, denominator) for {name!r}, a ratio")
            values[name], denominators[name] = (_number(name, one) for one in found)
        elif isinstance(found, tuple | list):
            raise TypeError(f"metrics() returned a pair for {name!r}: set combine = {{{name!r}: {RATIO!r}}}")
        else:
            values[name] = _number(name, found)
    return values, denominators


def _number(name: str, found: Any) -> float:
    try:
        return float(found)
    except (TypeError, ValueError, RuntimeError) as error:  # the last for a tensor of several numbers
        kind = ValueError if isinstance(error, ValueError) else TypeError
        raise kind(f"metrics() returned {str(found)[:60]!r} for {name!r}, which is no number: {error}") from None
