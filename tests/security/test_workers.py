"""The certificate of a worker: one node of the run that has placed it, wherever it runs, and nothing else."""

from __future__ import annotations

import dataclasses
import datetime as dt
from pathlib import Path

import pytest

from fedgsp import identity
from fedgsp.connections.channels import Channels, start_server
from fedgsp.errors import ConfigError, PeerError
from fedgsp.identity import TOP_SERVER, Identity, manager, node, worker
from fedgsp.messages import Failure, FailureCode
from fedgsp.security.access import RULES, Caller
from fedgsp.security.certificates import new_key, now, pem_of, pem_of_key
from fedgsp.security.signing import uris_in
from fedgsp.security.tls import Tls, in_folder, load
from fedgsp.settings.run import NodeSettings, RunConfig
from fedgsp_node.connections.credentials import credentials
from tests.support.callers import OPEN
from tests.support.cluster import play, settings
from tests.support.hellos import hello, membership
from top_server.federation.authority import Authority, new_authority
from top_server.federation.folder import made
from top_server.nodes.callers import Placed, enrolment_of
from top_server.nodes.node import Node
from top_server.placing import certificates
from top_server.placing.base import CA, OWN
from top_server.record.history import read_lines

PLACED = Placed("run-1", {"node-0": range(0, 2), "node-1": range(2, 4)})


def calling(name: str = "node-0", run: str = "run-1") -> Caller:
    return Caller(worker(name), None, enrolment=enrolment_of(run, name))


def laid_out(folder: Path, authority: Authority, name: str = "node-0", run: str = "run-1") -> Tls:
    """The certificate of a worker as files, read as the worker reads them."""
    folder.mkdir(exist_ok=True)
    for file, content in certificates.Certificates(authority, run).secrets(name).items():
        (folder / file).write_bytes(content)
        (folder / file).chmod(0o600)
    found = load(dataclasses.replace(in_folder(folder, "node", ""), ca=folder / CA))
    assert found is not None
    return found


def certified(folder: Path, authority: Authority, who: Identity, hosts: list[str]) -> Tls:
    folder.mkdir(exist_ok=True)
    key = new_key()
    found = authority.issued(who, hosts, key.public_key(), now() + dt.timedelta(days=1))
    (folder / CA).write_bytes(pem_of(authority.certificate))
    (folder / OWN).write_bytes(pem_of(found) + pem_of_key(key))
    (folder / OWN).chmod(0o600)
    loaded = load(in_folder(folder, "node", ""))
    assert loaded is not None
    return loaded


def test_a_worker_may_do_what_a_node_may_but_for_a_new_certificate_and_may_run_managers() -> None:
    nodes = {path for path, rule in RULES.items() if identity.Role.NODE in rule.roles}
    workers = {path for path, rule in RULES.items() if identity.Role.WORKER in rule.roles}
    assert nodes - workers == {"/fedgsp.v1.EnrolmentService/Renew"}
    assert workers - nodes == {"/fedgsp.v1.HostingService/Host"}
    own = worker("node-0")
    assert own.speaks_for(node("node-0"))
    assert not any(own.speaks_for(one) for one in (node("node-1"), worker("node-1"), TOP_SERVER))
    assert not node("node-0").speaks_for(own)


@pytest.mark.parametrize(
    ("name", "run", "clients", "why"),
    [
        ("node-0", "run-2", (0, 1), "has not placed it"),
        ("node-2", "run-1", (0, 1), "has not placed it"),
        ("node-0", "run-1", (1, 2), "client 2 was not dealt to it"),
    ],
)
def test_a_worker_of_another_run_or_with_other_clients_is_refused(
    name: str, run: str, clients: tuple[int, ...], why: str
) -> None:
    refusal = PLACED.refusal(hello(name, clients), calling(name, run))
    assert refusal is not None
    assert refusal.failure.code is FailureCode.NOT_ALLOWED
    assert why in refusal.failure.detail


def test_a_worker_of_the_run_and_other_callers_pass() -> None:
    assert PLACED.refusal(hello("node-0", (0, 1)), calling()) is None
    assert Placed("run-1", {"node-0": None}).refusal(hello("node-0", (7,)), calling()) is None
    for other in (Caller(None, None), Caller(node("node-0"), None), Caller(TOP_SERVER, None)):
        assert PLACED.refusal(hello("node-0", (2, 3)), other) is None


def test_who_may_run_managers_is_a_worker_of_this_run() -> None:
    assert PLACED.is_worker("node-0", calling())
    assert PLACED.is_worker("node-0", Caller(TOP_SERVER, None))
    assert PLACED.is_worker("node-0", Caller(None, None))  # on one machine: see the check of its ticket
    others = [calling("node-1"), calling(run="run-2"), Caller(node("node-0"), None), Caller(manager("node-0"), None)]
    assert not any(PLACED.is_worker("node-0", other) for other in others)
    assert not PLACED.is_worker("node-9", calling("node-9"))


async def test_a_run_that_has_placed_nobody_admits_no_worker() -> None:
    members, _ = membership()
    assert isinstance(await members.admit(hello("node-0"), calling()), Failure)
    members.placed = PLACED
    assert isinstance(await members.admit(hello("node-0"), calling()), Node)


