"""A group manager's inside with scripted nodes: its real members, group and programs, and real stores."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field

import grpc.aio

from fedgsp.connections.channels import Channels
from fedgsp.messages import (
    Failure,
    FailureCode,
    GroupEvent,
    GroupResult,
    Member,
    MemberDone,
    MemberSkipped,
    Order,
    RelayMode,
    Rerouted,
    RunGroupRequest,
    Source,
    SourceKind,
    Start,
    Train,
    TrainingSettings,
)
from fedgsp.tensors.weights import Weights, WeightsError
from fedgsp.transfers.model_service import ModelServicer
from fedgsp.transfers.model_store import ModelStore
from group_manager.group import Group
from group_manager.members import Members
from group_manager.room_ahead import AHEAD_BYTES, TRANSFERS, RoomAhead
from group_manager.shelves import Shelves
from tests.support.callers import ISSUER
from tests.support.clock import Clock
from tests.support.faults import Faults
from tests.support.scripted import STALL_TIMEOUT_S, ScriptedNode, let_others_run, model, value_of
from tests.support.serving import serving

MANAGER = Source(SourceKind.MANAGER, "m0", "manager:1")
START = 1.0

#: (client, w) -> the client's w.
Rule = Callable[[int, float], float]


def step(client: int, w: float) -> float:
    return 0.9 * w + client


def relayed(clients: Sequence[int], rule: Rule = step) -> float:
    """What a relay through these clients must give."""
    w = START
    for client in clients:
        w = rule(client, w)
    return w


def hosted(**clients: Sequence[int]) -> list[Member]:
    """Members in the order of their ids, by node: hosted(n1=[0, 2], n2=[1])."""
    where = {client: node for node, ids in clients.items() for client in ids}
    return [Member(client, where[client], f"{where[client]}:1", client + 1) for client in sorted(where)]


@dataclass
class Scene:
    """Everything that a program touches."""

    channels: Channels
    top_server: ModelStore
    top_address: str
    faults: Faults
    rule: Rule
    samples: Mapping[int, int]
    members: Members = field(default_factory=Members)
    store: ModelStore = field(default_factory=ModelStore)
    clock: Clock = field(default_factory=Clock)
    nodes: dict[str, ScriptedNode] = field(default_factory=dict)
    events: list[GroupEvent] = field(default_factory=list)
    #: Set when a client's order was answered.
    answered: defaultdict[int, asyncio.Event] = field(default_factory=lambda: defaultdict(asyncio.Event))
    #: Set when the top server was told what became of a client.
    told: defaultdict[int, asyncio.Event] = field(default_factory=lambda: defaultdict(asyncio.Event))
    #: Set when a client's order is held.
    holding: asyncio.Event = field(default_factory=asyncio.Event)
    trained: list[int] = field(default_factory=list)
    #: Nodes that were asked for a model, in order, and the event of each; most models at the manager at once.
    asked_of: list[str] = field(default_factory=list)
    asked: defaultdict[str, asyncio.Event] = field(default_factory=lambda: defaultdict(asyncio.Event))
    most_here: int = 0
    shelves: Shelves = field(init=False)
    numbers: Iterator[int] = field(default_factory=itertools.count)
    group: Group | None = None
    most_open: int = 0
    _open: int = 0
    room: RoomAhead = field(default_factory=RoomAhead)

    def __post_init__(self) -> None:
        self.shelves = Shelves(self.store, self.room)

    def request(self, members: Sequence[Member], program: str, **changes: object) -> RunGroupRequest:
        settings: dict[str, object] = {
            "round": 1,
            "group": 0,
            "start": model(START).ref("start"),
            "start_address": self.top_address,
            "relay": RelayMode.AUTO,
            "shuffle": False,
            "training": TrainingSettings("sgd", 1, 5, 0.01, 0),
            "stall_timeout_s": STALL_TIMEOUT_S,
            "max_model_bytes": 8,
        }
        there = tuple(self._as_joined(member) for member in members)
        return RunGroupRequest("run", program=program, members=there, **{**settings, **changes})  # type: ignore[arg-type]

    def _as_joined(self, member: Member) -> Member:
        """The member with the samples that its node reports. It counts by them unless a test says otherwise."""
        samples = self.samples_of(member.client)
        return dataclasses.replace(member, samples=samples, weight=member.weight or float(samples))

    async def attach(self, members: Sequence[Member]) -> None:
        for name in dict.fromkeys(member.node for member in members):
            self.nodes[name] = ScriptedNode(name, self)
            await self.nodes[name].attach()

    async def run(self, members: Sequence[Member], program: str = "relay", **changes: object) -> GroupResult | Failure:
        """Runs a program to its end, and closes its group, as the servicer does."""
        if not self.nodes:
            await self.attach(members)
        return await self.run_request(self.request(members, program, **changes))

    async def run_request(self, request: RunGroupRequest) -> GroupResult | Failure:
        """The same with the request as the top server would send it; its nodes are attached."""
        self.group = Group(request, self.members, self.shelves.add(), self.channels, MANAGER, ISSUER, self._tell)
        result_id = ""
        try:
            outcome = await self.group.play()
            if isinstance(outcome, GroupResult) and outcome.ref is not None:
                result_id = outcome.ref.id
            return outcome
        finally:
            self.group.close(result_id)
            for node in self.nodes.values():
                await node.settle()

    async def deliver(self, source: Source, model_id: str) -> Weights:
        """What fetching from a source does."""
        match source.kind:
            case SourceKind.TOP_SERVER:
                return await self.top_server.get(model_id)
            case SourceKind.MANAGER:
                assert self.group is not None
                if model_id not in self.store:
                    await self.group.models.wanted(model_id)
                return await self.store.get(model_id)
            case SourceKind.NODE:
                if self.nodes[source.name].gone or self.faults.take("dial", source.name):
                    raise WeightsError(FailureCode.UNREACHABLE, f"node {source.name} cannot be dialled")
                if fault := self.faults.take("serve", source.name):
                    await self.nodes[source.name].store.get(model_id)
                    if fault.what != "withhold":
                        return model(1e6)
                    await let_others_run()  # now the manager waits for the reader, and its stall clock runs
                    self.clock.advance(STALL_TIMEOUT_S + 1)
                    await asyncio.Event().wait()
        return await self.nodes[source.name].store.get(model_id)

    def _tell(self, event: GroupEvent) -> None:
        self.events.append(event)
        if isinstance(event.kind, MemberDone | MemberSkipped):
            self.told[event.kind.client].set()

    @contextmanager
    def counted(self, order: Order) -> Iterator[None]:
        """Counts the training orders that a node has on its hands."""
        change = int(isinstance(order.work, Train))
        self._open += change
        self.most_open = max(self.most_open, self._open)
        try:
            yield
        finally:
            self._open -= change

    def samples_of(self, client: int) -> int:
        return self.samples.get(client, client + 1)

    @property
    def done(self) -> list[int]:
        """Clients reported done, in order."""
        return [event.kind.client for event in self.events if isinstance(event.kind, MemberDone)]

    @property
    def skipped(self) -> dict[int, Failure | None]:
        return {e.kind.client: e.kind.failure for e in self.events if isinstance(e.kind, MemberSkipped)}

    @property
    def rerouted(self) -> list[int]:
        return [event.kind.client for event in self.events if isinstance(event.kind, Rerouted)]

    def starts(self) -> dict[int, Start]:
        """How the clients' first training orders start."""
        found: dict[int, Start] = {}
        for node in self.nodes.values():
            for order in node.orders:
                if isinstance(order.work, Train) and order.work.start is not None:
                    found.setdefault(order.client, order.work.start)
        return found

    async def result(self, outcome: GroupResult | Failure) -> float:
        """The value of a program's model, which must be all that this manager still keeps."""
        assert isinstance(outcome, GroupResult), outcome
        assert outcome.ref is not None
        weights = await self.store.get(outcome.ref.id)
        assert weights.ref(outcome.ref.id) == outcome.ref
        self.assert_released(here=1)
        return value_of(weights)

    def assert_released(self, here: int = 0) -> None:
        """Nobody keeps a model of the group any more, but for so many at the manager."""
        assert len(self.store) == here
        assert {name: len(node.store) for name, node in self.nodes.items()} == dict.fromkeys(self.nodes, 0)


@asynccontextmanager
async def scene(
    faults: Faults | None = None,
    rule: Rule = step,
    samples: Mapping[int, int] | None = None,
    ahead_bytes: int = AHEAD_BYTES,
    transfers: int = TRANSFERS,
) -> AsyncIterator[Scene]:
    """A scene whose faults must all have happened when it ends."""
    top_server, faults = ModelStore(), faults or Faults()
    top_server.put("start", model(START))

    def serve_models(server: grpc.aio.Server) -> None:
        ModelServicer(top_server).add_to(server)

    async with serving(serve_models) as served, Channels() as channels:
        play = Scene(
            channels, top_server, served.address, faults, rule, samples or {}, room=RoomAhead(ahead_bytes, transfers)
        )
        yield play
        faults.check_used()
        for node in play.nodes.values():
            await node.leave()
            await node.settle()
