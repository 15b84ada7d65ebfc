"""A stage whose surveys are answered by a script in place of managers and nodes; results come over the wire."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from fedgsp.messages import GroupResult, HostedClient, ModelRef
from fedgsp.parts import NoOptions
from fedgsp.tensors.weights import Weights
from tests.support.callers import ANYBODY
from tests.support.hellos import hello
from tests.support.scripted import TENSORS
from tests.support.staged import Stage, stage
from top_server.groups import run
from top_server.groups.task import GroupOutcome, GroupTask
from top_server.managers.pool import Manager
from top_server.nodes.node import Node
from top_server.profiles.questions import Nothing
from top_server.progress import Progress
from top_server.run import RunContext

Answer = Callable[[GroupTask], GroupOutcome]


@dataclass
class Surveys:
    """What was asked, in order, and how it is answered."""

    stage: Stage
    answers: dict[str, Answer] = field(default_factory=dict)
    asked: list[GroupTask] = field(default_factory=list)
    numbers: itertools.count[int] = field(default_factory=itertools.count)

    def of(self, program: str) -> list[GroupTask]:
        return [task for task in self.asked if task.program == program]

    def made(self, weights: Weights) -> GroupResult:
        """A result that the manager holds."""
        model_id = f"made {next(self.numbers)}"
        self.stage.made.put(model_id, weights)
        return GroupResult(weights.ref(model_id), 0, 300, 45)

    def outcome(self, task: GroupTask, **fields: Any) -> GroupOutcome:
        nothing = GroupOutcome(task, self.stage.manager, GroupResult(ModelRef(""), 0, 0, 0), (), ())
        return dataclasses.replace(nothing, **fields)

    async def join(self, node: str, **clients: int) -> Node:
        """A node whose clients have so many samples: join("n1", c7=40)."""
        hosted = tuple(HostedClient(int(name[1:]), samples, 5) for name, samples in clients.items())
        joined = await self.stage.context.membership.admit(
            dataclasses.replace(hello(node, tensors=TENSORS), clients=hosted), ANYBODY
        )
        assert isinstance(joined, Node), joined
        return joined


@asynccontextmanager
async def surveyed(
    monkeypatch: pytest.MonkeyPatch,
    clients: int = 4,
    merge: str = "none",
    profile: Mapping[str, str] | None = None,
    **config: Any,
) -> AsyncIterator[Surveys]:
    """A run of so many clients whose profile has these options."""
    async with stage(merge, clients, **config) as play:
        surveys = Surveys(play)
        row = dataclasses.replace(play.context.scheme, options={"profile": dict(profile or {})})
        managers = cast("Any", OneManager(play.manager))
        play.context = dataclasses.replace(play.context, scheme=row, managers=managers)
        play.current = Nothing(play.context, play.progress, play.merging, NoOptions())

        async def run_group(
            context: RunContext, progress: Progress, round_number: int, task: GroupTask, *_: Any
        ) -> GroupOutcome:
            surveys.asked.append(task)
            return surveys.answers[task.program](task)

        monkeypatch.setattr(run, "run_group", run_group)
        yield surveys


@dataclass
class OneManager:
    """A pool of one manager."""

    manager: Manager
    discarded: list[Manager] = field(default_factory=list)

    async def ensure(self, count: int) -> list[Manager]:
        assert count == 1
        return [self.manager]

    async def discard(self, manager: Manager) -> None:
        self.discarded.append(manager)
