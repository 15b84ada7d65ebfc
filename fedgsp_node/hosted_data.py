"""The data of the clients that a node hosts. All data are checked when the node starts, then kept or loaded again."""

import functools
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch

from fedgsp.errors import TaskError
from fedgsp.messages import MOST_CLIENTS_OF_NODE, HostedClient
from fedgsp.require import require
from fedgsp.task import ClientData, Part, Split, Task, overrides
from fedgsp.words import with_name
from fedgsp_node.model.nested import leaves, mapped
from fedgsp_node.samples import in_file
from fedgsp_node.seeding import seeded_for_data
from fedgsp_node.tasks.attributes import names_in
from fedgsp_node.users_code import guarded

#: The parts of a client's data.
TRAIN, TEST, VALIDATION = "train", "test", "validation"
#: Most bytes of data that are kept, of the clients used last, if the task can return data again.
KEPT_BYTES = 16 << 20
#: These stand for `x` without `y`, or for both, or have no samples by number although they have the method.
_NO_DATA_SETS = (tuple, list, Mapping, np.ndarray, torch.Tensor, torch.utils.data.IterableDataset)


class HostedData:
    """The data of each client. The constructor loads all of them, and raises TaskError for unusable data."""

    def __init__(self, task: Task, clients: Iterable[int]) -> None:
        self._task = task
        repeatable = guarded(lambda: bool(task.data_is_repeatable), "data_is_repeatable")
        self._limit = KEPT_BYTES if repeatable else math.inf
        self._kept: dict[int, ClientData] = {}  # ordered by last use
        self._size = 0
        #: Numbers of training, test and validation samples by client.
        self.sizes: dict[int, HostedClient] = {}
        self._names = names_of(task)
        for client in clients:
            self.add(client)

    def add(self, client: int) -> HostedClient:
        """Loads the data of one more client; returns its numbers of samples. Raises what the constructor raises."""
        data = self._keep(client, _load(self._task, client))
        validation = 0 if data.validation is None else len(data.validation)
        name = self._names.get(client, "")
        self.sizes[client] = HostedClient(client, len(data.train), len(data.test), name, validation)
        return self.sizes[client]

    def of(self, client: int) -> ClientData:
        """The data of a client. If they must be loaded again, raises TaskError or a UserError of the task."""
        if client not in self._kept:
            return self._keep(client, _load(self._task, client))
        self._kept[client] = self._kept.pop(client)
        return self._kept[client]

    def part(self, client: int, name: str) -> Part:
        """One part of the data of a client; TaskError as in `of`, and if the client has no validation part."""
        part = getattr(self.of(client), name)
        require(part is not None, f"client {client} has no {name} part", "return it from data() of the task")
        return part

    def _keep(self, client: int, data: ClientData) -> ClientData:
        self._kept[client] = data
        self._size += _nbytes(data)
        while self._size > self._limit and len(self._kept) > 1:
            self._size -= _nbytes(self._kept.pop(next(iter(self._kept))))
        return data


def hosted_ids(task: Task, ids: Iterable[int] | None, flag: str = "--clients") -> tuple[int, ...]:
    """The clients that a node hosts, all clients of the task for None; TaskError if the task does not have them.

    `flag` is where the user has named them.
    """
    require(
        ids is not None or task.num_clients <= MOST_CLIENTS_OF_NODE,
        f"the task has {task.num_clients} clients, and a node hosts at most {MOST_CLIENTS_OF_NODE}",
        f"name some with {flag}",
    )
    hosted = tuple(range(task.num_clients)) if ids is None else tuple(ids)
    require(hosted, "there is no client to host", "give the task at least one client, or name some")
    twice = next((client for client, times in Counter(hosted).items() if times > 1), None)
    require(twice is None, f"client {twice} is named twice", "name each client once")
    for client in hosted:
        require(
            0 <= client < task.num_clients,
            f"client {client} does not exist: the task has {task.num_clients} clients",
            f"choose {flag} from 0-{task.num_clients - 1}, or give the task more clients with --task-option",
        )
    return hosted


def _nbytes(data: ClientData) -> int:
    """Bytes of the arrays in memory; data sets and memory maps read their samples from where they are."""
    parts = [part for part in (data.train, data.test, data.validation) if isinstance(part, Split)]
    found = [leaf for part in parts for leaf in leaves((part.x, part.y))]
    return sum(leaf.nbytes for leaf in found if not in_file(leaf))


def names_of(task: Task) -> dict[int, str]:
    """Client -> what people call it; only clients that have a name."""
    return names_in(guarded(lambda: task.client_names, "client_names")) or {}


