"""The registry of a federation and the revocation of nodes, attacked over real TLS connections."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from fedgsp import wire
from fedgsp.connections.channels import Channels
from fedgsp.identity import TOP_SERVER, manager, node
from fedgsp.messages import (
    Attached,
    Failure,
    FailureCode,
    NodeMessage,
    NodeReport,
    Revoked,
    Source,
    SourceKind,
    TopServerMessage,
    Welcome,
)
from fedgsp.security import certificates
from fedgsp.security.access import AccessControl, shown
from fedgsp.security.certificates import new_key, pem_of, request_for, uris_of
from fedgsp.security.revocation import REASON, Revocations
from fedgsp.security.tickets import Door, Ticket, Verb
from fedgsp.security.tls import Tls, TlsFiles, load
from fedgsp.transfers.model_service import ModelServicer
from fedgsp.v1 import enrolment_pb2, enrolment_pb2_grpc, group_pb2_grpc, membership_pb2_grpc, model_pb2, order_pb2_grpc
from group_manager.members import Members
from group_manager.server import GroupServicer, OrderServicer
from tests.support.callers import ISSUER, attach_ticket, over
from tests.support.federations import (
    Scene,
    code_of,
    dialled,
    end_of,
    federated,
    holding,
    joins,
)
from tests.support.fuzzing import SOON_S, until
from tests.support.hellos import hello
from tests.support.holders import WEIGHTS
from tests.support.serving import serving
from top_server.federation.folder import opened
from top_server.managers.client import ManagerClient

DENIED = grpc.StatusCode.PERMISSION_DENIED
#: Bytes of a message that does not leave a server before its caller reads.
LARGE = 3 << 20


@pytest.fixture
async def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Scene]:
    async with federated(tmp_path / "federation", monkeypatch) as found:
        yield found


async def test_a_node_hosts_the_clients_that_are_registered_for_it_and_no_others(scene: Scene) -> None:
    a, b = await scene.enrol("hospital-a", "0-1"), await scene.enrol("hospital-b", "2-3")
    async with dialled(a, scene.address) as of_a, dialled(b, scene.address) as of_b:
        first, welcome = await joins(of_a, "hospital-a", (0, 1))
        assert isinstance(welcome, Welcome)
        first.cancel()
        await until(lambda: scene.membership.nodes == 0)  # its owner has left: the clients stay its own
        for name, clients in (("hospital-b", (1,)), ("hospital-b", (2, 9)), ("hospital-a", (0,))):
            _, refused = await joins(of_b, name, clients)
            assert isinstance(refused, Failure)
            assert refused.code is FailureCode.NOT_ALLOWED
        call, welcome = await joins(of_b, "hospital-b", (3,))
        assert isinstance(welcome, Welcome)
        call.cancel()


async def test_who_is_not_registered_does_not_set_the_standard_of_a_run(scene: Scene, tmp_path: Path) -> None:
    """The authority of the federation has issued a certificate for this name, but not for this enrolment."""
    own = await scene.enrol("hospital-a")
    entry = opened(scene.path).registry().nodes["hospital-a"]
    ca, keys = opened(scene.path).authority(), [new_key(), new_key()]
    other = dataclasses.replace(entry, enrolment="urn:uuid:1")
    certificate = ca.for_node("hospital-a", other, keys[0].public_key())
    unknown = ca.for_node("stranger", entry, keys[1].public_key())
    der = certificates.read(certificate).public_bytes(Encoding.DER)
    ca_der = ca.certificate.public_bytes(Encoding.DER)
    strangers = {"hospital-a": holding(tmp_path / "x", ca_der, der, keys[0])}
    strangers["stranger"] = holding(tmp_path / "y", ca_der, unknown, keys[1])
    for name, tls in strangers.items():
        async with dialled(tls, scene.address) as channel:
            _, refused = await joins(channel, name, (0,))
            assert isinstance(refused, Failure)
            assert refused.code is FailureCode.NOT_ALLOWED
    assert scene.membership.tensors == ()
    async with dialled(own, scene.address) as channel:
        call, welcome = await joins(channel, "hospital-a", (0,))
        assert isinstance(welcome, Welcome)
        call.cancel()


async def test_the_same_node_replaces_its_own_connection_and_another_never_does(scene: Scene) -> None:
    a, b = await scene.enrol("hospital-a", "0-1"), await scene.enrol("hospital-b", "2-3")
    async with (
        dialled(a, scene.address) as of_a,
        dialled(a, scene.address) as again,
        dialled(b, scene.address) as of_b,
    ):
        older, _ = await joins(of_a, "hospital-a", (0, 1))
        _, refused = await joins(of_b, "hospital-a", (0, 1))
        assert isinstance(refused, Failure)
        assert not older.done()
        newer, welcome = await joins(again, "hospital-a", (0,))
        assert isinstance(welcome, Welcome)
        told = wire.decode(TopServerMessage, await older.read()).kind
        assert isinstance(told, Failure)
        assert "joined anew" in told.detail
        assert (await end_of(older))[0] is grpc.StatusCode.OK
        assert scene.membership.nodes == 1
        assert list(scene.membership.clients) == [0]
        newer.cancel()


async def test_the_certificate_of_another_helps_neither_a_node_nor_a_revoked_one(scene: Scene) -> None:
    """Certificates are no secret. A node may send others' behind its own, without their keys."""
    own, other = await scene.enrol("hospital-a", "0-1"), await scene.enrol("hospital-b", "2-3")
    ca, key = opened(scene.path).authority(), new_key()
    of_top = pem_of(ca.for_top_server(("127.0.0.1",), key.public_key()))
    thieves = [dataclasses.replace(own, cert=own.cert + shown) for shown in (other.cert, of_top, of_top + other.cert)]
    for tls in thieves:
        async with dialled(tls, scene.address) as channel:
            for name, clients in (("hospital-b", (2,)), ("hospital-a", (0, 9)), ("elsewhere", (0,))):
                _, refused = await joins(channel, name, clients)
                assert isinstance(refused, Failure)
    scene.revoke("hospital-a")
    for tls in thieves:
        async with dialled(tls, scene.address) as channel:
            for name in ("hospital-a", "hospital-b"):
                call = membership_pb2_grpc.MembershipServiceStub(channel).Join()
                await call.write(wire.encode(NodeMessage(hello(name))))
                assert await end_of(call) == (DENIED, REASON)
    assert scene.membership.nodes == 0


