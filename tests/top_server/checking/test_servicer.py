from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc.aio
import pytest

from fedgsp import wire
from fedgsp.messages import (
    MOST_ECHO_BYTES,
    PROTOCOL,
    About,
    AskAbout,
    CheckAnswer,
    CheckQuestion,
    Echo,
    Failure,
    FailureCode,
    WouldTake,
)
from fedgsp.v1 import check_pb2, check_pb2_grpc
from tests.support.callers import ANYBODY
from tests.support.hellos import hello, membership
from tests.support.recorder import Recorder
from tests.support.serving import serving
from top_server.checking import servicer as module
from top_server.checking.listener import ManagerDoor
from top_server.checking.servicer import CheckServicer
from top_server.nodes.membership import Membership


async def no_port(port: int) -> Any:
    raise AssertionError("nobody has asked for it")


@asynccontextmanager
async def asking(**about: Any) -> AsyncIterator[tuple[Any, Membership, Recorder]]:
    members, recorder = membership()
    door = ManagerDoor(no_port, [])
    async with serving(CheckServicer(members, door, **about).add_to) as served:
        yield check_pb2_grpc.CheckServiceStub(served.channel), members, recorder


async def answers(stub: Any, *questions: object) -> list[object]:
    call = stub.Check()
    for question in questions:
        await call.write(question if isinstance(question, check_pb2.CheckQuestion) else wire.encode(of(question)))
    await call.done_writing()
    return [wire.decode(CheckAnswer, proto).kind async for proto in call]


def of(question: Any) -> CheckQuestion:
    return CheckQuestion(question)


async def code_of(stub: Any, *questions: object) -> grpc.StatusCode:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await answers(stub, *questions)
    code: grpc.StatusCode = caught.value.code()
    return code


async def test_each_question_has_its_answer_in_turn() -> None:
    own = {"fedgsp": "1.2"}
    async with asking(ports="7100-7199", clock=lambda: 12.5, own=own) as (stub, members, recorder):
        found = await answers(stub, AskAbout(PROTOCOL), Echo(b"x" * MOST_ECHO_BYTES), hello(), AskAbout(0))
        about = About(PROTOCOL, own, 12.5, "", "7100-7199")
        assert found == [about, Echo(b"x" * MOST_ECHO_BYTES), WouldTake(False, False), about]
        assert (members.nodes, recorder.events) == (0, [])


async def test_a_node_that_could_not_join_hears_why_and_no_join_is_recorded() -> None:
    async with asking() as (stub, members, recorder):
        await members.admit(hello("first"), ANYBODY)
        before = list(recorder.events)
        (refused,) = await answers(stub, hello("other", (1,)))
        assert isinstance(refused, Failure)
        assert refused.code is FailureCode.CLIENT_TAKEN
        assert "first" not in refused.detail
        assert recorder.events == before


@pytest.mark.parametrize(
    ("changes", "taken"),
    [
        ({}, WouldTake(False, False)),
        ({"task_digest": bytes(32)}, WouldTake(True, False)),
        ({"torch": "0.1"}, WouldTake(False, True)),
        ({"task_digest": b"", "torch": ""}, WouldTake(False, False)),  # not known
    ],
)
async def test_what_differs_from_the_first_node_is_told(changes: dict[str, Any], taken: WouldTake) -> None:
    async with asking() as (stub, members, _):
        await members.admit(hello("first", task_digest=b"\1" * 32, torch="2.0"), ANYBODY)
        same = {"task_digest": b"\1" * 32, "torch": "2.0"}
        assert await answers(stub, hello("other", (7,), **{**same, **changes})) == [taken]


async def test_a_call_is_limited_in_questions_bytes_and_time(monkeypatch: pytest.MonkeyPatch) -> None:
    async with asking() as (stub, *_):
        assert await code_of(stub, *[Echo(b"")] * (module.MOST_QUESTIONS + 1)) is grpc.StatusCode.ABORTED
        assert await code_of(stub, Echo(bytes(MOST_ECHO_BYTES + 1))) is grpc.StatusCode.INVALID_ARGUMENT
        assert await code_of(stub, check_pb2.CheckQuestion()) is grpc.StatusCode.INVALID_ARGUMENT
        monkeypatch.setattr(module, "MOST_S", 0.05)
        call = stub.Check()
        await call.write(wire.encode(of(Echo(b""))))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            async for _ in call:
                pass
        assert caught.value.code() is grpc.StatusCode.ABORTED
