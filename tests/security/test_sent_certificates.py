"""What a node sends beside its certificate counts for nothing: not for its receipts, and not for the record."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import grpc.aio
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from fedgsp import wire
from fedgsp.identity import manager, node
from fedgsp.messages import Attached, NodeMessage, NodeReport
from fedgsp.security.access import AccessControl, shown
from fedgsp.security.signing import Signer, fingerprint, why_not_trusted
from fedgsp.security.tickets import Door, Ticket, Verb
from fedgsp.security.tls import Tls
from fedgsp.v1 import membership_pb2_grpc, order_pb2_grpc
from group_manager.members import Members
from group_manager.server import OrderServicer
from tests.support.callers import ISSUER
from tests.support.certificates import DAY, PEM, Authority, unchecked
from tests.support.fuzzing import until
from tests.support.hellos import hello, membership
from tests.support.serving import serving
from top_server.audit import read
from top_server.nodes.servicer import MembershipServicer
from top_server.record.audit import Audit, AuditLog


def made_up(days: int, size: int = 1) -> bytes:
    """A certificate that ends in so many days, as everybody can make one."""
    now, key = dt.datetime.now(dt.UTC), ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "x")])
    built = x509.CertificateBuilder(name, name, key.public_key(), 7, now - 9 * DAY, now + days * DAY)
    filled = x509.UnrecognizedExtension(x509.ObjectIdentifier("1.2.3.4.5"), bytes(size))
    return built.add_extension(filled, critical=False).sign(key, hashes.SHA256()).public_bytes(PEM)


def dialled(own: Tls, beside: bytes, address: str) -> grpc.aio.Channel:
    """A channel of gRPC itself: a program of FedGSP would send nothing that has expired."""
    return grpc.aio.secure_channel(address, grpc.ssl_channel_credentials(own.ca, own.key, own.cert + beside))


JUNK = {"expired": made_up(-8), "large": 5 * made_up(8, 14_000), "both": made_up(8) + made_up(-8)}


@pytest.mark.parametrize("kind", JUNK)
async def test_a_manager_keeps_what_the_top_server_will_trust(tmp_path: Path, kind: str) -> None:
    """The certificate was renewed, and the run is older than it."""
    authority, members, me = Authority(tmp_path), Members(), manager("m0")
    own = unchecked(authority.issue("n1", identity=node("n1"), days=7, begins=0))
    began = dt.datetime.now(dt.UTC) - 2 * DAY
    guard = AccessControl({Verb.ATTACH: Door(ISSUER.key_of(me))}, True)

    def register(server: grpc.aio.Server) -> None:
        order_pb2_grpc.add_OrderServiceServicer_to_server(OrderServicer(members, "m0", "run-1"), server)

    async with (
        serving(register, tls=unchecked(authority.issue("m0", identity=me)), access=guard, who=me) as served,
        dialled(own, JUNK[kind], served.address) as channel,
    ):
        stub = order_pb2_grpc.OrderServiceStub(channel)
        call = stub.Attach(metadata=shown(ISSUER.ticket(me, Ticket(Verb.ATTACH, "m0", node("n1")))))
        await call.write(wire.encode(NodeReport(Attached("run-1", "n1", "m0"))))
        await until(lambda: members.attached("n1"))
        kept = members._sessions["n1"].certificate
        assert kept == own.cert
        assert why_not_trusted(kept, own.ca, dt.datetime.now(dt.UTC), began) == ""
        call.cancel()


@pytest.mark.parametrize("kind", JUNK)
async def test_the_record_has_the_certificate_of_a_node_alone(tmp_path: Path, kind: str) -> None:
    lines: list[object] = []

    class Lines(Audit):
        def note(self, what: str, **fields: object) -> None:
            lines.append(fields.get("certificate"))

    authority = Authority(tmp_path)
    members, _ = membership(audit=Lines())
    own = unchecked(authority.issue("n1", identity=node("n1")))
    guard = AccessControl({Verb.JOIN: Door()}, True, without_ticket=[Verb.JOIN])

    def register(server: grpc.aio.Server) -> None:
        membership_pb2_grpc.add_MembershipServiceServicer_to_server(MembershipServicer(members), server)

    async with (
        serving(register, tls=unchecked(authority.issue("top")), access=guard) as served,
        dialled(own, JUNK[kind], served.address) as channel,
    ):
        call = membership_pb2_grpc.MembershipServiceStub(channel).Join()
        await call.write(wire.encode(NodeMessage(hello("n1"))))
        assert await call.read()
        call.cancel()
    assert lines[0] == own.cert.decode()


def test_the_log_of_a_run_in_which_a_node_renewed_its_certificate_holds(tmp_path: Path) -> None:
    """Also one from before, with what the node sent beside it."""
    authority, now = Authority(tmp_path), dt.datetime.now(dt.UTC)
    top = authority.issue("top", days=7, begins=-9)
    renewed = authority.issue("n1", identity=node("n1"), days=7, begins=0).cert.read_bytes()
    times = iter([now - 2 * DAY, *4 * [now + DAY]])
    path, signer = tmp_path / "audit.jsonl", Signer(top.key.read_bytes(), top.cert.read_bytes())
    with AuditLog(path, "run", signer, now=lambda _: next(times)) as log:
        began = {"run": "run", "caller": "top-server", "settings": ""}
        log.note("began", **began, certificate=signer.certificate.decode())
        for beside in (b"", JUNK["expired"]):
            log.note("renewed", node="n1", caller="node n1", certificate=(renewed + beside).decode())
        log.close(True, "the run is finished")
    with path.open("rb") as file:
        found = read(file, authority.ca.read_bytes())
    assert found.whole
    assert found.shown["node n1"] == {fingerprint(renewed)}
