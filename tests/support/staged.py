"""A run without rounds: its members, models and store are real, and so is the manager that hands over results."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, cast

from fedgsp.channels import Channels
from fedgsp.messages import (
    Failure,
    FailureCode,
    GroupResult,
    MemberDone,
    MemberSkipped,
    ModelRef,
    RelayMode,
    Source,
    SourceKind,
    Trained,
)
from fedgsp.model_service import ModelServicer
from fedgsp.model_store import ModelStore
from fedgsp.settings.run import RunConfig
from fedgsp.v1 import group_pb2_grpc
from fedgsp.weights import Weights
from group_manager.members import Members
from group_manager.servicers import GroupServicer
from tests.support.hellos import hello
from tests.support.recorder import Recorder
from tests.support.scripted import TENSORS, model, value_of
from tests.support.serving import serving
from top_server.groups.task import GroupOutcome, GroupTask
from top_server.managers.client import ManagerClient
from top_server.managers.pool import Manager
from top_server.merging import MERGES
from top_server.models import INITIAL, Held
from top_server.nodes.membership import Membership
from top_server.run import Run
from top_server.schemes import SCHEMES

#: Value of the initial model.
START = 1.0


@dataclass
class Stage:
    """Clients have 10 + id samples, as `hello` says; a model is one float64."""

    run: Run
    journal: Recorder
    manager: Manager
    made: ModelStore  # what the manager holds for the top server
    numbers: itertools.count[int] = field(default_factory=itertools.count)

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
        return dataclasses.replace(outcome, models=models)

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
        return value_of(await self.run.models.weights(held))


@asynccontextmanager
async def stage(
    merge: str, clients: int = 4, options: Mapping[str, str] | None = None, scheme: str = "hcct", **config: Any
) -> AsyncIterator[Stage]:
    """A run of so many clients on one node, before its first round."""
    journal, made = Recorder(), ModelStore()
    membership = Membership("run", "digits", RelayMode.AUTO, journal)
    await membership.admit(hello("n0", tuple(range(clients)), tensors=TENSORS))

    def register(server: Any) -> None:
        servicer = GroupServicer(Members(), made, channels, Source(SourceKind.MANAGER, "m0"))
        group_pb2_grpc.add_GroupServiceServicer_to_server(servicer, server)
        ModelServicer(made).add_to(server)

    async with Channels() as channels, serving(register) as served:
        manager = Manager("m0", served.address, cast("Any", None), ManagerClient("m0", served.channel), 0)
        run = Run(
            "run",
            RunConfig(**config),
            SCHEMES[scheme],
            served.address,
            membership,
            cast("Any", None),
            cast("Any", None),
            ModelStore(),
            cast("Any", journal),
            {"profile": {}, "merge": dict(options or {}), "grouping": {}},
        )
        run.models.put([INITIAL], "run/initial", model(START))
        run.merging = MERGES[merge](run)
        await run.merging.prepare()
        yield Stage(run, journal, manager, made)
