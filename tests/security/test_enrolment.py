"""Invitations and the certificates of nodes, attacked over real TLS connections."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding

from fedgsp.connections.channels import start_server
from fedgsp.errors import ConfigError, PeerError
from fedgsp.identity import TOP_SERVER, identity_in, node
from fedgsp.security import certificates
from fedgsp.security.access import shown
from fedgsp.security.certificates import new_key, read, request_for, uris_of
from fedgsp.security.invitation import Invitation, invitation_in
from fedgsp.security.tls import Tls, TlsFiles, load
from fedgsp.v1 import enrolment_pb2, enrolment_pb2_grpc
from fedgsp_node.enrolment import client
from tests.support import strangers
from tests.support.callers import OPEN, attach_ticket
from tests.support.certificates import Authority, unchecked
from tests.support.federations import (
    Scene,
    answer,
    code_of,
    dialled,
    end_of,
    federated,
    holding,
    invite,
)
from tests.support.fuzzing import until
from tests.support.serving import serving
from top_server.federation import authority as federation_ca
from top_server.federation import enrolments

DENIED = grpc.StatusCode.PERMISSION_DENIED


@pytest.fixture
async def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Scene]:
    async with federated(tmp_path / "federation", monkeypatch) as found:
        yield found


def token_of(where: Path, invitation: Invitation) -> Tls:
    return holding(where, invitation.ca, invitation.certificate, invitation.key)


# --- invitations


async def test_an_invitation_is_good_once_and_the_second_try_is_recorded(scene: Scene) -> None:
    invitation = scene.invite("hospital-a")
    own = await scene.use(invitation)
    assert own.identity == node("hospital-a")
    with pytest.raises(PeerError, match="this invitation was used already"):
        await scene.use(invitation)
    assert scene.recorder.of_kind("node_enrolled") == [{"event": "node_enrolled", "node": "hospital-a"}]
    assert ["was used already" in reason for reason in scene.reasons()] == [True]


async def test_two_who_use_one_invitation_at_once_get_one_certificate(scene: Scene, tmp_path: Path) -> None:
    tls = token_of(tmp_path / "token", scene.invite("hospital-a"))
    tries = [answer(tls, scene, "Enrol", request_for(new_key())) for _ in range(8)]
    got = await asyncio.gather(*tries, return_exceptions=True)
    assert sum(isinstance(one, enrolment_pb2.Certificate) for one in got) == 1


async def test_who_hangs_up_while_it_is_enrolled_is_recorded_and_asks_again_for_the_same_key(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, go, issue = threading.Event(), threading.Event(), federation_ca.Authority.for_node

    def slow(*arguments: Any) -> bytes:
        asked.set()
        assert go.wait(20)
        return issue(*arguments)

    monkeypatch.setattr(federation_ca.Authority, "for_node", slow)
    tls, request = token_of(tmp_path / "token", scene.invite("hospital-a")), request_for(new_key())
    async with dialled(tls, scene.address) as channel:
        stub: Any = enrolment_pb2_grpc.EnrolmentServiceStub(channel)
        call = stub.Enrol(enrolment_pb2.CertificateRequest(request=request))
        await until(asked.is_set)
        call.cancel()
        # The server has handled the end of the first call when it answers a second one on the same connection.
        assert await code_of(stub.Enrol(enrolment_pb2.CertificateRequest())) is grpc.StatusCode.INVALID_ARGUMENT
    go.set()
    await scene.recorder.until("node_enrolled")
    again = [(await answer(tls, scene, "Enrol", request)).certificate for _ in range(3)]
    assert len(set(again)) == 1
    assert len(scene.recorder.of_kind("node_enrolled")) == 1
    assert await code_of(answer(tls, scene, "Enrol", request_for(new_key()))) is DENIED


async def test_an_invitation_opens_nothing_else(scene: Scene, tmp_path: Path) -> None:
    tls = token_of(tmp_path / "token", scene.invite("n0"))
    async with dialled(tls, scene.address) as channel:
        for method, messages in strangers.said("run-1").items():
            if method.endswith("/Enrol"):
                continue
            call = channel.stream_stream(method)(metadata=shown(attach_ticket("n0")), timeout=20)
            with contextlib.suppress(grpc.aio.AioRpcError):
                await call.write(messages[0])
            assert (await end_of(call))[0] in strangers.DENIED, method
    assert scene.membership.nodes == 0


async def test_no_node_and_no_guest_passes_for_the_top_server(scene: Scene, tmp_path: Path) -> None:
    guest = token_of(tmp_path / "token", scene.invite("top-server", "5"))
    member = await scene.enrol("top.example.org", "6", host=["127.0.0.1"])
    victim = scene.invite("victim")
    for tls, why in ((guest, "is refused"), (member, "is that of node top.example.org, not of top-server")):
        server, address = await start_server("127.0.0.1:0", [], OPEN, tls)
        with pytest.raises(PeerError, match=why):
            await client.enrol(victim, new_key(), address)
        await server.stop(None)


async def test_an_invitation_that_is_late_replaced_or_revoked_is_refused(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    late, replaced, revoked = scene.invite("late", "1"), scene.invite("replaced", "2"), scene.invite("revoked", "3")
    scene.invite("replaced", "2")
    scene.revoke("revoked")
    await until(lambda: len(scene.managers.told) > 1)
    request = request_for(new_key())
    reasons = {"a newer invitation of this node has replaced this one": replaced, "was revoked": revoked}
    for why, invitation in reasons.items():
        with pytest.raises(PeerError, match=f"{why}.*ask the owner of the top server"):
            await scene.use(invitation)
        assert why in scene.reasons()[-1]
    # The connection of a late guest may have been made in time, so that TLS took its certificate.
    begin = time.time()
    monkeypatch.setattr(time, "time", lambda: begin + 86_401)
    assert await code_of(answer(token_of(tmp_path / "t", late), scene, "Enrol", request)) is DENIED
    monkeypatch.setattr(certificates, "now", lambda: dt.datetime.now(dt.UTC) + dt.timedelta(days=2))
    monkeypatch.setattr(client, "now", certificates.now)
    with pytest.raises(ConfigError, match="this invitation expired on"):
        await client.enrol(late, new_key(), scene.address)


async def test_a_certificate_that_has_expired_gets_no_connection(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Tls, "check_not_expired", lambda _: None)  # a caller that does not check itself
    invitation = scene.invite("late", valid_for="1s")
    await until(lambda: invitation.opened.not_valid_after_utc < dt.datetime.now(dt.UTC))
    tls = token_of(tmp_path / "token", invitation)
    assert await code_of(answer(tls, scene, "Enrol", request_for(new_key()))) is grpc.StatusCode.UNAVAILABLE


async def test_an_invitation_of_another_federation_reaches_nobody(scene: Scene, tmp_path: Path) -> None:
    foreign = invite(tmp_path / "foreign", "hospital-a")
    with pytest.raises(
        PeerError, match="did not issue this invitation; check --top-server, and that the token is for"
    ):
        await client.enrol(foreign, new_key(), scene.address)
    ours = scene.invite("hospital-a")
    tls = holding(tmp_path / "mixed", ours.ca, foreign.certificate, foreign.key)
    assert await code_of(answer(tls, scene, "Enrol", request_for(new_key()))) is grpc.StatusCode.UNAVAILABLE


@pytest.mark.parametrize("cut", [slice(0, -1), slice(1, None), slice(0, 300), slice(0, 0)])
def test_a_token_that_is_not_whole_is_told_apart(tmp_path: Path, cut: slice) -> None:
    token = invite(tmp_path / "federation", "a").token
    assert invitation_in(f" {token}\n").token == token
    with pytest.raises(ConfigError, match="not the token of an invitation"):
        invitation_in(token[cut])


def test_a_token_with_one_wrong_letter_is_told_apart(tmp_path: Path) -> None:
    token = invite(tmp_path / "federation", "a").token
    for place in range(0, len(token) - 1, 7):  # some bits of the last letter are padding
        wrong = "B" if token[place] == "A" else "A"
        with pytest.raises(ConfigError, match="not the token of an invitation"):
            invitation_in(token[:place] + wrong + token[place + 1 :])


@pytest.mark.parametrize("name", ["", "../x", "a b", "a\nb", "é", "-a", "x" * 64, "a/b", "top\x1b[2J"])
def test_a_name_with_odd_characters_is_refused_and_makes_no_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="cannot be the name of a node"):
        invite(tmp_path / "federation", name)
    assert not (tmp_path / "federation").exists()


# --- certificates


def asking(key: Any, *names: x509.GeneralName) -> bytes:
    builder = x509.CertificateSigningRequestBuilder().subject_name(
        x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "top.example.org")])
    )
    builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    return builder.sign(key, hashes.SHA256()).public_bytes(Encoding.DER)


async def test_nothing_but_the_key_is_taken_from_a_request(scene: Scene, tmp_path: Path) -> None:
    tls = token_of(tmp_path / "token", scene.invite("hospital-a", host=["a.example.org"]))
    wished = asking(new_key(), x509.UniformResourceIdentifier(TOP_SERVER.uri), x509.DNSName("localhost"))
    found = read((await answer(tls, scene, "Enrol", wished)).certificate)
    assert identity_in(uris_of(found)) == node("hospital-a")
    names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["a.example.org"]
    assert found.subject == x509.Name([])
    assert not found.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert found.not_valid_after_utc < dt.datetime.now(dt.UTC) + dt.timedelta(days=7, hours=1)


async def test_who_enrols_at_the_port_of_a_group_manager_is_told_which_port_it_is(scene: Scene) -> None:
    invitation = scene.invite("hospital-a")
    (file,) = scene.path.glob("top-server-*.pem")
    server, address = await start_server("127.0.0.1:0", [], OPEN, load(TlsFiles(scene.path / "ca.pem", file, file)))
    with pytest.raises(PeerError, match=f"{address} gives no certificates: .*group manager.*; give --top-server"):
        await client.enrol(invitation, new_key(), address)
    await server.stop(None)


async def test_a_request_of_another_kind_is_refused_and_uses_up_nothing(scene: Scene, tmp_path: Path) -> None:
    tls = token_of(tmp_path / "token", scene.invite("hospital-a"))
    good = request_for(new_key())
    wrong = [
        b"",
        b"\x30\x80" * 1000,
        good[:-1] + bytes([good[-1] ^ 1]),  # a signature of another key
        asking(rsa.generate_private_key(65537, 2048)),
        asking(ec.generate_private_key(ec.SECP384R1())),
    ]
    for request in wrong:
        assert await code_of(answer(tls, scene, "Enrol", request)) is grpc.StatusCode.INVALID_ARGUMENT
    assert (await answer(tls, scene, "Enrol", good)).certificate


async def test_a_node_renews_its_own_certificate_and_nobody_elses(scene: Scene, tmp_path: Path) -> None:
    own, key = await scene.enrol("hospital-a"), new_key()
    renewed = await client.renew(own, key, "hospital-a", scene.address)
    assert identity_in(uris_of(renewed)) == node("hospital-a")
    with pytest.raises(PeerError, match="not for this node"):
        await client.renew(own, key, "hospital-b", scene.address)
    request = request_for(new_key())
    assert await code_of(answer(own, scene, "Enrol", request)) is DENIED
    token = token_of(tmp_path / "token", scene.invite("hospital-c", "7"))
    assert await code_of(answer(token, scene, "Renew", request)) is DENIED
    scene.revoke("hospital-a")
    assert await code_of(answer(own, scene, "Renew", request)) is DENIED


async def test_a_node_that_renews_again_and_again_gets_one_certificate_and_one_line_in_the_log(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted: list[str] = []
    own = await scene.enrol("hospital-a")
    monkeypatch.setattr(type(scene.audit), "note", lambda _, what, **__: noted.append(what))
    request = request_for(new_key())
    tries = [answer(own, scene, "Renew", one) for one in [request] * 4 + [request_for(new_key()) for _ in range(4)]]
    got = await asyncio.gather(*tries, return_exceptions=True)
    assert len({one.certificate for one in got if isinstance(one, enrolment_pb2.Certificate)}) == 1
    assert noted.count("certified") == 1
    begin = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: begin + enrolments.PAUSE_S + 1)
    assert (await answer(own, scene, "Renew", request_for(new_key()))).certificate
    assert noted.count("certified") == 2


async def test_a_false_top_server_cannot_give_a_node_another_identity(tmp_path: Path) -> None:
    """A top server with a good certificate answers with certificates for others, or with noise."""
    authority = Authority(tmp_path)
    answers = [b"", b"noise", authority.issue("x", identity=node("other")).cert.read_bytes()]

    class False_(enrolment_pb2_grpc.EnrolmentServiceServicer):  # noqa: N801
        async def Enrol(self, request: Any, context: Any) -> Any:  # noqa: N802
            return enrolment_pb2.Certificate(certificate=answers.pop())

        async def Renew(self, request: Any, context: Any) -> Any:  # noqa: N802
            return enrolment_pb2.Certificate(certificate=answers.pop())

    own = unchecked(authority.issue("n", identity=node("n")))
    top = unchecked(authority.issue("top"))
    register = enrolment_pb2_grpc.add_EnrolmentServiceServicer_to_server
    async with serving(lambda server: register(False_(), server), tls=top) as served:
        while answers:
            with pytest.raises(PeerError, match="a certificate that is not for this node"):
                await client.renew(own, new_key(), "n", served.address)
