"""A node answers for itself: nobody gets a result into the record that its node has not signed for this order."""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedgsp.errors import RunError
from fedgsp.identity import node
from fedgsp.messages import (
    Attached,
    Describe,
    Described,
    Done,
    Failure,
    FailureCode,
    FinishedHop,
    GroupEvent,
    Member,
    MemberDone,
    ModelRef,
    Order,
    OrderKey,
    RelayMode,
    Reveal,
    RunGroupRequest,
    Served,
    Start,
    Train,
    Trained,
    TrainingSettings,
)
from fedgsp.security.receipts import Statement
from fedgsp.security.signing import Signer, fingerprint, why_not_trusted
from fedgsp_node.receipts import Receipts, receipt_log
from group_manager.members import Members
from group_manager.orders import Reports
from tests.support.certificates import Authority
from tests.support.recorder import Recorder
from top_server.groups.task import Trace
from top_server.groups.watch import GroupWatch
from top_server.progress import Progress

DIGEST, OTHER = bytes(range(32)), bytes(32)
KEY = OrderKey(1, "train", 0, 0, 0, "run", 5)
WORK = Train(Start("start", (), digest=OTHER), "m", TrainingSettings("sgd", 1, 8, 0.1, 0))
MADE = Trained(ModelRef("m", 40, DIGEST), 7, 0.5, start=ModelRef("start", digest=OTHER))
MEMBER = Member(4, "n1", "", 7)


class Site:
    """What the owner of one certificate can sign."""

    def __init__(self, authority: Authority, name: str, days: int = 1) -> None:
        files = authority.issue(name, identity=node(name), days=days)
        self.name = name
        self.signer = Signer(files.key.read_bytes(), files.cert.read_bytes())

    def sign(self, key: OrderKey = KEY, client: int = 4, made: Trained = MADE, name: str = "") -> bytes:
        return self.signer.sign(Statement.of(key, client, name or self.name, made).text)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


#: What a node, or whoever speaks in its name, hands in with a result. `n1` has the order.
FALSE: dict[str, Callable[[Site, Site], bytes]] = {
    "nothing": lambda n1, n2: b"",
    "noise": lambda n1, n2: bytes(72),
    "that of another node": lambda n1, n2: n2.sign(),
    "that of another node in its name": lambda n1, n2: n2.sign(name="n1"),
    "its own for another client": lambda n1, n2: n1.sign(client=5),
    "its own for another order": lambda n1, n2: n1.sign(dataclasses.replace(KEY, attempt=1)),
    "its own for another call": lambda n1, n2: n1.sign(dataclasses.replace(KEY, serial=4)),
    "its own for another round": lambda n1, n2: n1.sign(dataclasses.replace(KEY, round=2)),
    "its own for another run": lambda n1, n2: n1.sign(dataclasses.replace(KEY, run="other")),
    "its own for another model": lambda n1, n2: n1.sign(made=dataclasses.replace(MADE, ref=ModelRef("m", 40, OTHER))),
    "its own for another start": lambda n1, n2: n1.sign(
        made=dataclasses.replace(MADE, start=ModelRef("start", digest=DIGEST))
    ),
    "its own for other samples": lambda n1, n2: n1.sign(made=dataclasses.replace(MADE, samples=8)),
}


async def reported(site: Site, receipt: bytes, made: Trained = MADE) -> Any:
    """What a manager takes for the outcome of an order."""
    members = Members()
    session = await members.attach("n1", site.signer.certificate)
    ticket = members.submit("n1", Order(KEY, 4, WORK))
    members.report(session, Done(KEY, made, receipt))
    return await members.outcome(ticket, 5.0)


@pytest.mark.parametrize("kind", FALSE)
async def test_a_result_without_the_receipt_of_its_node_is_a_failure(authority: Authority, kind: str) -> None:
    n1, n2 = Site(authority, "n1"), Site(authority, "n2")
    assert await reported(n1, n1.sign()) == MADE
    outcome = await reported(n1, FALSE[kind](n1, n2))
    assert outcome == Failure(FailureCode.BAD_RECEIPT, "node n1 has not signed what it reports")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"ref": ModelRef("m", 40)}, "it made 'm' without a digest"),
        ({"start": ModelRef("another", digest=OTHER)}, "it began with model 'another' in place of 'start'"),
        ({"start": ModelRef("start", digest=DIGEST)}, "it began with another model"),
        ({"start": ModelRef("", digest=OTHER)}, "it began with a model that it does not name"),
    ],
    ids=["no digest", "another start", "other bytes", "no name"],
)
async def test_a_node_that_signs_what_cannot_be_is_refused(
    authority: Authority, change: dict[str, Any], why: str
) -> None:
    n1, made = Site(authority, "n1"), dataclasses.replace(MADE, **change)
    outcome = await reported(n1, n1.sign(made=made), made)
    assert isinstance(outcome, Failure)
    assert why in outcome.detail