async def test_a_worker_that_returns_takes_the_place_of_its_older_connection_and_of_no_other_nodes() -> None:
    members, recorder = membership()
    members.placed = PLACED
    await members.admit(hello("node-0"), calling())
    assert isinstance(await members.admit(hello("node-0"), calling()), Node)
    assert [event["node"] for event in recorder.of_kind("node_left")] == ["node-0"]
    taken = await members.admit(hello("node-0"), Caller(node("node-0"), None))
    assert isinstance(taken, Failure)
    assert taken.code is FailureCode.NAME_TAKEN


async def test_a_worker_is_dialled_by_its_name_wherever_it_runs(tmp_path: Path) -> None:
    authority = new_authority()
    server, address = await start_server("127.0.0.1:0", [], OPEN, laid_out(tmp_path / "worker", authority))
    try:
        async with Channels(laid_out(tmp_path / "reader", authority, "node-1")) as channels:
            channel = await channels.to(address, node("node-0"))
            await channel.channel_ready()
        for other in (node("node-2"), TOP_SERVER, worker("node-0")):
            async with Channels(laid_out(tmp_path / "reader", authority, "node-1")) as channels:
                with pytest.raises(PeerError, match="certificate of the server"):
                    await channels.to(address, other)
    finally:
        await server.stop(None)


async def test_the_name_of_a_worker_as_a_host_does_not_make_a_node_that_worker(tmp_path: Path) -> None:
    authority = new_authority()
    hosts = [identity.host_of_placed(node("node-0"))]
    false = certified(tmp_path / "false", authority, node("hospital"), hosts)
    server, address = await start_server("127.0.0.1:0", [], OPEN, false)
    try:
        async with Channels(laid_out(tmp_path / "reader", authority, "node-1")) as channels:
            with pytest.raises(PeerError, match=r"is that of node hospital, not of node node-0"):
                await channels.to(address, node("node-0"))
    finally:
        await server.stop(None)


def test_a_worker_needs_no_host_in_its_certificate_and_has_the_name_that_it_was_given(tmp_path: Path) -> None:
    laid_out(tmp_path / "worker", new_authority())
    folder = tmp_path / "worker"
    own = NodeSettings(
        top_server="top:7000",
        peer_listen="0.0.0.0:0",
        advertise="n17:0",
        tls_ca=folder / CA,
        tls_cert=folder / OWN,
        tls_key=folder / OWN,
    )
    assert credentials(own) is not None
    with pytest.raises(ConfigError, match="--name other is not the name in"):
        credentials(dataclasses.replace(own, name="other"))


def test_workers_on_other_machines_have_certificates_of_a_ca_of_the_run(tmp_path: Path) -> None:
    folder = tmp_path / "place"
    config = RunConfig(place="slurm", workers=2, clients=4)
    certificates.check(config)
    first = certificates.connected(config, folder, "login1")
    assert first.listen == "0.0.0.0:0"
    found = load(first.tls_files)
    assert found is not None
    found.check_covers("login1", "as workers dial it")
    found.check_covers("127.0.0.1", "as it dials its managers")
    issuer = certificates.issuer(first, folder, "run-1")
    assert issuer is not None
    uris = uris_in(issuer.secrets("node-0")[OWN].partition(b"-----BEGIN PRIVATE")[0])
    assert uris == ["fedgsp://worker/node-0", enrolment_of("run-1", "node-0")]
    ca = (folder / "ca.pem").read_bytes()
    assert certificates.connected(config, folder, "login2").tls_ca == folder / "ca.pem"
    assert (folder / "ca.pem").read_bytes() == ca, "a resumed run has another CA"
    assert {path.stat().st_mode & 0o077 for path in (folder, *folder.iterdir())} == {0}
    own = certificates.connected(dataclasses.replace(config, listen="10.0.0.1:7000"), folder, "login1")
    assert own.listen == "10.0.0.1:7000"


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"insecure": True}, "drop --insecure"),
        ({"listen": "127.0.0.1:8000"}, "is on loopback"),
        (
            {"tls_ca": Path("a"), "tls_cert": Path("b"), "tls_key": Path("c")},
            "the key of the CA of --tls-ca is not here",
        ),
    ],
)
def test_connections_that_workers_on_other_machines_cannot_have_are_refused(
    changes: dict[str, object], what: str
) -> None:
    config = RunConfig(place="slurm", workers=2, clients=4)
    with pytest.raises(ConfigError, match=what):
        certificates.check(dataclasses.replace(config, **changes))  # type: ignore[arg-type]


@pytest.mark.e2e
async def test_local_nodes_of_a_federation_have_certificates_of_their_own(tmp_path: Path) -> None:
    made(tmp_path / "federation")
    config = settings(tmp_path / "run", local_nodes=2, clients=8, rounds=1, federation=tmp_path / "federation")
    finished = await play(config, [])
    assert len(finished.rows) == 1
    admitted = [line for line in read_lines(finished.directory.audit) if line["what"] == "admitted"]
    assert sorted(line["caller"] for line in admitted) == ["worker node-0", "worker node-1"]
