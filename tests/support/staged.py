"""A run without rounds: its members, models and store are real, and so is the manager that hands over results."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from fedgsp.connections.channels import Channels
from fedgsp.messages import (
    Failure,
    FailureCode,
    GroupResult,
    MemberDone,
    MemberSkipped,
    ModelRef,
    RelayMode,
    Results,
    Source,
    SourceKind,
    Trained,
)
from fedgsp.parts import NoOptions
from fedgsp.security.tickets import Door
from fedgsp.settings.run import RunConfig
from fedgsp.tensors.weights import Weights
from fedgsp.transfers.model_service import ModelServicer
from fedgsp.transfers.model_store import ModelStore
from fedgsp.v1 import group_pb2_grpc
from group_manager.members import Members
from group_manager.server import GroupServicer
from tests.support.callers import ANYBODY, ISSUER, over
from tests.support.hellos import hello
from tests.support.recorder import Recorder
from tests.support.scripted import TENSORS, model, value_of
from tests.support.serving import serving
from top_server.evidence import Evidence
from top_server.groups.task import GroupOutcome, GroupTask
from top_server.managers.client import BrokenOff, ManagerClient
from top_server.managers.pool import Manager
from top_server.merging import MERGES, MergeSettings, Merging
from top_server.merging.base import Starts
from top_server.models import INITIAL, Held, Models
from top_server.nodes.membership import Membership
from top_server.profiles import PROFILES
from top_server.profiles.questions import Nothing
from top_server.progress import Progress
from top_server.record.directory import RunDirectory
from top_server.resume import state
from top_server.rounds import begin_merging, change_models, take_in
from top_server.run import RunContext
from top_server.schemes import SCHEMES

#: Value of the initial model.
START = 1.0


@dataclass
class Stage:
    """Clients have 10 + id samples, as `hello` says; a model is one float64."""

    context: RunContext
    progress: Progress
    merging: Merging
    store: ModelStore
    journal: Recorder
    manager: Manager
    made: ModelStore  # what the manager holds for the top server
    #: What is saved and restored with the rest.
    current: Any
    numbers: itertools.count[int] = field(default_factory=itertools.count)

    def profile(self, name: str) -> Any:
        """A profile with the options of the run's scheme."""
        part = PROFILES[name]
        return part.load()(self.context, self.progress, self.merging, part.read(self.context.scheme.given("profile")))

    def start(self, group: Iterable[int]) -> Starts:
        return self.merging.start(group, self.context.holdings(self.progress.local_models))

    def of(self, client: int) -> Held:
        return self.merging.of(client, self.context.models.slots)

    def untrained(self, client: int) -> str:
        return self.merging.untrained(client, self.context.models.slots)

    async def begin(self, number: int, evidence: Evidence) -> None:
        await begin_merging(self.context, self.merging, number, evidence)

    async def take(self, number: int, outcome: GroupOutcome) -> Failure | None:
        failure = await take_in(self.context, self.progress, self.merging, number, outcome)
        return failure.reason if isinstance(failure, BrokenOff) else failure

    async def finish(self, number: int) -> None:
        await change_models(self.context, lambda: self.merging.finish(number))

    async def save(self, folder: Path, number: int, files: Mapping[str, Path] | None = None) -> None:
        parts = (self.context, self.progress, self.merging, self.current)
        await state.save(*parts, RunDirectory(folder), number, files or {})

    async def restore(self, saved: state.Saved) -> None:
        await state.restore(self.context, self.progress, self.merging, self.current, saved)

    async def trained(
        self, clients: Iterable[int], value: float, number: int = 0, skipped: Mapping[int, str] | None = None
    ) -> GroupOutcome:
        """A group whose members' mean has this value."""
        members = tuple(clients)
        done = tuple(MemberDone(c, p, Trained(ModelRef(f"of {c}"), 10 + c)) for p, c in enumerate(members))
        model_id = f"result {next(self.numbers)}"
        self.made.put(model_id, model(value))
        result = GroupResult(model(value).ref(model_id), sum(10 + client for client in members), 0, 0)
        return self.outcome("parallel", result, done, number, skipped)

    def alone(self, refs: Mapping[int, ModelRef], skipped: Mapping[int, str] | None = None) -> GroupOutcome:
        """Clients that trained alone and keep their models."""
        done = tuple(MemberDone(c, p, Trained(ref, 10 + c)) for p, (c, ref) in enumerate(refs.items()))
        return self.outcome("alone", GroupResult(ModelRef(""), 0, 0, 0), done, 9, skipped)

    def collected(self, values: Mapping[int, float]) -> GroupOutcome:
        """Clients that trained alone, and whose models were handed over."""
        models: dict[int, Weights | Failure] = {client: model(value) for client, value in values.items()}
        refs = {client: model(value).ref(f"{next(self.numbers)}") for client, value in values.items()}
        outcome = self.alone(refs)
        task = dataclasses.replace(outcome.task, results=Results.COLLECTED)
        return dataclasses.replace(outcome, task=task, models=models)

    def outcome(
        self,
        program: str,
        result: GroupResult | Failure,
        done: tuple[MemberDone, ...] = (),
        number: int = 0,
        skipped: Mapping[int, str] | None = None,
        own_starts: Mapping[int, Held] | None = None,
    ) -> GroupOutcome:
        """`skipped` says of clients that their start could not be had, and why."""
        left_out = tuple(MemberSkipped(c, Failure(FailureCode.NO_SUCH_MODEL, d)) for c, d in (skipped or {}).items())
        clients = tuple(sorted({one.client for one in done} | {one.client for one in left_out}))
        task = GroupTask(number, program, clients, own_starts=own_starts or {})
        return GroupOutcome(task, self.manager, result, done, left_out)

    async def value(self, held: Held) -> float:
        return value_of(self.context.models.weights(held))


@asynccontextmanager
async def stage(
    merge: str, clients: int = 4, options: Mapping[str, str] | None = None, scheme: str = "hcct", **config: Any
) -> AsyncIterator[Stage]:
    """A run of so many clients on one node, before its first round."""
    journal, made = Recorder(), ModelStore()
    membership = Membership("run", "digits", RelayMode.AUTO, journal, ISSUER)
    await membership.admit(hello("n0", tuple(range(clients)), tensors=TENSORS), ANYBODY)

    def register(server: Any) -> None:
        servicer = GroupServicer(Members(), made, channels, Source(SourceKind.MANAGER, "m0"), ISSUER, Door())
        group_pb2_grpc.add_GroupServiceServicer_to_server(servicer, server)
        ModelServicer(made).add_to(server)

    async with Channels() as channels, serving(register) as served:
        manager = Manager("m0", served.address, cast("Any", None), ManagerClient("m0", over(served.channel), ISSUER))
        store = ModelStore()
        context = RunContext(
            run_id="run",
            config=RunConfig(**config),
            scheme=dataclasses.replace(SCHEMES[scheme], options={"merge": dict(options or {})}),
            address=served.address,
            membership=membership,
            managers=cast("Any", None),
            assign=cast("Any", None),
            models=Models(store),
            door=Door(),
            journal=cast("Any", journal),
        )
        context.models.put([INITIAL], "run/initial", model(START))
        read = MERGES[merge].read(context.scheme.given("merge"))
        merging: Merging = MERGES[merge].load()(MergeSettings("run", context.config.seed, context.scheme.lasts, read))
        context.models.apply(merging.prepare(context.models.slots))
        progress = Progress()
        yield Stage(
            context, progress, merging, store, journal, manager, made, Nothing(context, progress, merging, NoOptions())
        )
