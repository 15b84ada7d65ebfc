"""The clients that a node hosts: their data, and what is computed on it."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch

from fedgsp.errors import TaskError, UserError
from fedgsp.messages import Evaluated, Failure, FailureCode, HostedClient, TrainingSettings
from fedgsp.seeds import derive, stream
from fedgsp.task import ClientData, Split, Task
from fedgsp.weights import Weights, WeightsError, check_finite, without_head
from fedgsp_node.flops import training_flop
from fedgsp_node.personal import HEAD, PersonalState
from fedgsp_node.torch_weights import as_tensor, bind, tensor_specs, weights_of
from fedgsp_node.training import ALGORITHMS
from fedgsp_node.training.control import Control, StoppedError
from fedgsp_node.training.evaluation import evaluate

T = TypeVar("T")

_TORCH = Path(torch.__file__).parent  # errors are shown where the task called it


class OrderError(Exception):
    """An order that was not carried out; carries the reason as a value."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(str(failure))
        self.failure = failure


@dataclass(frozen=True, slots=True)
class Learned:
    """One client's local training: the whole model before and after it, mean loss, seconds."""

    before: Weights
    after: Weights
    loss: float
    seconds: float


class Clients:
    """Runs the task on the data of its clients, one call at a time, in the node's training thread."""

    def __init__(self, task: Task, ids: Iterable[int] | None, personal: PersonalState | None = None) -> None:
        self.task = task
        self.personal = personal or PersonalState()
        chosen = tuple(range(task.num_clients)) if ids is None else tuple(ids)
        if not chosen:
            raise TaskError("there is no client to host", "give the task at least one client, or name some")
        strangers = [client for client in chosen if not 0 <= client < task.num_clients]
        if strangers:
            raise TaskError(
                f"client {strangers[0]} does not exist: the task has {task.num_clients} clients",
                f"choose --clients from 0-{task.num_clients - 1}, or give the task more clients with --task-option",
            )
        self._data = {client: _load(task, client) for client in chosen}
        self._module = _ours(lambda: task.model(), "model()")
        if not isinstance(self._module, torch.nn.Module):
            raise TaskError(f"the task's model() returned {type(self._module).__name__}", "return a torch.nn.Module")
        self.tensors = tensor_specs(self._module, tuple(task.head))
        self.shared = without_head(self.tensors)
        some = next(iter(self._data.values())).train.x
        self.training_flop = _ours(lambda: training_flop(self._module, as_tensor(some)), "model()")

    @property
    def hosted(self) -> tuple[HostedClient, ...]:
        """Every hosted client with its numbers of samples."""
        return tuple(HostedClient(c, len(data.train), len(data.test)) for c, data in self._data.items())

    def train_samples(self, client: int) -> int:
        """Size of a client's training part."""
        return len(self._of(client).train)

    def class_counts(self, client: int) -> tuple[int, ...]:
        """The class histogram of a client's training part."""
        part = self._of(client).train
        return self._call(lambda: tuple(int(count) for count in self.task.class_counts(part)))

    def initial_weights(self, seed: int) -> Weights:
        """Fresh weights; the same seed gives the same bits on every node."""
        torch.manual_seed(seed)
        return weights_of(self._call(self.task.model), tuple(self.task.head))

    def whole(self, client: int, weights: Weights, seed: int) -> Weights:
        """The client's whole model: weights that came without a head get the client's own, at first a fresh one."""
        if weights.tensors == self.tensors:
            return weights
        kept = self.personal.get(client, HEAD)
        head = kept[1] if kept is not None else self.initial_weights(derive(seed, "initial-weights")).arrays
        return Weights.of({**head, **weights.arrays}, self.tensors)

    def keep_head(self, client: int, whole: Weights) -> None:
        """Keeps the head of a client's model on this node."""
        self.personal.put(client, HEAD, {spec.name: whole.arrays[spec.name] for spec in self.tensors if spec.head})

    def train(
        self, client: int, start: Weights, settings: TrainingSettings, round_number: int, control: Control
    ) -> Learned:
        """Local training from `start`; one without a head goes on from the client's own, but does not keep it yet."""
        algorithm = ALGORITHMS.get(settings.algorithm)
        if algorithm is None:
            detail = f"unknown training algorithm {settings.algorithm!r}; this node knows {', '.join(ALGORITHMS)}"
            raise OrderError(Failure(FailureCode.BAD_ORDER, detail))
        part = self._of(client).train
        before = self.whole(client, start, settings.seed)
        result = before.copy()
        bind(self._module, result)
        torch.manual_seed(derive(settings.seed, "training", round_number, client))
        order = stream(settings.seed, "batch-order", round_number, client)
        begin = time.perf_counter()
        x, y = as_tensor(part.x), as_tensor(part.y)
        loss = self._call(lambda: algorithm(self._module, self.task, x, y, settings, order, control))
        seconds = time.perf_counter() - begin
        try:
            check_finite(result)
        except WeightsError as error:
            detail = f"client {client}'s training diverged ({error.failure.detail}): lower --learning-rate"
            raise OrderError(Failure(FailureCode.NOT_FINITE, detail)) from error
        return Learned(before, result, loss, seconds)

    def evaluate(
        self, client: int, weights: Weights, control: Control, training_part: bool = False, seed: int = 0
    ) -> Evaluated:
        """Counts and figures of a model on the client's test part, or on its training part."""
        data = self._of(client)
        part = data.train if training_part else data.test
        bind(self._module, self.whole(client, weights, seed))
        x, y = as_tensor(part.x), as_tensor(part.y)
        correct, loss_sum, figures = self._call(lambda: evaluate(self._module, self.task, x, y, control))
        return Evaluated(correct, len(part), loss_sum, metrics=figures)

    def _of(self, client: int) -> ClientData:
        if client not in self._data:
            raise OrderError(Failure(FailureCode.UNKNOWN_CLIENT, f"client {client} is not hosted here"))
        return self._data[client]

    def _call(self, call: Callable[[], T]) -> T:
        """Runs the user's code; what it raises is a failure of the order, not of the node."""
        try:
            return call()
        except StoppedError:
            raise OrderError(Failure(FailureCode.CANCELLED, "the order was called off")) from None
        except (Exception, SystemExit) as error:
            raise OrderError(Failure(FailureCode.TASK_RAISED, _where(error))) from error


