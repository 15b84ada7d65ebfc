"""Whom the audit log names as the caller, and who is not admitted although its connection is open."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from fedgsp.errors import PeerError
from fedgsp.identity import TOP_SERVER, node
from fedgsp.messages import Failure, FailureCode
from fedgsp.security.access import AccessControl, Caller
from fedgsp.security.tickets import Door, Ticket, Verb
from fedgsp.transfers.model_calls import fetch
from fedgsp.transfers.model_store import ModelStore
from tests.support.callers import ISSUER
from tests.support.certificates import Authority
from tests.support.federations import Scene, federated
from tests.support.hellos import hello, membership
from tests.support.serving import serving
from tests.support.weights import TENSORS, some_weights
from top_server.doors import models_of
from top_server.nodes.node import Node
from top_server.record.audit import Audit, Fetches


class Lines(Audit):
    """Keeps the lines of an audit log."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []

    def note(self, what: str, **fields: Any) -> None:
        self.lines.append({"what": what, **fields})


@pytest.fixture
def audit() -> Lines:
    return Lines()


@pytest.fixture
async def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Scene]:
    async with federated(tmp_path / "federation", monkeypatch) as found:
        yield found


async def test_a_refused_enrolment_is_noted_with_the_certificate_of_its_caller(scene: Scene, audit: Lines) -> None:
    scene.membership._refusals._audit = audit
    invitation = scene.invite("hospital-a")
    await scene.use(invitation)
    with pytest.raises(PeerError, match="was used already"):
        await scene.use(invitation)
    assert [(line["what"], line["caller"]) for line in audit.lines] == [("refused", "invited hospital-a")]


async def test_a_ticket_alone_does_not_make_a_local_user(audit: Lines) -> None:
    """With --insecure, the top server gives tickets to nodes that have proven nothing."""
    store = ModelStore()
    store.put("m", some_weights())
    access = AccessControl({Verb.FETCH: Door(ISSUER.key_of(TOP_SERVER))}, tls=False)
    ticket = ISSUER.ticket(TOP_SERVER, Ticket(Verb.FETCH, "m", node("n0")))
    async with serving(models_of(store, audit).add_to, access=access) as served:
        await fetch(served.channel, "m", TENSORS, 1 << 20, ticket=ticket)
    assert [(line["reader"], line["caller"]) for line in audit.lines] == [("node n0", "unproven")]


async def test_a_node_that_fetches_a_model_again_and_again_does_not_fill_the_log(audit: Lines) -> None:
    store = ModelStore()
    access = AccessControl({Verb.FETCH: Door(ISSUER.key_of(TOP_SERVER))}, tls=False)
    async with serving(models_of(store, audit).add_to, access=access) as served:
        for name, times in (("m", 25), ("other", 1)):
            store.put(name, some_weights())
            for reader in ("n0", "n1"):
                ticket = ISSUER.ticket(TOP_SERVER, Ticket(Verb.FETCH, name, node(reader)))
                for _ in range(times):
                    await fetch(served.channel, name, TENSORS, 1 << 20, ticket=ticket)
    told = [(line["model"], line["reader"], line["so_far"]) for line in audit.lines]
    of_m = [("m", f"node {reader}", so_far) for reader in ("n0", "n1") for so_far in (1, 10)]
    assert told == [*of_m, ("other", "node n0", 1), ("other", "node n1", 1)]


def test_what_was_fetched_is_forgotten_with_the_model(audit: Lines) -> None:
    there = {"m"}
    fetches = Fetches(audit, "top-server", there.__contains__)
    fetches.note("m", "node n0", "node n0", 40)
    there.remove("m")
    for number in range(100):
        fetches.note(f"m{number}", "node n0", "node n0", 40)
    assert len(fetches._so_far) == 1
    assert len(audit.lines) == 101


async def test_a_certificate_that_has_expired_is_not_admitted_over_an_open_connection(
    audit: Lines, tmp_path: Path
) -> None:
    authority = Authority(tmp_path)
    members, _ = membership(audit=audit)
    for days, kind, what in ((-1, Failure, "refused"), (1, Node, "admitted")):
        own = authority.issue("n0", identity=node("n0"), days=days).cert.read_bytes()
        told = await members.admit(hello("n0"), Caller(node("n0"), None, certificate=own))
        assert isinstance(told, kind)
        assert not isinstance(told, Failure) or told.code is FailureCode.CERTIFICATE_EXPIRED
        assert (audit.lines[-1]["what"], audit.lines[-1]["caller"]) == (what, "node n0")
