from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest

from fedgsp import wire
from fedgsp.connections import channels
from fedgsp.messages import (
    AttachTo,
    Constant,
    Failure,
    FailureCode,
    Hello,
    Leave,
    MakeConstants,
    NodeMessage,
    TensorSpec,
    TopServerMessage,
    Welcome,
)
from fedgsp.v1 import membership_pb2, membership_pb2_grpc
from tests.support.hellos import bare, hello, membership
from tests.support.serving import serving
from top_server.nodes.membership import Membership
from top_server.nodes.servicer import MembershipServicer

FINISHED = Leave(True, "the run is finished")


class Stay:
    """A node's stream, one message at a time."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.call = membership_pb2_grpc.MembershipServiceStub(channel).Join()

    async def say(self, said: Hello | None) -> None:
        await self.call.write(wire.encode(NodeMessage(said)))

    async def hear(self) -> Any:
        proto = await self.call.read()
        return None if proto is grpc.aio.EOF else bare(wire.decode(TopServerMessage, proto).kind)


@asynccontextmanager
async def doors(members: Membership) -> AsyncIterator[grpc.aio.Channel]:
    servicer = MembershipServicer(members)
    async with serving(
        lambda server: membership_pb2_grpc.add_MembershipServiceServicer_to_server(servicer, server)
    ) as served:
        yield served.channel


async def test_a_node_stays_from_its_hello_to_the_end_of_its_stream() -> None:
    members, recorder = membership()
    manager = AttachTo("m0", "0.0.0.0:7001")
    async with doors(members) as channel:
        stay = Stay(channel)
        await stay.say(hello())
        assert await stay.hear() == Welcome("run-1")
        members.attach("n0", manager)
        assert await stay.hear() == manager
        assert members.nodes == 1
        stay.call.cancel()
        await recorder.until("node_left")
    assert members.nodes == 0


async def test_a_node_may_stop_talking_and_go_on_listening() -> None:
    members, _ = membership()
    async with doors(members) as channel:
        stay = Stay(channel)
        await stay.say(hello())
        await stay.call.done_writing()
        assert await stay.hear() == Welcome("run-1")
        members.attach("n0", AttachTo("m0", "127.0.0.1:7001"))
        assert isinstance(await stay.hear(), AttachTo)
        assert members.nodes == 1
        stay.call.cancel()


async def test_a_node_with_constants_makes_them_before_it_is_admitted() -> None:
    members, _ = membership(constants_seed=7)
    body = Constant(TensorSpec("body", "float32", (2,), trainable=False))
    async with doors(members) as channel:
        stay = Stay(channel)
        await stay.say(hello(constants=(body,)))
        assert await stay.hear() == MakeConstants(7)
        assert members.nodes == 0
        made = dataclasses.replace(body, digest=b"1" * 32)
        await stay.say(hello(constants=(made,)))
        assert await stay.hear() == Welcome("run-1")
        assert members.constants == {"body": b"1" * 32}


@pytest.mark.parametrize("second", [None, hello("n1")])
async def test_a_node_that_does_not_make_its_constants_is_rejected(second: Hello | None) -> None:
    members, _ = membership()
    async with doors(members) as channel:
        stay = Stay(channel)
        await stay.say(hello(constants=(Constant(TensorSpec("body", "float32", (2,))),)))
        assert await stay.hear() == MakeConstants(0)
        await stay.say(second)
        with pytest.raises(grpc.aio.AioRpcError, match="the second message must have the constants"):
            await stay.hear()
        assert members.nodes == 0


async def test_a_refused_node_is_told_why_and_its_stream_ends() -> None:
    members, _ = membership()
    async with doors(members) as channel:
        stay = Stay(channel)
        await stay.say(hello(task="mnist"))
        refusal = await stay.hear()
        assert isinstance(refusal, Failure)
        assert refusal.code is FailureCode.WRONG_TASK
        assert await stay.hear() is None
        assert await stay.call.code() is grpc.StatusCode.OK


async def test_of_two_nodes_with_one_client_the_first_stays() -> None:
    members, recorder = membership()
    async with doors(members) as channel:
        first, second = Stay(channel), Stay(channel)
        await first.say(hello("n0", (0, 1)))
        assert await first.hear() == Welcome("run-1")
        await second.say(hello("n1", (1, 2)))
        refusal = await second.hear()
        assert refusal.code is FailureCode.CLIENT_TAKEN
        assert (kept := members.member(1)) is not None
        assert (kept.node, kept.peer_address, kept.samples) == ("n0", "127.0.0.1:7000", 11)
        first.call.cancel()
        await recorder.until("node_left")
        again = Stay(channel)
        await again.say(hello("n1", (1, 2)))
        assert await again.hear() == Welcome("run-1")
        again.call.cancel()


async def test_dismissed_nodes_hear_it_as_their_last_message() -> None:
    members, _ = membership()
    async with doors(members) as channel:
        stays = [Stay(channel) for _ in range(3)]
        for number, stay in enumerate(stays):
            await stay.say(hello(f"n{number}", (number,)))
            await stay.hear()
        await members.dismiss(FINISHED, 10)
        assert members.nodes == 0
        for stay in stays:
            assert [await stay.hear(), await stay.hear()] == [FINISHED, None]
        late = Stay(channel)
        await late.say(hello())
        assert (await late.hear()).code is FailureCode.RUN_OVER


async def rejected(call: Awaitable[Any]) -> str:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    return caught.value.details() or ""


@pytest.mark.parametrize(
    "first",
    [
        membership_pb2.NodeMessage(),
        membership_pb2.NodeMessage(hello=membership_pb2.Hello()),
        wire.encode(NodeMessage(hello(""))),
    ],
    ids=["unset oneof", "empty hello", "no name"],
)
async def test_a_node_must_introduce_itself(first: membership_pb2.NodeMessage) -> None:
    members, recorder = membership()
    async with doors(members) as channel:
        stay = Stay(channel)
        await stay.call.write(first)
        assert await rejected(stay.hear()) == "the first message must introduce the node"
    assert recorder.events == []


async def test_a_node_that_ends_without_a_word_is_rejected() -> None:
    members, _ = membership()
    async with doors(members) as channel:
        stay = Stay(channel)
        await stay.call.done_writing()
        assert "must introduce" in await rejected(stay.hear())


async def test_a_node_that_says_nothing_is_not_waited_for_forever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channels, "HELLO_TIMEOUT_S", 0.05)
    members, _ = membership()
    async with doors(members) as channel:
        assert "must introduce" in await rejected(Stay(channel).hear())


async def test_further_messages_of_a_node_change_nothing() -> None:
    members, _ = membership()
    async with doors(members) as channel:
        stay = Stay(channel)
        await stay.say(hello())
        assert await stay.hear() == Welcome("run-1")
        for said in (hello("n7", (7,)), None):
            await stay.say(said)
        members.attach("n0", AttachTo("m0", "127.0.0.1:7001"))
        assert isinstance(await stay.hear(), AttachTo)
        assert list(members.clients) == [0, 1]
        stay.call.cancel()


async def test_a_node_that_would_be_refused_anyway_makes_no_constants() -> None:
    members, recorder = membership()
    body = Constant(TensorSpec("body", "float32", (2,), trainable=False))
    async with doors(members) as channel:
        stay = Stay(channel)
        await stay.say(hello(task="another", constants=(body,)))
        refused = await stay.hear()
        assert isinstance(refused, Failure)
        assert refused.code is FailureCode.WRONG_TASK
    assert [event["node"] for event in recorder.of_kind("node_refused")] == ["n0"]
