"""A certificate says who its holder is: with it a node does what is its own to do, and nothing else."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from fedgsp.connections.channels import Channels
from fedgsp.errors import ConfigError
from fedgsp.identity import TOP_SERVER, Identity, Role, manager, node
from fedgsp.messages import Failure, FailureCode
from fedgsp.processes.lifecycle import LIFELINE_VARIABLE
from fedgsp.security.access import AccessControl, Caller
from fedgsp.security.tickets import Door, Ticket, Verb
from fedgsp.security.tls import Tls, TlsFiles, load
from fedgsp.settings.run import NodeSettings
from fedgsp.transfers.model_calls import fetch, upload
from fedgsp.transfers.model_service import ModelServicer
from fedgsp.transfers.model_store import ModelStore
from fedgsp_node.connections.credentials import credentials
from tests.support.callers import ISSUER
from tests.support.certificates import Authority, unchecked
from tests.support.cluster import nodes, settings
from tests.support.hellos import hello, membership
from tests.support.holders import WEIGHTS, refused
from tests.support.serving import Served, serving
from tests.support.strangers import assert_unharmed
from tests.support.weights import TENSORS
from top_server.nodes import admission
from top_server.nodes.node import Node

HOLDER = node("holder")

#: So a refused caller hears of it; the second text is from gRPC: the call ended while its first message was under way.
REFUSED = ("PERMISSION_DENIED", "INTERNAL: Internal error from Core")


def flags(tls: Tls) -> dict[str, Any]:
    return {"tls_ca": tls.files.ca, "tls_cert": tls.files.cert, "tls_key": tls.files.key}


async def test_a_node_that_is_not_part_of_the_run_gets_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority(tmp_path)
    hosts = [
        dataclasses.replace(host, **flags(unchecked(authority.issue(f"n{number}", identity=node(f"n{number}")))))
        for number, host in enumerate(nodes([0, 2, 4, 6], [1, 3, 5, 7]))
    ]
    config = settings(tmp_path / "run", **flags(unchecked(authority.issue("top"))))
    stranger = unchecked(authority.issue("stranger", identity=node("n7")))
    refusals = frozenset({f"not allowed: it is node n7, not node {name}" for name in ("n0", "n9")})
    await assert_unharmed(config, hosts, monkeypatch, stranger, refusals)


@asynccontextmanager
async def holding(
    authority: Authority, store: ModelStore, verb: Verb = Verb.FETCH, **options: Any
) -> AsyncIterator[Served]:
    """A process that serves the models of a store to holders of tickets and certificates."""
    tls = unchecked(authority.issue("holder", identity=HOLDER))
    guard = AccessControl({verb: Door(ISSUER.key_of(HOLDER))}, tls=True)
    async with serving(ModelServicer(store, **options).add_to, tls=tls, access=guard, who=HOLDER) as served:
        yield served


def ticket(verb: Verb, thing: str, reader: Identity, holder: Identity = HOLDER) -> bytes:
    return ISSUER.ticket(holder, Ticket(verb, thing, reader))


async def test_a_model_is_for_the_reader_whom_the_ticket_names_and_no_other(tmp_path: Path) -> None:
    authority, store = Authority(tmp_path), ModelStore()
    store.put("m", WEIGHTS)
    store.put("secret", WEIGHTS)
    own = ticket(Verb.FETCH, "m", node("reader"))
    shown = {
        "of another reader": ticket(Verb.FETCH, "m", node("other")),
        "of the top server": ticket(Verb.FETCH, "m", TOP_SERVER),
        "of a manager": ticket(Verb.FETCH, "m", manager("reader")),
        "for another verb": ticket(Verb.UPLOAD, "m", node("reader")),
        "for another holder": ticket(Verb.FETCH, "m", node("reader"), node("elsewhere")),
        "none": b"",
    }
    async with holding(authority, store) as served:
        async with Channels(unchecked(authority.issue("reader", identity=node("reader")))) as channels:
            channel = await channels.to(served.address, HOLDER)
            assert (await fetch(channel, "m", TENSORS, 40, ticket=own)).digest == WEIGHTS.digest
            for what, other in shown.items():
                failure = await refused(fetch(channel, "m", TENSORS, 40, ticket=other))
                assert failure.detail.startswith(REFUSED), what
            failure = await refused(fetch(channel, "secret", TENSORS, 40, ticket=own))
            assert failure.detail.startswith(REFUSED)
        for identity in (node("thief"), None, manager("reader"), Identity(Role.GROUPING_SERVICE)):
            files = authority.issue("thief", identity=identity)
            async with Channels(unchecked(files)) as channels:
                failure = await refused(fetch(await channels.to(served.address, HOLDER), "m", TENSORS, 40, ticket=own))
                assert failure.detail.startswith(REFUSED), identity


def beside(files: TlsFiles, *others: TlsFiles) -> Tls:
    """What a process sends that sends others' certificates, which are no secret, behind the certificate of its key."""
    sent = b"".join(each.cert.read_bytes() for each in (files, *others))
    return dataclasses.replace(unchecked(files), cert=sent)