def _load(task: Task, client: int) -> ClientData:
    data = _ours(lambda: task.data(client), f"data({client})")
    if not isinstance(data, ClientData):
        raise TaskError(f"the task's data({client}) returned {type(data).__name__}", "return a fedgsp.ClientData")
    if not len(data.train):
        raise TaskError(
            f"client {client} has no training samples", "leave it out of --clients, or change the partition"
        )
    return ClientData(_usable(data.train, task, client), _usable(data.test, task, client))


def _usable(part: Split, task: Task, client: int) -> Split:
    """The part as torch takes it, doubles as float32 and whole-number labels as int64; raises TaskError."""
    x, y = np.asarray(part.x), np.asarray(part.y)
    for name, array in (("x", x), ("y", y)):
        if array.dtype.kind not in "fiub":
            raise TaskError(f"client {client}'s {name} has dtype {array.dtype}", "return arrays of numbers")
        if array.dtype.kind == "f" and array.size and not np.isfinite(array).all():
            raise TaskError(f"client {client}'s {name} holds NaN or infinite values", "clean or impute the data")
    if y.dtype.kind in "iu":
        y = y.astype(np.int64, copy=False)
        if y.ndim == 1 and len(y) and not 0 <= y.min() <= y.max() < task.num_classes:
            span = f"{y.min()} .. {y.max()}"
            raise TaskError(f"client {client} has labels {span}", f"number the classes 0 .. {task.num_classes - 1}")
    return Split(x.astype(np.float32, copy=False) if x.dtype == np.float64 else x, y)


def _ours(call: Callable[[], T], what: str) -> T:
    try:
        return call()
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        raise TaskError(f"the task's {what} raised {_where(error)}", "mend the task module") from error


def _where(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    frame = next((frame for frame in reversed(frames) if _TORCH not in Path(frame.filename).parents), frames[-1])
    return f"{type(error).__name__}: {error} ({Path(frame.filename).name}:{frame.lineno})"
