"""The answer by which a server shows who it is comes before its first message, and with its status again."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import grpc.aio
import pytest

from fedgsp.connections.channels import refuse
from fedgsp.security.access import ANSWER, QUESTION
from fedgsp.security.proofs import UnprovenError, prove
from fedgsp.v1 import group_pb2, group_pb2_grpc
from tests.support.callers import shown_by
from tests.support.serving import serving


class Refusing(group_pb2_grpc.GroupServiceServicer):
    """A manager that refuses every group at once."""

    async def RunGroup(self, request: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802
        yield shown_by()
        await refuse(context, grpc.StatusCode.INVALID_ARGUMENT, "no such program")


async def test_a_refusal_has_the_answer_with_its_status_again() -> None:
    def register(server: grpc.aio.Server) -> None:
        group_pb2_grpc.add_GroupServiceServicer_to_server(Refusing(), server)  # type: ignore[abstract]

    async with serving(register) as served:
        stub = group_pb2_grpc.GroupServiceStub(served.channel)
        call = stub.RunGroup(group_pb2.RunGroupRequest(), metadata=((QUESTION, "who?"),))
        with pytest.raises(grpc.aio.AioRpcError, match="no such program"):
            [_ async for _ in call]
        first, last = dict(await call.initial_metadata()), dict(await call.trailing_metadata())
    assert last[ANSWER] == first[ANSWER] != b""


class Ended:
    """A call of which nothing is seen but its status: gRPC may overlook what came just before."""

    def __init__(self, trailing: tuple[tuple[str, bytes], ...]) -> None:
        self._trailing = trailing

    async def initial_metadata(self) -> tuple[()]:
        return ()

    async def trailing_metadata(self) -> tuple[tuple[str, bytes], ...]:
        return self._trailing

    async def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.OK


async def _nothing() -> AsyncIterator[Any]:
    messages: tuple[Any, ...] = ()
    for message in messages:
        yield message


async def test_an_answer_that_comes_with_the_status_alone_is_a_proof_and_another_one_is_not() -> None:
    def is_right(shown: bytes) -> bool:
        return shown == b"right"

    await prove(Ended(((ANSWER, b"right"),)), _nothing(), is_right)
    for trailing in ((), ((ANSWER, b"wrong"),)):
        with pytest.raises(UnprovenError):
            await prove(Ended(trailing), _nothing(), is_right)