async def test_only_the_certificate_of_its_key_says_who_the_caller_is(tmp_path: Path) -> None:
    authority, store = Authority(tmp_path), ModelStore()
    store.put("m", WEIGHTS)
    thief, reader = (authority.issue(name, identity=node(name)) for name in ("thief", "reader"))
    top, behind = authority.issue("top"), TlsFiles(authority.ca, authority.ca, authority.ca)
    async with holding(authority, store) as served:
        for others in ([reader], [top], [reader, top], [thief, reader], [behind, top]):
            async with Channels(beside(thief, *others)) as channels:
                channel = await channels.to(served.address, HOLDER)
                for named in (node("reader"), TOP_SERVER):
                    failure = await refused(fetch(channel, "m", TENSORS, 40, ticket=ticket(Verb.FETCH, "m", named)))
                    assert failure.detail.startswith(REFUSED)
        for others in ([], [behind], [reader, behind], [reader, reader, top]):  # a reader remains itself
            async with Channels(beside(reader, *others)) as channels:
                own = ticket(Verb.FETCH, "m", node("reader"))
                channel = await channels.to(served.address, HOLDER)
                assert (await fetch(channel, "m", TENSORS, 40, ticket=own)).digest == WEIGHTS.digest


@pytest.mark.parametrize("name", ["fedgsp://node/reader\0.example", "fedgsp://top-server\0"])
async def test_a_name_is_not_read_up_to_a_nul_byte(tmp_path: Path, name: str) -> None:
    authority, store = Authority(tmp_path), ModelStore()
    store.put("m", WEIGHTS)
    files = authority.issue("thief", identity=None, names=[x509.UniformResourceIdentifier(name)])
    async with holding(authority, store) as served, Channels(unchecked(files)) as channels:
        channel = await channels.to(served.address, HOLDER)
        for reader in (node("reader"), TOP_SERVER):
            failure = await refused(fetch(channel, "m", TENSORS, 40, ticket=ticket(Verb.FETCH, "m", reader)))
            # gRPC reports an internal error to a caller that was still sending.
            assert failure.detail.startswith(("PERMISSION_DENIED", "INTERNAL"))


async def test_a_model_is_taken_from_its_maker_alone(tmp_path: Path) -> None:
    authority, store = Authority(tmp_path), ModelStore()
    own = ticket(Verb.UPLOAD, "m", node("maker"))
    options: dict[str, Any] = {"may_upload": lambda _: True, "max_bytes": lambda: 40}
    async with holding(authority, store, Verb.UPLOAD, **options) as served:
        for name, shown, model_id in (
            ("thief", own, "m"),
            ("maker", ticket(Verb.UPLOAD, "other", node("maker")), "m"),
            ("maker", own, "other"),
            ("maker", b"", "m"),
        ):
            async with Channels(unchecked(authority.issue(name, identity=node(name)))) as channels:
                await refused(upload(await channels.to(served.address, HOLDER), model_id, WEIGHTS, ticket=shown))
            assert len(store) == 0, (name, model_id)
        async with Channels(unchecked(authority.issue("maker", identity=node("maker")))) as channels:
            await upload(await channels.to(served.address, HOLDER), "m", WEIGHTS, ticket=own)
    assert "m" in store


