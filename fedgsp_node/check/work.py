"""Looks at the task, its data, and the model on two samples, as a node does when it starts; in a thread."""

from __future__ import annotations

import contextlib
import functools
import itertools
import sys
import threading
import time
from collections.abc import Callable, Iterable
from typing import TypeVar

import numpy as np
import torch

from fedgsp.errors import TaskError, UserError
from fedgsp.messages import PROTOCOL, HostedClient
from fedgsp.report import Report
from fedgsp.task import Task
from fedgsp.tensors.weights import total_bytes
from fedgsp_node.check.facts import NO_TASK, Data, Fact, Facts, Model, Unchecked
from fedgsp_node.check.table import OF_TASK, lines
from fedgsp_node.check.task import SLOW, judge_data
from fedgsp_node.clients import Clients
from fedgsp_node.devices import CPU
from fedgsp_node.hosted_data import HostedData, hosted_ids
from fedgsp_node.model.nested import leaves
from fedgsp_node.samples import samples_of
from fedgsp_node.tasks import check_task
from fedgsp_node.users_code import raised

T = TypeVar("T")

#: Clients on whose samples the model is tried, each with samples of other shapes or dtypes.
MOST_KINDS = 8


def attempt(call: Callable[[], T]) -> T | UserError:
    """The result of a call, or the UserError that it raises; another error of the task becomes a TaskError."""
    try:
        return call()
    except UserError as error:
        return error
    except (Exception, SystemExit) as error:
        return raised("the task", error)


class Work:
    """What was found of a task so far. `look` fills it in a thread; another thread may read it at any time."""

    def __init__(self) -> None:
        self.task: Task | UserError | None = None
        #: The clients with usable data, once the model has worked on two samples.
        self.clients: Clients | UserError | None = None
        self.wanted = 0
        self._sizes: dict[int, HostedClient] = {}
        self._failed: dict[int, UserError] = {}
        #: What the first sample of a client is like -> the first client with such samples.
        self._kinds: dict[object, int] = {}
        self._seconds = 0.0
        self._stopped = threading.Event()

    def look(self, load: Callable[[], Task], ids: Iterable[int] | None, device: torch.device = CPU) -> None:
        """Loads the task, then the data of each client, then tries the model; ends early after `stop`."""
        task = attempt(load)
        if isinstance(task, UserError):
            self.task = task
            return
        wanted = attempt(lambda: hosted_ids(task, ids))
        if isinstance(wanted, UserError):
            self.task = wanted
            return
        self.wanted, self.task = len(wanted), task
        data, begin = HostedData(task, ()), time.monotonic()
        for client in wanted:
            if self._stopped.is_set():
                return
            found = self._add(data, client)
            self._seconds = time.monotonic() - begin
            if isinstance(found, UserError):
                self._failed[client] = found
            else:
                self._sizes[client] = found
                kind = attempt(functools.partial(_kind, task, data, client))
                self._kinds.setdefault(client if isinstance(kind, UserError) else kind, client)
        if self._sizes:
            self.clients = attempt(lambda: _tried(task, data, device, self._kinds.values()))

    def stop(self) -> None:
        """Lets `look` end after the client that it reads."""
        self._stopped.set()

    def facts(self, deadline_s: float = 0.0) -> tuple[Fact[str], Fact[Data], Fact[Model]]:
        """Task, data and model as facts; what is missing after `deadline_s` seconds is told as late."""
        task, clients, late = self.task, self.clients, TaskError(f"it was not ready after {deadline_s:g} s", SLOW)
        if not isinstance(task, Task):
            return task or late, NO_TASK, NO_TASK
        described = f"{type(task).__name__} of the module {type(task).__module__}"
        data = Data(self.wanted, dict(self._sizes), dict(self._failed), self._seconds)
        if isinstance(clients, Clients):
            failed = clients.declared.class_counts_failed
            return described, data, Model(total_bytes(clients.task_tensors), len(clients.task_tensors), failed)
        if clients is None and len(self._failed) == self.wanted:
            return described, data, Unchecked("no client has usable data")
        return described, data, clients or late

    def _add(self, data: HostedData, client: int) -> HostedClient | UserError:
        return attempt(lambda: data.add(client))


def _kind(task: Task, data: HostedData, client: int) -> object:
    """Shapes and dtypes of the first training sample of a client."""
    sample = samples_of(data.of(client).train, task).take(slice(0, 1))
    return tuple((one.shape, one.dtype) for one in leaves(sample))


def _tried(task: Task, data: HostedData, device: torch.device, unlike: Iterable[int]) -> Clients:
    """The clients, after the task worked on two samples of the first one, and of others whose samples are `unlike`."""
    clients = Clients(task, tuple(data.sizes), device=device, data=data)
    clients.rehearse()
    first, *others = itertools.islice(unlike, MOST_KINDS)
    for client in others:
        try:
            clients.rehearse(client)
        except TaskError as error:
            what = f"client {client} has samples of other shapes or dtypes than client {first}: {error.what}"
            raise TaskError(what, f"let data() return the same for all clients, or {error.remedy}") from error
    return clients


def _check_arguments(task: Task, clients: Iterable[int] | None) -> None:
    """Raises TaskError for what is no task, a task that a node refuses, and clients that are no numbers of clients."""
    if isinstance(task, type):
        raise TaskError(f"{task.__name__} is a class", f"give an instance: fedgsp.check({task.__name__}())")
    if not isinstance(task, Task):
        raise TaskError(f"{task!r} is not a task", "give an instance of a subclass of fedgsp.Task")
    if clients is not None and (
        not isinstance(clients, Iterable) or not all(isinstance(one, int) and type(one) is not bool for one in clients)
    ):
        raise TaskError(f"clients is {clients!r}", "give whole numbers, such as clients=[0, 3]")
    check_task(f"task {type(task).__name__}", task, sys.modules[type(task).__module__])


def check(task: Task, clients: Iterable[int] | None = None) -> Report:
    """See `fedgsp.check`."""
    ids = None
    if isinstance(clients, Iterable):
        ids = tuple(int(one) if isinstance(one, np.integer) else one for one in clients)
    _check_arguments(task, clients if ids is None else ids)
    work = Work()
    with contextlib.chdir("."):  # the task may change it; the caller's stays
        work.look(lambda: task, ids)
    facts = Facts(address="", now=time.time(), protocol=PROTOCOL, own_versions={})
    facts.task, facts.data, facts.model = work.facts()
    for fact in (facts.task, facts.data, facts.model):
        if isinstance(fact, UserError):
            raise fact
        if isinstance(fact, Data) and fact.failed:
            first, found = next(iter(fact.failed.values())), judge_data(fact, facts)
            raise type(first)(found.words, found.remedy)
    return Report(lines(facts, OF_TASK))