async def test_a_revoked_node_loses_its_open_calls_at_once_and_gets_no_others(scene: Scene, tmp_path: Path) -> None:
    own, other = await scene.enrol("hospital-a", "0-1"), await scene.enrol("hospital-b", "2-3")
    async with dialled(own, scene.address) as channel, dialled(other, scene.address) as beside:
        call, _ = await joins(channel, "hospital-a", (0, 1))
        neighbour, _ = await joins(beside, "hospital-b", (2,))
        scene.revoke("hospital-a")
        assert await end_of(call) == (DENIED, REASON)
        await scene.recorder.until("node_left")
        assert scene.recorder.of_kind("node_revoked") == [{"event": "node_revoked", "node": "hospital-a"}]
        assert scene.recorder.of_kind("node_left")[0]["reason"] == "its certificate was revoked"
        # On the connection that is still open, nothing is to be had any more.
        again = membership_pb2_grpc.MembershipServiceStub(channel).Join()
        await again.write(wire.encode(NodeMessage(hello("hospital-a"))))
        assert await end_of(again) == (DENIED, REASON)
        (refused,) = scene.recorder.of_kind("node_refused")
        assert (refused["node"], REASON in refused["reason"]) == ("hospital-a", True)
        # Other nodes and managers are told whose calls they refuse.
        told = wire.decode(TopServerMessage, await neighbour.read()).kind
        assert isinstance(told, Revoked)
        assert [set(told.enrolments)] == scene.managers.told[-1:]
        # The same name can be invited anew, and the old certificate stays refused.
        fresh = await scene.enrol("hospital-a", "0-1")
        async with dialled(fresh, scene.address) as new:
            newer, welcome = await joins(new, "hospital-a", (0, 1))
            assert isinstance(welcome, Welcome)
            newer.cancel()
        renewal: Any = enrolment_pb2_grpc.EnrolmentServiceStub(channel)
        assert await code_of(renewal.Renew(enrolment_pb2.CertificateRequest(request=request_for(new_key())))) is DENIED
        neighbour.cancel()