def proven(name: str) -> Caller:
    return Caller(node(name), None)


async def test_a_client_belongs_to_the_node_that_hosted_it_also_when_that_has_left() -> None:
    members, _ = membership()
    first = await members.admit(hello("hospital-a", (0, 1)), proven("hospital-a"))
    assert isinstance(first, Node)
    await members.leave(first, "a crash")
    for said in (hello("mallory", (1, 5)), hello("mallory", (1,))):
        failure = await members.admit(said, proven("mallory"))
        assert isinstance(failure, Failure)
        assert failure.code is FailureCode.CLIENT_TAKEN
    failure = await members.admit(hello("hospital-a", (0, 1)), proven("mallory"))
    assert isinstance(failure, Failure)
    assert failure.code is FailureCode.NOT_ALLOWED
    assert isinstance(await members.admit(hello("hospital-a", (0, 1)), proven("hospital-a")), Node)


async def test_a_node_cannot_take_more_clients_by_joining_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "MOST_CLIENTS_OF_NODE", 4)
    members, _ = membership()
    for clients, taken in (((0, 1), True), ((2, 3), True), ((4,), False), ((), False), ((0, 3), True)):
        joined = await members.admit(hello("hospital-a", clients), proven("hospital-a"))
        assert isinstance(joined, Node) is taken, clients
        if isinstance(joined, Node):
            await members.leave(joined, "a crash")
    members.own(dict.fromkeys(range(10, 14), "hospital-b"))  # as of a run that is resumed
    assert isinstance(await members.admit(hello("hospital-b", (5,)), proven("hospital-b")), Failure)
    assert sorted(members.owners) == [0, 1, 2, 3, 10, 11, 12, 13]


async def test_a_node_cannot_fill_the_record_by_joining(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.monotonic", lambda: 0.0)
    members, recorder = membership()
    for _ in range(2 * admission.MOST_JOINS):
        joined = await members.admit(hello("hospital-a", (0,)), proven("hospital-a"))
        if isinstance(joined, Node):
            await members.leave(joined, "a crash")
    assert isinstance(joined, Failure)
    assert "times within a minute" in joined.detail
    assert len(recorder.of_kind("node_joined")) == admission.MOST_JOINS
    assert isinstance(await members.admit(hello("hospital-b", (1,)), proven("hospital-b")), Node)
    monkeypatch.setattr("time.monotonic", lambda: 61.0)
    assert isinstance(await members.admit(hello("hospital-a", (0,)), proven("hospital-a")), Node)


def test_a_certificate_that_names_nobody_or_another_role_is_refused_at_the_start(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    for identity in (None, manager("m0"), Identity(Role.GROUPING_SERVICE)):
        tls = load(authority.issue("any", identity=identity))
        assert tls is not None
        with pytest.raises(ConfigError, match="URI:fedgsp://node/NAME in its subjectAltName"):
            tls.check_is(Role.NODE, Role.TOP_SERVER)


def test_a_node_refuses_the_certificate_of_the_top_server_unless_the_top_server_has_started_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = NodeSettings(**flags(unchecked(Authority(tmp_path).issue("top"))))
    with pytest.raises(ConfigError, match=r"is not the certificate of a node: top-server; .*fedgsp-node enrol"):
        credentials(settings)
    monkeypatch.setenv(LIFELINE_VARIABLE, "stdin")  # as for a local node
    assert credentials(settings) is not None


def test_a_node_has_the_name_in_its_certificate(tmp_path: Path) -> None:
    tls = unchecked(Authority(tmp_path).issue("a", identity=node("hospital-a")))
    assert credentials(NodeSettings(name="hospital-a", **flags(tls))) is not None
    with pytest.raises(ConfigError, match="--name hospital-b is not the name in --tls-cert"):
        credentials(NodeSettings(name="hospital-b", **flags(tls)))
