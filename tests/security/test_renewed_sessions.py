"""A link is cut after the certificate of a node was renewed: its orders stay its own, and nobody else gets them."""

from __future__ import annotations

import dataclasses
import uuid
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from fedgsp.identity import ENROLMENT, TOP_SERVER, Identity, node, worker
from fedgsp.messages import Done, Failure, FailureCode, GroupEvent, Member, MemberDone, Order
from fedgsp.security.signing import fingerprint, same_holder
from group_manager.members import Members
from group_manager.orders import Reports
from group_manager.sessions import MOST_CERTIFICATES
from tests.security.test_receipts import KEY, MADE, WORK, Site, Top
from tests.support.certificates import Authority

RETURN_S = 2.0
FIRST, SECOND = (str(uuid.UUID(int=number)) for number in (1, 2))


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def enrolled(authority: Authority, identity: Identity, enrolment: str) -> bytes:
    """A certificate of an invitation."""
    names = [x509.UniformResourceIdentifier(f"{ENROLMENT}{enrolment}")]
    files = authority.issue("enrolled", identity=identity, names=names)
    return files.cert.read_bytes()


@pytest.mark.parametrize("signs", ["the old key", "the new key"])
async def test_a_node_with_a_renewed_certificate_keeps_its_orders(authority: Authority, signs: str) -> None:
    old, new = Site(authority, "n1"), Site(authority, "n1")
    members, events = Members(RETURN_S), list[Any]()
    session = await members.attach("n1", old.signer.certificate, "p")
    pending = members.submit("n1", Order(KEY, 4, WORK))
    await members.detach(session, session.outbox)
    assert await members.attach("n1", new.signer.certificate, "p") is session
    assert session.outbox.get_nowait() == Order(KEY, 4, WORK)
    signer = old if signs == "the old key" else new  # it may have been done while the link was cut
    members.report(session, Done(KEY, MADE, signer.sign()))
    assert await members.outcome(pending, 5.0) == MADE
    # The top server verifies the receipt again, by the certificate with which it was signed.
    digest = bytes.fromhex(fingerprint(old.signer.certificate))
    told = Reports(lambda event: events.append(event))
    told.done(Member(4, "n1", "", 7, certificate_digest=digest), 0, MADE, pending)
    done = events[0].kind
    assert isinstance(done, MemberDone)
    assert done.certificate == (b"" if signer is old else new.signer.certificate)
    top = Top(authority, old)
    top.watch(GroupEvent(done))
    assert [line["what"] for line in top.lines[1:]] == (["made"] if signer is old else ["renewed", "made"])


async def test_the_certificate_of_another_node_never_takes_a_session_over(authority: Authority) -> None:
    own = Site(authority, "n1").signer.certificate
    others = {
        "another node": Site(authority, "n2").signer.certificate,
        "a worker of the name": authority.issue("w", identity=worker("n1")).cert.read_bytes(),
        "the top server": authority.issue("top", identity=TOP_SERVER).cert.read_bytes(),
        "none": b"",
        "not a certificate": b"another",
        "invited anew": enrolled(authority, node("n1"), FIRST),
    }
    for name, other in others.items():
        members = Members(RETURN_S)
        session = await members.attach("n1", own, "p")
        pending = members.submit("n1", Order(KEY, 4, WORK))
        await members.detach(session, session.outbox)
        assert await members.attach("n1", other, "p") is not session, name
        outcome = pending.outcome.result()
        assert isinstance(outcome, Failure), name
        assert outcome.code is FailureCode.NODE_LOST, name


async def test_a_node_with_another_certificate_can_not_sign_for_the_session(authority: Authority) -> None:
    n1, n2 = Site(authority, "n1"), Site(authority, "n2")
    members = Members(RETURN_S)
    session = await members.attach("n1", n1.signer.certificate, "p")
    assert await members.attach("n1", Site(authority, "n1").signer.certificate, "p") is session
    pending = members.submit("n1", Order(KEY, 4, WORK))
    members.report(session, Done(KEY, MADE, n2.sign(name="n1")))
    outcome = await members.outcome(pending, 5.0)
    assert outcome == Failure(FailureCode.BAD_RECEIPT, "node n1 has not signed what it reports")


async def test_a_session_remembers_few_certificates(authority: Authority) -> None:
    sites = [Site(authority, "n1") for _ in range(MOST_CERTIFICATES + 1)]
    members = Members(RETURN_S)
    for site in sites:
        session = await members.attach("n1", site.signer.certificate, "p")
    assert session.certificates == tuple(site.signer.certificate for site in reversed(sites[1:]))
    for site, counts in ((sites[0], False), (sites[1], True)):
        key = dataclasses.replace(KEY, position=sites.index(site))
        pending = members.submit("n1", Order(key, 4, WORK))
        members.report(session, Done(key, MADE, site.sign(key)))
        assert (await members.outcome(pending, 5.0) == MADE) is counts


def test_a_renewed_certificate_has_the_same_name_and_the_same_enrolment(authority: Authority) -> None:
    assert same_holder(b"", b"")
    first, again = (enrolled(authority, node("n1"), FIRST) for _ in range(2))
    assert first != again
    assert same_holder(first, again)
    assert not same_holder(first, enrolled(authority, node("n1"), SECOND))
    assert not same_holder(first, enrolled(authority, node("n2"), FIRST))
    assert not same_holder(b"one", b"two")
