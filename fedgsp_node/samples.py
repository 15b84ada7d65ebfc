"""The samples of one part of a client's data, from which batches are made."""

from typing import Any, TypeAlias

import numpy as np
import torch

from fedgsp.errors import TaskError
from fedgsp.task import Part, Split, Task
from fedgsp_node.model.nested import leaves, mapped
from fedgsp_node.users_code import batch_of

#: Which samples: their numbers, int64 of shape (n,), or a slice.
Rows: TypeAlias = torch.Tensor | slice


class Samples:
    """Inputs and targets by number. Only the samples of a batch are read, so they may be in a file.

    `x` and `y` are arrays or tensors of the same length, or tuples and dicts of such.
    """

    def __init__(self, x: Any, y: Any) -> None:
        self._columns = (mapped(_column, x), mapped(_column, y))

    def __len__(self) -> int:
        return len(next(leaves(self._columns)))

    def take(self, rows: Rows) -> tuple[Any, Any]:
        """A batch (x, y): tensors on the CPU that share no memory with the data."""
        x, y = mapped(lambda column: _taken(column, rows), self._columns)
        return x, y

    def whole(self) -> tuple[Any, Any]:
        """All samples as one batch."""
        return self.take(slice(None))

    @property
    def bytes_of_one(self) -> int:
        """Bytes of the input of the first sample."""
        return sum(one.numel() * one.element_size() for one in leaves(self.take(slice(0, 1))[0]))


class DatasetSamples(Samples):
    """The samples of a `torch.utils.data.Dataset`, which the task collates to batches."""

    def __init__(self, dataset: Any, task: Task) -> None:
        self._dataset, self._task = dataset, task

    def __len__(self) -> int:
        return len(self._dataset)

    def take(self, rows: Rows) -> tuple[Any, Any]:
        """A batch (x, y), as the task collates it."""
        numbers = range(len(self))[rows] if isinstance(rows, slice) else rows.tolist()
        x, y = batch_of(self._task.collate([self._dataset[number] for number in numbers]), "collate()")
        return mapped(torch.clone, x), mapped(torch.clone, y)  # collate() may return views of the data


def samples_of(part: Part, task: Task) -> Samples:
    """The samples of a part of a client's data."""
    return Samples(part.x, part.y) if isinstance(part, Split) else DatasetSamples(part, task)


def targets_of(part: Part, task: Task) -> np.ndarray:
    """The targets of a part as one array; those of a data set are collated one by one. TaskError if they are none."""
    y = part.y if isinstance(part, Split) else task._targets(part)
    if not isinstance(y, np.ndarray):
        raise TaskError(f"y is a {type(y).__name__}, not an array of labels", "return one array of labels")
    return y


def in_file(values: Any) -> bool:
    """Whether values are a memory map. Arrays that are computed from one keep its type, and are in memory."""
    return isinstance(values, np.memmap) and getattr(values, "_mmap", None) is not None


def _column(values: Any) -> Any:
    """Arrays that torch could write into share their memory with a tensor, which is faster; all others stay."""
    if isinstance(values, np.ndarray) and values.flags.writeable and not in_file(values):
        return torch.from_numpy(values)
    return values


def _taken(column: Any, rows: Rows) -> torch.Tensor:
    if isinstance(column, torch.Tensor):
        return column[rows].clone() if isinstance(rows, slice) else column[rows]
    found = np.array(column[rows if isinstance(rows, slice) else rows.numpy()])
    found = found.astype(np.float32) if found.dtype.type is np.float64 else found
    return torch.from_numpy(found.astype(found.dtype.newbyteorder("="), copy=False))