class Top:
    """The part of a top server that hears of the results of a group."""

    def __init__(
        self,
        authority: Authority,
        joined: Site,
        begun: dt.timedelta = dt.timedelta(),
        finished: tuple[FinishedHop, ...] = (),
    ) -> None:
        """It began so long ago. `finished` are the hops under an earlier manager."""
        self.lines: list[dict[str, Any]] = []
        #: The certificate of the node that is present now; empty if it has left.
        self.present = joined.signer.certificate
        now = dt.datetime.now(dt.UTC)
        context: Any = SimpleNamespace(
            journal=Recorder(),
            audit=self,
            membership=SimpleNamespace(note_offence=lambda _: None, certificate=lambda _: self.present),
            why_not_trusted=lambda shown: why_not_trusted(shown, authority.own[1], now, now - begun),
            renewed=set(),
        )
        member = dataclasses.replace(MEMBER, certificate_digest=bytes.fromhex(fingerprint(joined.signer.certificate)))
        request = RunGroupRequest(
            *("run", 1, 0, "relay", (member,), ModelRef("start", 40, OTHER), "", RelayMode.AUTO, False, None, 1.0, 40),
            finished=finished,
            serial=5,
        )
        manager: Any = SimpleNamespace(name="m0")
        self.watch = GroupWatch(context, Progress(), request, manager, Trace())
        self.member = member

    def note(self, what: str, **fields: Any) -> None:
        self.lines.append({"what": what, **fields})

    def hear(self, done: MemberDone) -> list[str]:
        """Tells of a result, and then of the result of the group; returns what the log has of it."""
        self.watch(GroupEvent(done))
        before = len(self.lines)
        self.watch.ended(Failure(FailureCode.UNSPECIFIED, "the end"))
        return [line["what"] for line in self.lines[1:before]]


@pytest.mark.parametrize("kind", FALSE)
def test_a_manager_cannot_invent_a_hop(authority: Authority, kind: str) -> None:
    n1, n2 = Site(authority, "n1"), Site(authority, "n2")
    top = Top(authority, n1)
    assert top.hear(MemberDone(4, 0, MADE, 0.0, KEY, n1.sign())) == ["made"]
    assert top.watch.done
    top = Top(authority, n1)
    assert top.hear(MemberDone(4, 0, MADE, 0.0, KEY, FALSE[kind](n1, n2))) == ["invented"]
    assert (top.watch.done, top.watch.hops) == ([], [])
    assert top.watch.refused is not None
    assert top.lines[-1]["failure"] == str(top.watch.refused)


@pytest.mark.parametrize(
    "made", [dataclasses.replace(MADE, ref=None), dataclasses.replace(MADE, ref=ModelRef("")), Described((1,)), None]
)
def test_a_training_without_a_model_is_no_answer(authority: Authority, made: Any) -> None:
    """Nobody signs it, so that its samples would count, and its model, without a receipt."""
    top = Top(authority, Site(authority, "n1"))
    assert top.hear(MemberDone(4, 0, made, 0.0, KEY)) == ["invented"]
    assert (top.watch.done, top.lines[-1]["answered"]) == ([], [])
    assert "without a model" in str(top.watch.refused)


def test_a_manager_cannot_pass_off_an_order_of_another_call(authority: Authority) -> None:
    n1 = Site(authority, "n1")
    for change in ({"run": "other"}, {"round": 2}, {"group": 1}, {"serial": 4}):
        key = dataclasses.replace(KEY, **change)
        top = Top(authority, n1)
        assert top.hear(MemberDone(4, 0, MADE, 0.0, key, n1.sign(key))) == ["invented"]
        assert "for another order" in str(top.watch.refused)
    top = Top(authority, n1)
    assert top.hear(MemberDone(4, 0, MADE, 0.0, None, n1.sign())) == ["invented"]


