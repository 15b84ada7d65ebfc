"""Two processes are started with the name of one node. Without TLS, nothing says which of them is the node."""

from __future__ import annotations

import grpc
import grpc.aio
import pytest

from fedgsp.identity import TOP_SERVER, Identity, may_replace, node, worker
from fedgsp.messages import Attached, Failure, FailureCode, NodeReport
from fedgsp.security.access import Caller
from fedgsp.security.tickets import Ticket, Verb
from group_manager.members import Members
from tests.group_manager.test_server import ORDER, Stream, order_service
from tests.security.test_receipts import Site
from tests.support.certificates import Authority
from tests.support.fuzzing import soon
from tests.support.hellos import hello, membership
from top_server.nodes.node import Node

#: Two processes of this user without TLS, both of which say that they are n0.
USER = Ticket(Verb.JOIN, "n0", node("n0"))
FIRST = Caller(None, USER, address="10.0.0.1:51000", process="first")
SECOND = Caller(None, USER, address="10.0.0.2:52000", process="second")
#: The same as the second one, of a top server with --insecure.
STRANGER = Caller(None, None, address="10.0.0.2:52000", process="second")


@pytest.mark.parametrize(
    ("newer", "older", "same_process", "replaces"),
    [
        (None, None, True, True),
        (None, None, False, False),
        (node("n0"), node("n0"), False, True),
        (worker("n0"), worker("n0"), False, True),
        (TOP_SERVER, TOP_SERVER, False, False),  # local nodes share the certificate of the run
        (TOP_SERVER, TOP_SERVER, True, True),
        (node("n0"), worker("n0"), True, False),
        (node("n1"), node("n1"), False, False),
        (None, node("n0"), True, False),
        (node("n0"), None, True, False),
    ],
    ids=repr,
)
def test_who_takes_the_place_of_a_connection(
    newer: Identity | None, older: Identity | None, same_process: bool, replaces: bool
) -> None:
    assert may_replace("n0", newer, older, same_process) is replaces


async def test_the_top_server_refuses_the_second_process_and_names_the_first() -> None:
    members, recorder = membership()
    first = await members.admit(hello("n0"), FIRST)
    assert isinstance(first, Node)
    refused = await members.admit(hello("n0"), SECOND)
    assert isinstance(refused, Failure)
    assert refused.code is FailureCode.NAME_TAKEN
    assert refused.detail == (
        "a node named 'n0' is already part of the run, from 10.0.0.1:51000: end that process if it is an old one of"
        " this node, or give this one another --name"
    )
    stranger = await members.admit(hello("n0"), STRANGER)
    assert isinstance(stranger, Failure)
    assert "10.0.0.1" not in stranger.detail
    for event in recorder.of_kind("node_refused"):
        assert "from 10.0.0.1:51000" in event["reason"]
    assert members.nodes == 1
    assert not first.outbox.empty()  # the welcome
    await members.leave(first, "its stream was lost")
    assert isinstance(await members.admit(hello("n0"), SECOND), Node), "the first one has ended"


async def test_a_process_that_lost_its_network_is_back_at_once_without_tls_too() -> None:
    members, recorder = membership()
    first = await members.admit(hello("n0"), FIRST)
    assert isinstance(await members.admit(hello("n0"), FIRST), Node)
    assert isinstance(first, Node)
    assert members.nodes == 1
    assert recorder.of_kind("node_left")[0]["reason"] == "it has joined anew"
    assert not recorder.of_kind("identity_used_twice")


async def test_a_manager_refuses_the_second_process_until_the_first_one_has_ended() -> None:
    async with order_service() as (members, channel):
        first, second = Stream(channel, "first"), Stream(channel, "second")
        first.say(NodeReport(Attached("run", "n1", "m0")))
        await soon(members.wait_for({"n1"}, 10))
        pending = members.submit("n1", ORDER)
        assert await soon(first.order()) == ORDER
        second.say(NodeReport(Attached("run", "n1", "m0")))
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await soon(second.order())
        assert refused.value.code() is grpc.StatusCode.ALREADY_EXISTS
        assert "is attached as node n1: end that one" in str(refused.value.details())
        assert "another --name" in str(refused.value.details())
        assert not pending.outcome.done(), "the first one keeps its orders"
        first.call.cancel()
        assert isinstance(await soon(pending.outcome), Failure)
        restarted = Stream(channel, "third")
        restarted.say(NodeReport(Attached("run", "n1", "m0")))
        await soon(members.wait_for({"n1"}, 10))
        members.submit("n1", ORDER)
        assert await soon(restarted.order()) == ORDER
        for stream in (second, restarted):
            stream.say(None)


async def test_what_the_second_process_is_told_has_the_address_of_the_first() -> None:
    members = Members(2.0)
    session = await members.attach("n1", process="first")
    session.address = "10.0.0.1:51000"
    assert "another process at 10.0.0.1:51000 is attached as node n1" in members.in_the_way("n1", b"", "second")
    assert members.in_the_way("n1", b"", "first") == ""
    assert members.in_the_way("n2", b"", "second") == ""
    await members.detach(session, session.outbox)
    assert members.in_the_way("n1", b"", "second") == "", "a node that was restarted is there at once"


async def test_a_certificate_of_the_node_takes_the_place_and_that_of_the_run_does_not(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    authority = Authority(tmp_path_factory.mktemp("ca"))
    own, again = (Site(authority, "n1").signer.certificate for _ in range(2))
    shared = authority.issue("top", identity=TOP_SERVER).cert.read_bytes()
    for older, newer, waits in ((own, own, False), (own, again, False), (shared, shared, True), (own, b"", True)):
        members = Members(2.0)
        await members.attach("n1", older, "first")
        assert bool(members.in_the_way("n1", newer, "second")) is waits
