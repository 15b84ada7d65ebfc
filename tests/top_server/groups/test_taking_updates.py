"""Updates come in at once from many clients, and the spool is for one thread at a time."""

from __future__ import annotations

import asyncio
import threading
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from fedgsp.messages import (
    Failure,
    FailureCode,
    GroupEvent,
    Member,
    MemberDone,
    ModelRef,
    RelayMode,
    Reveal,
    RunGroupRequest,
    TensorSpec,
    Trained,
)
from fedgsp.tensors.weights import Weights
from tests.support.recorder import Recorder
from top_server.groups.task import Trace
from top_server.groups.watch import GroupWatch
from top_server.progress import Progress
from top_server.record.audit import NO_AUDIT
from top_server.reveals.spool import UpdateSpool
from top_server.reveals.updates import Updates

LENGTH = 4096


def shown(client: int, length: int = LENGTH) -> Weights:
    specs = (TensorSpec("update", "float32", (length,)),)
    return Weights.of({"update": np.full(length, client + 1, np.float32)}, specs)


async def taken(spool: UpdateSpool, answers: dict[int, Weights | Failure]) -> Recorder:
    """What the top server does with these, all at once."""

    async def take(ref: ModelRef, *_: Any) -> Weights | Failure:
        await asyncio.sleep(0)
        return answers[int(ref.id)]

    journal = Recorder()
    membership = SimpleNamespace(note_offence=lambda _: None, certificate=lambda _: b"")
    context: Any = SimpleNamespace(journal=journal, audit=NO_AUDIT, membership=membership)
    manager: Any = SimpleNamespace(client=SimpleNamespace(take=take), name="m0")
    members = tuple(Member(client, "n0") for client in answers)
    request = RunGroupRequest(
        *("run", 1, 0, "parallel", members, ModelRef("start"), "", RelayMode.AUTO, False, None, 1.0, 40),
        reveal=Reveal("exact"),
    )
    watch = GroupWatch(context, Progress(), request, manager, Trace(), Updates(spool, LENGTH, 1 << 20))
    for client in answers:
        watch(GroupEvent(MemberDone(client, 0, Trained(ModelRef("m"), update=ModelRef(str(client))))))
    await watch.all_taken()
    return journal


class Crowded(UpdateSpool):
    """Notes whether two threads were in `put` together: the first in waits a moment for a second one."""

    together = False

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._door = threading.Barrier(2, timeout=0.05)

    def put(self, client: int, vector: np.ndarray) -> None:
        try:
            self._door.wait()
            self.together = True
        except threading.BrokenBarrierError:
            self._door.reset()
        super().put(client, vector)


async def test_the_spool_is_used_by_one_thread_at_a_time(tmp_path: Path) -> None:
    with closing(Crowded(tmp_path)) as spool:
        await taken(spool, {client: shown(client) for client in range(4)})
        assert not spool.together
        np.testing.assert_array_equal(np.diagonal(spool.gram(range(4))) / LENGTH, (np.arange(4) + 1) ** 2)


async def test_one_that_cannot_be_used_is_told_and_known_no_more(tmp_path: Path) -> None:
    with closing(UpdateSpool(tmp_path)) as spool:
        spool.put(0, np.ones(LENGTH, np.float32))
        lost = Failure(FailureCode.NODE_LOST, "gone")
        journal = await taken(spool, {0: lost, 1: shown(1, length=7), 2: shown(2)})
        assert spool.clients == (2,)
        assert {event["client"] for event in journal.events if event["event"] == "update_missing"} == {0, 1}