@pytest.mark.parametrize("start", [("", OTHER), ("", DIGEST), ("another", OTHER), ("start", DIGEST)], ids=repr)
def test_what_the_verification_of_the_log_would_refuse_gets_no_line(
    authority: Authority, start: tuple[str, bytes]
) -> None:
    n1, (name, digest) = Site(authority, "n1"), start
    made = dataclasses.replace(MADE, start=ModelRef(name, digest=digest))
    top = Top(authority, n1)
    assert top.hear(MemberDone(4, 0, made, 0.0, KEY, n1.sign(made=made))) == ["invented"]
    assert "that began with another model" in str(top.watch.refused)


def test_a_hop_begins_with_what_the_hop_before_it_has_made(authority: Authority) -> None:
    n1, second = Site(authority, "n1"), dataclasses.replace(KEY, position=1)
    for name, digest, heard in (
        ("m", DIGEST, ["made", "made"]),
        ("m", OTHER, ["made", "invented"]),
        ("", DIGEST, ["made", "invented"]),
        ("start", OTHER, ["made", "invented"]),
        ("", b"", ["made", "made"]),  # it was published before, and has no start
    ):
        top = Top(authority, n1)
        top.watch(GroupEvent(MemberDone(4, 0, MADE, 0.0, KEY, n1.sign())))
        made = dataclasses.replace(MADE, start=ModelRef(name, digest=digest))
        assert top.hear(MemberDone(4, 1, made, 0.0, second, n1.sign(second, made=made))) == heard
    assert Top(authority, n1).hear(MemberDone(4, 1, MADE, 0.0, second, n1.sign(second))) == ["invented"]


def test_a_relay_goes_on_from_the_hops_under_an_earlier_manager(authority: Authority) -> None:
    n1, second = Site(authority, "n1"), dataclasses.replace(KEY, position=1)
    finished = (FinishedHop(Member(3, "n0", "", 7), ModelRef("of n0", 40, DIGEST)),)
    for name, digest, heard in (("of n0", DIGEST, "made"), ("of n0", OTHER, "invented"), ("start", OTHER, "invented")):
        made = dataclasses.replace(MADE, start=ModelRef(name, digest=digest))
        top = Top(authority, n1, finished=finished)
        assert top.hear(MemberDone(4, 1, made, 0.0, second, n1.sign(second, made=made))) == [heard]


def test_a_renewed_certificate_counts_if_it_is_that_of_the_node(authority: Authority, tmp_path: Path) -> None:
    (tmp_path / "foreign").mkdir()
    old = Site(authority, "n1")
    new, other, foreign = Site(authority, "n1"), Site(authority, "n2"), Site(Authority(tmp_path / "foreign"), "n1")
    for site, heard in ((new, ["renewed", "made"]), (other, ["invented"]), (foreign, ["invented"])):
        top = Top(authority, old)
        done = MemberDone(4, 0, MADE, 0.0, KEY, site.sign(name="n1"), b"", site.signer.certificate)
        assert top.hear(done) == heard


def test_a_manager_that_tells_of_many_fetches_does_not_fill_the_log(authority: Authority) -> None:
    top = Top(authority, Site(authority, "n1"))
    for _ in range(150):
        for reader in ("node n1", "node n2"):
            top.watch(GroupEvent(Served("m", reader, reader, 40)))
    told = [(line["reader"], line["so_far"]) for line in top.lines if line["what"] == "fetched"]
    assert told == [(f"node {name}", so_far) for so_far in (1, 10, 100) for name in ("n1", "n2")]


@pytest.mark.parametrize("kind", FALSE)
def test_a_node_that_left_meanwhile_has_to_have_signed(authority: Authority, kind: str) -> None:
    n1, n2 = Site(authority, "n1"), Site(authority, "n2")
    for present in (b"", Site(authority, "n1").signer.certificate, n2.signer.certificate):
        top = Top(authority, n1)
        top.present = present  # it left, or joined anew with a renewed certificate while it was at work
        assert top.hear(MemberDone(4, 0, MADE, 0.0, KEY, n1.sign())) == ["made"]
        assert top.lines[1]["certificate"] == fingerprint(n1.signer.certificate)
        assert top.lines[1]["receipt"]
        top = Top(authority, n1)
        top.present = present
        assert top.hear(MemberDone(4, 0, MADE, 0.0, KEY, FALSE[kind](n1, n2))) == ["invented"]
        top = Top(authority, n1)
        top.present = present
        assert top.hear(MemberDone(4, 0, MADE, 0.0, None)) == ["invented"]