async def test_a_revocation_before_the_registry_is_followed_takes_effect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The doors are open before the managers have started, and each node that joins has the registry read again."""
    ready = asyncio.Event()
    async with federated(tmp_path / "federation", monkeypatch, ready) as scene:
        own, other = await scene.enrol("hospital-a", "0-1"), await scene.enrol("hospital-b", "2-3")
        async with dialled(own, scene.address) as channel, dialled(other, scene.address) as beside:
            call, _ = await joins(channel, "hospital-a", (0, 1))
            scene.revoke("hospital-a")
            neighbour, _ = await joins(beside, "hospital-b", (2,))
            ready.set()
            assert await end_of(call) == (DENIED, REASON)
            await scene.recorder.until("node_revoked")
            neighbour.cancel()


async def test_a_node_that_is_invited_anew_at_once_was_revoked_nevertheless(scene: Scene) -> None:
    own = await scene.enrol("hospital-a", "0-1")
    scene.invite("hospital-b", "5")
    async with dialled(own, scene.address) as channel:
        call, _ = await joins(channel, "hospital-a", (0, 1))
        scene.revoke("hospital-a")  # all before the top server looks at the registry
        scene.invite("hospital-a")
        scene.invite("hospital-b", "5")  # this takes the place of an invitation, and revokes nobody
        assert await end_of(call) == (DENIED, REASON)
        await until(lambda: len(scene.managers.told) > 1)
    assert scene.recorder.of_kind("node_revoked") == [{"event": "node_revoked", "node": "hospital-a"}]


async def test_a_registry_that_cannot_be_read_for_a_moment_is_read_later(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    own = await scene.enrol("hospital-a")
    async with dialled(own, scene.address) as channel:
        call, _ = await joins(channel, "hospital-a", (0, 1))
        scene.revoke("hospital-a")
        opened(scene.path).registry_file.chmod(0o640)  # which changes no time of its content
        await until(lambda: "the registry is not read again" in caplog.text)
        opened(scene.path).registry_file.chmod(0o600)
        assert await end_of(call) == (DENIED, REASON)
    assert caplog.text.count("the registry is not read again") == 1


async def test_a_manager_ends_the_session_and_the_waiting_fetches_of_a_revoked_node(scene: Scene) -> None:
    own = await scene.enrol("hospital-a")
    (enrolment,) = [uri for uri in uris_of(x509.load_pem_x509_certificate(own.cert)) if uri.startswith("urn:")]
    members, revoked = Members(), Revocations()
    door = Door(ISSUER.key_of(manager("m0")))
    guard = AccessControl({Verb.ATTACH: door, Verb.LEAD: door}, True, revoked)
    top, me = scene_tls(scene), Source(SourceKind.MANAGER, "m0")
    groups = GroupServicer(members, scene.store, Channels(), me, ISSUER, door, revoked)

    def register(server: grpc.aio.Server) -> None:
        order_pb2_grpc.add_OrderServiceServicer_to_server(OrderServicer(members, "m0", "run-1"), server)
        group_pb2_grpc.add_GroupServiceServicer_to_server(groups, server)

    async with (
        serving(register, tls=top, access=guard, who=manager("m0")) as served,
        dialled(own, served.address, manager("m0")) as channel,
    ):
        stub = order_pb2_grpc.OrderServiceStub(channel)
        calls = []
        for _ in range(2):  # the second one takes the place of the first
            call = stub.Attach(metadata=shown(attach_ticket("hospital-a")))
            await call.write(wire.encode(NodeReport(Attached("run-1", "hospital-a", "m0"))))
            await until(lambda: members.attached("hospital-a"))
            calls.append(call)
        assert (await end_of(calls[0]))[0] is grpc.StatusCode.OK
        assert not await ManagerClient("m0", over(channel), ISSUER).revoke([])  # a node cannot revoke, nor undo it
        assert await ManagerClient("m0", over(served.channel), ISSUER).revoke([enrolment])
        assert await end_of(calls[1]) == (DENIED, REASON)
        await until(lambda: not members.attached("hospital-a"))
        last = stub.Attach(metadata=shown(attach_ticket("hospital-a")))
        assert await end_of(last) == (DENIED, REASON)


async def test_a_fetch_that_waits_for_a_promised_model_ends_with_the_certificate(scene: Scene) -> None:
    own = await scene.enrol("hospital-a")
    ticket = ISSUER.ticket(TOP_SERVER, Ticket(Verb.FETCH, "m", node("hospital-a")))
    (enrolment,) = [uri for uri in uris_of(x509.load_pem_x509_certificate(own.cert)) if uri.startswith("urn:")]
    revoked = Revocations()
    guard = AccessControl({Verb.FETCH: Door(ISSUER.key_of(TOP_SERVER))}, True, revoked)
    servicer = ModelServicer(scene.store)
    async with (
        serving(servicer.add_to, tls=scene_tls(scene), access=guard) as served,
        dialled(own, served.address) as channel,
    ):
        call = channel.stream_stream("/fedgsp.v1.ModelService/Fetch")(metadata=shown(ticket))
        await call.write(model_pb2.FetchRequest(model_id="m").SerializeToString())
        await until(lambda: len(scene.store._waiting.get("m", ())) == 1)
        revoked.replace([enrolment])
        scene.store.put("m", WEIGHTS)
        assert await end_of(call) == (DENIED, REASON)


@pytest.mark.parametrize("before", [0, 1])
async def test_a_call_ends_with_its_reason_while_a_message_is_on_its_way(scene: Scene, before: int) -> None:
    """The node takes its time to read: the server waits until the message is gone."""
    own = await scene.enrol("hospital-a")
    ticket = ISSUER.ticket(TOP_SERVER, Ticket(Verb.FETCH, "m", node("hospital-a")))
    (enrolment,) = [uri for uri in uris_of(x509.load_pem_x509_certificate(own.cert)) if uri.startswith("urn:")]
    revoked, sending, closed = Revocations(), asyncio.Event(), asyncio.Event()
    guard = AccessControl({Verb.FETCH: Door(ISSUER.key_of(TOP_SERVER))}, True, revoked)

    async def fetch(requests: AsyncIterator[bytes], context: object) -> AsyncIterator[bytes]:
        try:
            for _ in range(before):
                yield b"small"
            sending.set()
            yield bytes(LARGE)
            yield b"secret"
        finally:
            closed.set()

    methods = {"Fetch": grpc.stream_stream_rpc_method_handler(fetch)}
    service = grpc.method_handlers_generic_handler("fedgsp.v1.ModelService", methods)
    async with (
        serving(
            lambda server: server.add_generic_rpc_handlers((service,)), tls=scene_tls(scene), access=guard
        ) as served,
        dialled(own, served.address) as channel,
        asyncio.timeout(SOON_S),
    ):
        call = channel.stream_stream("/fedgsp.v1.ModelService/Fetch")(metadata=shown(ticket))
        await sending.wait()
        revoked.replace([enrolment])
        await closed.wait()
        with contextlib.suppress(grpc.aio.AioRpcError):
            async for message in call:
                assert len(message) in (5, LARGE)
        assert (await call.code(), await call.details()) == (DENIED, REASON)


def scene_tls(scene: Scene) -> Tls:
    """The credentials of the top server, with which managers run, too."""
    (file,) = scene.path.glob("top-server-*.pem")
    found = load(TlsFiles(scene.path / "ca.pem", file, file))
    assert found is not None
    return found
