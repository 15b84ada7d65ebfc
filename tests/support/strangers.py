"""A stranger who knows all names, the id of the run and the contract, and calls everything that a system serves."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import grpc.aio
import pytest

from fedgsp import wire
from fedgsp.identity import TOP_SERVER, manager, node
from fedgsp.messages import (
    Attached,
    CheckAnswer,
    CheckQuestion,
    Failure,
    Hosting,
    HostMessage,
    Member,
    ModelHeader,
    ModelRef,
    NodeMessage,
    NodeReport,
    RelayMode,
    Release,
    Results,
    Revoked,
    RunGroupRequest,
    TopServerMessage,
    TrainingSettings,
)
from fedgsp.security.access import RULES, TICKET
from fedgsp.security.certificates import new_key, request_for
from fedgsp.security.tickets import Issuer, Ticket, Verb
from fedgsp.security.tls import Tls
from fedgsp.settings.run import NodeSettings, RunConfig
from fedgsp.v1 import check_pb2, enrolment_pb2, grouping_pb2, membership_pb2, model_pb2
from fedgsp_node.clients import Clients
from fedgsp_node.kept.learned import Learned
from fedgsp_node.tasks import load_task
from tests.support.cluster import play
from tests.support.hellos import hello
from tests.support.reference import Reference, assert_same_bits
from tests.support.weights import TENSORS
from top_server.record.journal import Line

#: gRPC itself reports an internal error to a caller that is refused while it still sends.
DENIED = (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.INTERNAL)


#: Calls that refuse by a message -> its classes.
_REFUSING: tuple[tuple[str, Any, Any], ...] = (
    ("/Join", TopServerMessage, membership_pb2.TopServerMessage),
    ("/Check", CheckAnswer, check_pb2.CheckAnswer),
)


def said(run: str) -> dict[str, list[bytes]]:
    """For each call, what somebody says who knows or has guessed all names and the id of the run."""
    members = tuple(Member(client, f"n{client // 3}", "", 8, None, 1.0) for client in range(6))
    training = TrainingSettings("sgd", 1, 8, 0.05, 0)
    models = [f"{run}/initial", f"{run}/1/0/relay/0.0", f"{run}/1/0/relay/1.0", f"{run}/1/0/relay-start"]

    def order(program: str, **changes: Any) -> bytes:
        request = RunGroupRequest(
            *(run, 1, 7, program, members, ModelRef(models[0]), "127.0.0.1:1", RelayMode.AUTO, False, training, 5.0),
            max_model_bytes=0,
            **changes,
        )
        return bytes(wire.encode(request).SerializeToString())

    header = model_pb2.Chunk(header=wire.encode(ModelHeader(ModelRef(models[1], 40), TENSORS)))
    by_name = {
        "Join": [wire.encode(NodeMessage(hello(name, (9,)))) for name in ("n0", "n9")],
        "Check": [wire.encode(CheckQuestion(hello(name, (9,)))) for name in ("n0", "n9")],
        "Host": [wire.encode(HostMessage(Hosting(name, run, "127.0.0.1"))) for name in ("n0", "n9", "node-0")],
        "Attach": [wire.encode(NodeReport(Attached(run, name, "m0"))) for name in ("n0", "n9")],
        "RunGroup": [order("relay"), order("parallel", results=Results.COLLECTED), order("nonsense")],
        "Forget": [wire.encode(Release(tuple(models)))],
        "Revoke": [wire.encode(Revoked(("urn:uuid:1",)))],
        "Enrol": [enrolment_pb2.CertificateRequest(request=request_for(new_key()))],
        "Renew": [enrolment_pb2.CertificateRequest(request=request_for(new_key()))],
        "Fetch": [model_pb2.FetchRequest(model_id=model_id) for model_id in models],
        "Upload": [header],
        "Assign": [grouping_pb2.AssignRequest(question=grouping_pb2.AssignQuestion(grouping="icg"))],
    }
    return {
        method: [one if isinstance(one, bytes) else one.SerializeToString() for one in by_name[method.split("/")[-1]]]
        for method in RULES
    }


def tickets(run: str, verb: Verb) -> Iterator[bytes]:
    """None, noise, and tickets under keys that a stranger can have."""
    yield from (b"", os.urandom(100), bytes(2000))
    for issuer in (Issuer(bytes(32)), Issuer(b"")):
        for holder in (TOP_SERVER, manager("m0"), node("n0")):
            yield issuer.ticket(holder, Ticket(verb, f"{run}/initial", node("n0"), run, 1))


async def heard(channel: grpc.aio.Channel, method: str, message: bytes, ticket: bytes) -> tuple[Any, str]:
    """The code and the words of an answer; AssertionError if anything else came."""
    call = channel.stream_stream(method)(metadata=((TICKET, ticket),), timeout=20)
    try:
        await call.write(message)
        await call.done_writing()
        answer = await call.read()
    except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
        return await call.code(), await call.details()
    finally:
        call.cancel()
    for call_name, kind, proto in _REFUSING:
        if answer is not grpc.aio.EOF and method.endswith(call_name):
            refusal = wire.decode(kind, proto.FromString(answer)).kind
            if isinstance(refusal, Failure):
                return grpc.StatusCode.PERMISSION_DENIED, refusal.detail
    raise AssertionError(f"{method} was answered: {answer!r}")


def _channel(address: str, tls: Tls | None) -> grpc.aio.Channel:
    """A stranger does not care who the server is."""
    if tls is None:
        return grpc.aio.insecure_channel(address)
    return grpc.aio.secure_channel(address, grpc.ssl_channel_credentials(tls.ca, tls.key, tls.cert))


async def plunder(addresses: list[str], run: str, tls: Tls | None = None) -> list[str]:
    """Calls everything at all addresses; the words that the stranger was told."""
    words = set()
    for address in addresses:
        async with _channel(address, tls) as channel:
            for method, messages in said(run).items():
                tries = [(message, b"") for message in messages]
                tries += [(messages[0], ticket) for ticket in tickets(run, RULES[method].verb)]
                for message, ticket in tries:
                    code, detail = await heard(channel, method, message, ticket)
                    assert code in DENIED, (address, method, code, detail)
                    words.add(detail)
    return sorted(words)


async def assert_unharmed(
    config: RunConfig,
    hosts: Sequence[NodeSettings],
    monkeypatch: pytest.MonkeyPatch,
    tls: Tls | None = None,
    refused: frozenset[str] = frozenset(),
) -> None:
    """Plays a run of the digits that is plundered in its first round; it must end as if nobody had come.

    `refused`: the reasons for which the top server refuses the stranger as a node.
    """
    oracle = Reference(load_task("digits", {"clients": "8"}), range(8), rounds=2, beta=2, sampling_rate=1.0)
    gate, train = threading.Event(), Clients.train
    events: list[Line] = []
    attacks: list[asyncio.Task[list[str]]] = []

    def wait_and_train(*arguments: Any) -> Learned:
        assert gate.wait(60)
        return train(*arguments)

    def watch(event: Line) -> None:
        events.append(event)
        if event["event"] == "round_started" and not attacks:
            attacks.append(asyncio.create_task(attack()))

    def run_id() -> str:
        return next(str(event["run"]) for event in events if event["event"] == "run_started")

    async def attack() -> list[str]:
        try:
            addresses = [event["address"] for event in events if event.get("address")]
            assert len(addresses) == 5  # the top server, two nodes that listen, and two managers
            return await plunder(addresses, run_id(), tls)
        finally:
            gate.set()

    monkeypatch.setattr(Clients, "train", wait_and_train)
    played = await play(config, hosts, on_event=watch)
    words = await attacks[0]
    assert not [word for word in words if run_id() in word or "m0" in word], words
    assert_same_bits(played.model(2), oracle.play_fedgsp()[1])
    assert {event["event"] for event in events}.isdisjoint({"client_skipped", "manager_lost", "node_left_early"})
    assert {event["reason"] for event in events if event["event"] == "node_refused"} == refused