def test_a_certificate_may_expire_while_its_node_is_attached(authority: Authority) -> None:
    """But one that had expired before the top server started proves nothing."""
    joined, attached = Site(authority, "n1"), Site(authority, "n1", days=-1)
    done = MemberDone(4, 0, MADE, 0.0, KEY, attached.sign(), b"", attached.signer.certificate)
    for days, heard in ((2, ["renewed", "made"]), (0.5, ["invented"])):
        assert Top(authority, joined, dt.timedelta(days=days)).hear(done) == heard


def test_a_renewed_certificate_is_noted_once(authority: Authority) -> None:
    old, new = Site(authority, "n1"), Site(authority, "n1")
    top = Top(authority, old)
    done = MemberDone(4, 0, MADE, 0.0, KEY, new.sign(), b"", new.signer.certificate)
    for _ in range(10):
        top.watch(GroupEvent(done))
    assert [line["what"] for line in top.lines[1:]] == ["renewed", *["made"] * 10]


async def test_a_manager_passes_on_what_the_top_server_needs(authority: Authority) -> None:
    """With the certificate only if the node has another one than when it joined; and for an update that was lost."""
    old, new = Site(authority, "n1"), Site(authority, "n1")
    revealed = dataclasses.replace(MADE, update=ModelRef("m.update", 8, DIGEST))
    work = dataclasses.replace(WORK, reveal=Reveal("exact"))
    for site, certificate in ((old, b""), (new, new.signer.certificate)):
        members, events, top = Members(), list[GroupEvent](), Top(authority, old)
        session = await members.attach("n1", site.signer.certificate)
        ticket = members.submit("n1", Order(KEY, 4, work))
        members.report(session, Done(KEY, revealed, site.sign(made=revealed)))
        assert await members.outcome(ticket, 5.0) == revealed
        Reports(events.append).done(top.member, 0, MADE, ticket)
        (event,) = events
        assert isinstance(event.kind, MemberDone)
        assert event.kind.certificate == certificate
        assert "made" in top.hear(event.kind)


def test_a_site_keeps_what_it_was_asked_also_if_it_refused(authority: Authority, tmp_path: Path) -> None:
    site, attached = Site(authority, "n1"), Attached("run", "n1", "m0")
    with receipt_log(tmp_path) as log:
        receipts = Receipts(site.signer, log)
        strange = dataclasses.replace(WORK, settings=TrainingSettings("sgd", 1, 8, float("nan"), 0))
        assert receipts.answer(attached, KEY, Order(KEY, 4, strange), MADE)
        assert receipts.answer(attached, KEY, Order(KEY, 4, Describe()), Described((1, 2))) == b""
        receipts.failed(attached, KEY, Order(KEY, 4, WORK), Failure(FailureCode.POLICY, "no\x1b[2J"))
    text = (tmp_path / "receipts.jsonl").read_text()
    assert [text.count(word) for word in ('"answered": "trained"', '"failed": "POLICY"', '"reveal"')] == [1, 1, 0]
    assert "\x1b" not in text
    assert "[1, 2]" not in text


def test_a_top_server_cannot_fill_the_disk_of_a_site(
    authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = SimpleNamespace(f_bavail=10**6, f_frsize=1000, f_blocks=10**7)
    monkeypatch.setattr("fedgsp_node.receipts.os.statvfs", lambda _: disk)
    site, attached = Site(authority, "n1"), Attached("run", "n1", "m0")
    with receipt_log(tmp_path) as log:
        receipts = Receipts(site.signer, log)
        order = Order(KEY, 4, WORK)
        for number in range(10):
            disk.f_bavail = 10**6 if number < 3 else 10**5 // 2  # of 10 GB, 50 MB are left
            receipts.failed(attached, KEY, order, Failure(FailureCode.POLICY, ""))
        with pytest.raises(RunError, match="only 50 MB are free on its disk; make room"):
            receipts.answer(attached, KEY, order, MADE)
    assert len((tmp_path / "receipts.jsonl").read_text().splitlines()) == 3
