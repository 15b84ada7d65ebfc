"""The table is kept to on every server, for every kind of call, before a message is read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc.aio
import pytest

from fedgsp.identity import node
from fedgsp.limits import calls
from fedgsp.security.access import RULES, TICKET, AccessControl, caller
from fedgsp.security.tickets import Door, Ticket, Verb, issue, new_key
from tests.support.fuzzing import SOON_S
from tests.support.serving import serving

KEY = new_key()
KINDS = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")


def register(read: list[bytes], path: str, kind: str) -> Any:
    """A call of this kind that notes what it reads and says who calls."""

    async def one(request: Any, context: Any) -> bytes:
        read.append(request if isinstance(request, bytes) else await anext(aiter(request)))
        return str(caller().asks).encode()

    async def many(request: Any, context: Any) -> AsyncIterator[bytes]:
        yield await one(request, context)

    service, method = path[1:].split("/")
    behaviour = many if kind.endswith("stream") else one
    handler = getattr(grpc, f"{kind}_rpc_method_handler")(behaviour)
    return lambda server: server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(service, {method: handler}),)
    )


async def answer(channel: grpc.aio.Channel, path: str, kind: str, shown: bytes | None) -> bytes:
    metadata = ((TICKET, shown),) if shown is not None else ()
    call = getattr(channel, kind)(path)(b"hello" if kind.startswith("unary") else _once(), metadata=metadata)
    return await call if kind.endswith("unary") else await anext(aiter(call))


async def _once() -> AsyncIterator[bytes]:
    yield b"hello"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("path", [*RULES, "/fedgsp.v1.GroupService/New", "/other.Service/Call"])
async def test_no_call_is_served_without_its_ticket_or_outside_the_table(path: str, kind: str) -> None:
    read: list[bytes] = []
    rule = RULES.get(path)
    guard = AccessControl(dict.fromkeys(Verb, Door(KEY)), tls=False)
    good = issue(KEY, Ticket(rule.verb if rule else Verb.LEAD, "this", node("n0")))
    others = [issue(KEY, Ticket(verb, "this", node("n0"))) for verb in Verb if rule is None or verb is not rule.verb]
    async with serving(register(read, path, kind), access=guard) as served:
        for shown in (None, b"", issue(new_key(), Ticket(Verb.LEAD, "this", node("n0"))), *others):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await answer(served.channel, path, kind, shown)
            assert caught.value.code() in (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.INTERNAL)
        assert read == []
        if rule is not None:
            assert await answer(served.channel, path, kind, good) == b"this"
            assert read == [b"hello"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("path", RULES)
async def test_a_call_is_judged_before_its_message_has_come_and_waits_for_it_no_longer_than_it_may(
    path: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "FIRST_MESSAGE_S", 0.02)
    guard = AccessControl(dict.fromkeys(Verb, Door(KEY)), tls=False)
    good = issue(KEY, Ticket(RULES[path].verb, "this", node("n0")))
    # On the wire, a call with one request is a stream of one message, and here not even its first byte comes.
    silent = "stream_" + kind.partition("_")[2]
    async with serving(register([], path, kind), access=guard) as served:
        for shown, code in ((b"", grpc.StatusCode.PERMISSION_DENIED), (good, grpc.StatusCode.DEADLINE_EXCEEDED)):
            call = getattr(served.channel, silent)(path)(metadata=((TICKET, shown),))
            async with asyncio.timeout(SOON_S):
                assert await call.code() is code
            call.cancel()


async def test_a_server_serves_only_the_verbs_that_it_has_doors_for() -> None:
    path, read = "/fedgsp.v1.GroupService/Forget", list[bytes]()
    guard = AccessControl({Verb.FETCH: Door(KEY)}, tls=False)
    async with serving(register(read, path, "unary_unary"), access=guard) as served:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await answer(served.channel, path, "unary_unary", issue(KEY, Ticket(Verb.LEAD, "", node("n0"))))
    assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
    assert read == []


@pytest.mark.parametrize("shown", [None, b"noise"])
async def test_a_call_that_needs_no_ticket_still_reads_a_good_one(shown: bytes | None) -> None:
    path, read = "/fedgsp.v1.MembershipService/Join", list[bytes]()
    guard = AccessControl({Verb.JOIN: Door(KEY)}, tls=False, without_ticket=[Verb.JOIN])
    async with serving(register(read, path, "stream_stream"), access=guard) as served:
        assert await answer(served.channel, path, "stream_stream", shown) == b""
        good = issue(KEY, Ticket(Verb.JOIN, "question", node("n0")))
        assert await answer(served.channel, path, "stream_stream", good) == b"question"


async def test_refusals_are_logged_with_their_reason_but_not_one_by_one(caplog: pytest.LogCaptureFixture) -> None:
    path = "/fedgsp.v1.MembershipService/Join"
    guard = AccessControl({Verb.JOIN: Door(KEY)}, tls=False)
    async with serving(register([], path, "unary_unary"), access=guard) as served:
        for _ in range(25):
            with pytest.raises(grpc.aio.AioRpcError):
                await answer(served.channel, path, "unary_unary", None)
    lines = [line for line in caplog.messages if line.startswith(f"refused {path}")]
    assert ["(1 times so far)" in lines[0], "(10 times so far)" in lines[1], len(lines)] == [True, True, 2]