def _load(task: Task, client: int) -> ClientData:
    named = f"client {with_name(client, names_of(task))}"
    with seeded_for_data(client):
        data = guarded(lambda: task.data(client), f"data({client})")
    if not isinstance(data, ClientData):
        raise TaskError(f"the task's data({client}) returned {type(data).__name__}", "return a fedgsp.ClientData")
    parts = {
        TRAIN: data.train,
        TEST: data.test,
        **({VALIDATION: data.validation} if data.validation is not None else {}),
    }
    for name, part in parts.items():
        is_table = hasattr(part, "iloc")  # of pandas: it has columns by name, and no samples by number
        has_samples = hasattr(part, "__len__") and hasattr(part, "__getitem__") and not is_table
        is_data_set = has_samples and not isinstance(part, _NO_DATA_SETS)
        if not isinstance(part, Split) and not is_data_set:
            raise TaskError(
                f"{named}'s {name} is a {type(part).__name__}",
                "return ClientData with a Split for each part, or a data set with len() and samples by number",
            )
    require(
        len(data.train),
        f"{named} has no training samples",
        "leave it out of --clients, or change the partition",
    )
    return ClientData(**{name: _usable(part, task, client, named) for name, part in parts.items()})


def _usable(part: Any, task: Task, client: int, named: str) -> Any:
    """The part with dtypes for torch: float64 inputs become float32, whole-number labels int64. Raises TaskError.

    A data set is returned as it is: its samples are seen first when they are collated.
    """
    if not isinstance(part, Split):
        return part
    checked = functools.partial(_column, client, named)
    x, y = (mapped(functools.partial(checked, name), values) for name, values in (("x", part.x), ("y", part.y)))
    if isinstance(y, np.ndarray):
        y = _targets(y, task, named)
    return Split(mapped(_narrow, x), y)


def _column(client: int, named: str, name: str, values: Any) -> Any:
    """An array or tensor of the data, checked; a memory map is not read for that."""
    require(
        not np.ma.is_masked(values),
        f"the task's data({client}) returned {name} with masked values",
        f"replace the masked values: {name}.filled(...)",
    )
    if isinstance(values, torch.Tensor):
        require(not values.requires_grad, f"{named}'s {name} takes gradients", f"return {name}.detach()")
        require(
            values.layout == torch.strided and not (values.is_nested or values.is_quantized or values.is_meta),
            f"{named}'s {name} is no dense tensor with values",
            f"return {name}.to_dense(), or a data set whose batches collate() makes",
        )
        values = values.cpu()
        if values.dtype == torch.bfloat16:  # numpy has no such dtype
            return values
        values = values.numpy()
    array = values if in_file(values) else guarded(lambda: _array(values), f"data({client})")
    require(
        array.dtype.type is not np.longdouble,
        f"the task's data({client}) returned {name} of dtype longdouble",
        f"return {name}.astype(np.float32)",
    )
    require(
        array.dtype.kind in "fiub",
        f"{named}'s {name} has dtype {array.dtype}",
        "return real and imaginary parts, for example of np.stack([x.real, x.imag], axis=1)"
        if array.dtype.kind == "c"
        else "return arrays of numbers",
    )
    require(
        array.dtype.kind != "f" or in_file(array) or np.isfinite(array).all(),
        f"{named}'s {name} holds NaN or infinite values",
        "remove or impute these values",
    )
    return array


def _narrow(values: Any) -> Any:
    wide = isinstance(values, np.ndarray) and values.dtype == np.float64 and not in_file(values)
    return values.astype(np.float32) if wide else values


def _targets(y: np.ndarray, task: Task, named: str) -> np.ndarray:
    if y.dtype.kind in "iu":
        y = y.astype(np.int64, copy=False)
        if task.num_classes and y.ndim == 1 and len(y):
            require(
                0 <= y.min() <= y.max() < task.num_classes,
                f"{named} has labels {y.min()} .. {y.max()}",
                f"number the classes 0 .. {task.num_classes - 1}",
            )
    if len(y) and not overrides(task, "loss"):
        if y.dtype.kind == "i" and y.ndim > 1 and not in_file(y):  # a label for each pixel or token
            unknown = y[((y < 0) | (y >= task.num_classes)) & (y != task.ignore_index)]
            if len(unknown):
                raise TaskError(
                    f"{named} has labels {unknown.min()} .. {unknown.max()} outside of the classes",
                    f"number the classes 0 .. {task.num_classes - 1}; ignore_index names a label that does not count",
                )
        # With other labels, cross-entropy would fail in the first batch, for any model. Class probabilities, floats of
        # shape (n, num_classes), are allowed.
        require(y.shape[1:] != (1,), f"{named}'s y has shape {y.shape}", "return y.ravel(), one label per sample")
        require(
            y.dtype.kind != "b" and (y.dtype.kind != "f" or y.ndim != 1),
            f"{named}'s y has dtype {y.dtype}, but the task's loss, cross-entropy, needs whole numbers",
            "return y.astype(np.int64), or override loss() if y are not classes",
        )
    return y


def _array(values: object) -> np.ndarray:
    """A numpy array that torch accepts: without negative strides, and with this machine's byte order."""
    array = np.asarray(values)
    array = array.astype(array.dtype.newbyteorder("="), copy=False)
    return array.copy() if min(array.strides, default=0) < 0 else array
