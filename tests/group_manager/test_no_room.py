"""A manager without memory or disk for a model: the group ends with that reason, and no member is blamed."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from fedgsp import wire
from fedgsp.memory import room
from fedgsp.messages import Failure, GroupEvent, GroupResult, MemberDone, MemberSkipped, RelayMode
from fedgsp.v1 import group_pb2_grpc
from fedgsp_node import attachment
from group_manager import models
from tests.support.real_manager import Manager, manager, node, request
from top_server.groups.watch import OFFENCES


async def play(m: Manager, program: str, **changes: Any) -> list[GroupEvent]:
    stub = group_pb2_grpc.GroupServiceStub(m.channel)
    asked = dataclasses.replace(request(program), start_address=m.top_address, **changes)
    return [wire.decode(GroupEvent, event) async for event in stub.RunGroup(wire.encode(asked))]


def full(_: int) -> np.ndarray:
    raise MemoryError


@pytest.mark.parametrize("program", ["relay", "parallel"])
async def test_a_manager_that_is_full_ends_the_group_and_blames_no_member(
    program: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attachment, "AGAIN_AFTER_S", 0.0)
    async with manager(full) as m, node(m, "n0"), node(m, "n1"):
        *events, last = await play(m, program)
    assert isinstance(last.kind, Failure)
    assert "for which there is no memory" in last.kind.detail
    skipped = [event.kind.failure for event in events if isinstance(event.kind, MemberSkipped)]
    assert not {failure and failure.code for failure in skipped} & {*OFFENCES}
    if program == "relay":
        assert last.kind.detail.startswith("the group manager is full: model 'run/1/0/")
        assert skipped == []  # nobody trains again in vain


@pytest.mark.parametrize("program", ["relay", "parallel", "evaluate"])
async def test_a_start_for_which_there_is_no_room_ends_the_group(
    program: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(models, "growing_room", full)
    async with manager() as m, node(m, "n0"), node(m, "n1"):
        *_, last = await play(m, program, relay=RelayMode.MANAGER)
    assert isinstance(last.kind, Failure)
    why = "model 'start' has 472 bytes, for which there is no memory"
    assert last.kind.detail == f"the group manager is full: {why}; make room on its machine"


async def test_an_upload_that_finds_room_at_the_second_try_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attachment, "AGAIN_AFTER_S", 0.0)
    tries = 0

    def full_at_first(size: int) -> np.ndarray:
        nonlocal tries
        tries += 1
        return room(size) if tries > 1 else full(size)

    async with manager(full_at_first) as m, node(m, "n0"), node(m, "n1"):
        *events, last = await play(m, "relay")
    assert isinstance(last.kind, GroupResult)
    assert sorted(event.kind.client for event in events if isinstance(event.kind, MemberDone)) == [0, 1, 2]
