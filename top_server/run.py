"""What a run consists of, and the few things that every round does with it."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from fedgsp.aggregations import AGGREGATIONS
from fedgsp.encoding import BFLOAT16, rounded, wire_bytes
from fedgsp.errors import RunError
from fedgsp.messages import Failure, FailureCode, TensorSpec
from fedgsp.model_store import ModelStore
from fedgsp.settings.run import RunConfig
from fedgsp.weights import Weights, total_bytes, without_head
from top_server.grouping import GroupingRequest, Plan
from top_server.groups.run import MOST_MANAGERS, MOST_TRIES, first_attempt, run_group
from top_server.groups.task import LOST, GroupOutcome, GroupTask, Trace
from top_server.managers.pool import Manager, ManagerPool
from top_server.merging.trimming import read_trim
from top_server.models import INITIAL, Held, Models
from top_server.nodes.membership import Membership
from top_server.record.journal import Journal
from top_server.schemes import Scheme

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from top_server.merging import Merging
    from top_server.profiles import Profile
    from top_server.profiles.updates import Updates
    from top_server.resume.find import Interrupted


class AllLostError(RunError):
    """Nobody did what was asked, as all were lost, perhaps with a network: it can be asked again."""


def unanswered(what: str, failures: Iterable[Failure | None]) -> RunError:
    """The error of a run in which nobody did something, for these reasons."""
    codes = {failure.code if failure is not None else FailureCode.UNSPECIFIED for failure in failures}
    kind = AllLostError if codes and codes <= LOST else RunError
    return kind(what, "see events.jsonl and the logs in the run directory")


Assign = Callable[[GroupingRequest], Awaitable[Plan]]


@dataclass(slots=True)
class Run:
    """One run's parts and state; what is known of the clients fills as rounds go by."""

    run_id: str
    config: RunConfig
    scheme: Scheme
    address: str  # where nodes and managers fetch models
    membership: Membership
    managers: ManagerPool
    assign: Assign
    store: ModelStore
    journal: Journal
    #: Options of --grouping-option by whom they are for: see `choosing.options`.
    options: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    models: Models = field(init=False)
    merging: Merging = field(init=False)  # these two are set once the run is there: they refer to it
    profile: Profile = field(init=False)
    histograms: dict[int, tuple[int, ...]] = field(default_factory=dict)
    updates: Updates | None = None
    plan: Plan | None = None
    #: Clients of the first plan, of those whose models are not lost: where all are such, a group may rest.
    first_clients: set[int] = field(default_factory=set)
    #: Accuracy of each client in the run that this one is compared with, in which all trained alone.
    alone: dict[int, float] | None = None
    #: Numbers what is asked of managers; time, so that a run that is resumed has others.
    serials: Iterator[int] = field(default_factory=lambda: itertools.count(time.time_ns()))
    #: Of the updates that were looked at; those of the last rounds, as they get shorter.
    update_lengths: deque[float] = field(default_factory=lambda: deque(maxlen=200))
    #: How often it was resumed.
    times: int = 0
    #: The round that a top server before this one had begun.
    interrupted: Interrupted | None = None
    #: Clients that keep a head or a personal model to themselves -> the round in which they began that.
    began: dict[int, int] = field(default_factory=dict)
    #: What each client trained last, where it is retained, and who holds it.
    local_models: dict[int, Held] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.models = Models(self.store)

    @property
    def tensors(self) -> tuple[TensorSpec, ...]:
        """What the models look like that travel in this run."""
        tensors = self.membership.tensors
        return without_head(tensors) if self.scheme.without_head else tensors

    @property
    def aggregation(self) -> str:
        """The aggregation as group managers are told it: with the share that it trims, if it does."""
        name = self.scheme.aggregation
        trims = AGGREGATIONS[name].trims
        return f"{name}:{read_trim('aggregation', self.options['aggregation'])}" if trims else name

    @property
    def model_bytes(self) -> int:
        """What such a model takes on its way."""
        return wire_bytes(self.tensors, self.config.wire_dtype == BFLOAT16)

    def handed_on(self, weights: Weights) -> Weights:
        """A model that was made here, as it travels in this run."""
        return rounded(weights) if self.config.wire_dtype == BFLOAT16 else weights

    async def take(self, outcome: GroupOutcome, tensors: tuple[TensorSpec, ...] = ()) -> Weights | Failure:
        """A group's model, out of its manager's hands; of these tensors, if it is not one that travels."""
        if isinstance(outcome.result, Failure):
            return outcome.result
        if outcome.result.ref is None or not outcome.result.ref.id:
            return Failure(FailureCode.NO_SUCH_MODEL, "the group ended without a model")
        return await self.take_model(outcome.manager, outcome.result.ref.id, tensors)

    async def take_model(
        self, manager: Manager, model_id: str, tensors: tuple[TensorSpec, ...] = ()
    ) -> Weights | Failure:
        """A model that a manager holds for this process."""
        expected = tensors or self.tensors
        return await manager.client.take(model_id, expected, total_bytes(expected))

    async def take_update(self, client: int, model_id: str, manager: Manager) -> None:
        """What a client revealed of its update, out of a manager's hands and into the profile's."""
        if self.updates is None:
            return  # nobody asked for it
        shown = await manager.client.take(model_id, None, self.updates.max_bytes)
        async with self.updates.lock:
            if isinstance(shown, Failure):
                problem = str(shown)
            else:
                problem = await asyncio.to_thread(self.updates.put, client, shown)
            if problem:
                self.updates.forget(client)
        if problem:
            self.journal.record("update_missing", client=client, reason=problem)

    def trace(self, tries: int = 0) -> Trace:
        """Of a group that has done nothing yet: what is made in every try, and after every resume, has other ids."""
        return Trace(first_attempt(self.times) + tries * MOST_MANAGERS)

    def shown(self, task: GroupTask, trace: Trace) -> Trace:
        """The same, up to the first member whose update did not come here: from there on it is revealed again."""
        updates = self.updates
        if task.reveal is None or updates is None:
            return trace
        came = itertools.takewhile(lambda hop: hop.member and updates.came(hop.member.client), trace.finished)
        return dataclasses.replace(trace, finished=tuple(came))

    async def survey(self, round_number: int, task: GroupTask, tries: int = 0) -> GroupOutcome:
        """One task on one manager, or its successors."""
        (manager,) = await self.managers.ensure(1)
        return await run_group(self, round_number, task, manager, self.trace(tries))

    def initial_id(self, slot: str) -> str:
        """The id of the model that a slot has before anybody trained it."""
        return f"{self.run_id}/{slot}"

    async def initialise(self) -> None:
        """The model of round 0, made on a client's node from the run's seed."""
        await self.make_initial(INITIAL, 0)

    async def make_initial(self, slot: str, index: int) -> None:
        """Fresh weights, other ones for every index; raises RunError if no node can make them."""
        failure = Failure(FailureCode.NODE_LOST, "no client is there")
        for tries in range(MOST_TRIES):
            if not await self.membership.wait_for(1, 1, self.config.join_timeout):
                break
            outcome = await self.survey(0, GroupTask(index, "initialise", self._some_clients(tries)), tries)
            made = await self.take(outcome, self.membership.tensors)
            if not isinstance(made, Failure):
                self.models.put([slot], self.initial_id(slot), self.handed_on(made.part(self.tensors)))
                return
            failure = made
            self.journal.record("initial_model_failed", model=slot, reason=str(failure))
            if failure.code not in LOST:
                break
            if not isinstance(outcome.result, Failure):
                await self.managers.discard(outcome.manager)  # it has the model and does not answer
        raise unanswered(f"no node could make the initial model: {failure}", [failure])

    def _some_clients(self, tries: int) -> tuple[int, ...]:
        """Up to three clients of three nodes, others in every try if there are."""
        by_node: dict[str, int] = {}
        for client in self.membership.clients:
            if (member := self.membership.member(client)) is not None:
                by_node.setdefault(member.node, client)
        order = deque(by_node.values())
        order.rotate(-3 * tries)
        return tuple(order)[:3]

    def note_kept(self, client: int, round_number: int, afresh: bool) -> None:
        """A client trained that keeps something to itself; in a later round than its first it should not be afresh."""
        if afresh and self.began.get(client, round_number) < round_number:
            self.note_missing(client, round_number)
        self.began.setdefault(client, round_number)

    def note_missing(self, client: int, round_number: int) -> None:
        """What a client keeps to itself is not on its node; told once."""
        if self.began.pop(client, None) is not None:
            reason = "what it keeps to itself is not on its node any more"
            self.journal.record("model_lost", round=round_number, client=client, reason=reason)

    def histogram_rows(self, clients: Iterable[int]) -> NDArray[np.int64]:
        """Histograms of these clients, shape (N, classes)."""
        return np.array([self.histograms[client] for client in clients], np.int64)


async def in_thread(function: Callable[[GroupingRequest], Plan], request: GroupingRequest) -> Plan:
    """A grouping of this process: solved aside, so that streams go on."""
    return await asyncio.to_thread(function, request)
