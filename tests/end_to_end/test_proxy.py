"""Nodes behind an HTTP proxy: a run has the oracle's bits, and every connection is opened by the proxy."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path

import psutil
import pytest

from fedgsp.connections.addresses import split_address
from fedgsp.identity import TOP_SERVER
from fedgsp.identity import node as identity_of
from fedgsp.settings.proxies import PASSWORD_VARIABLE
from fedgsp_node.tasks import load_task
from tests.support.certificates import HERE, Authority
from tests.support.connect_proxy import connect_proxy
from tests.support.processes import node, program, top_server
from tests.support.reference import Reference, assert_same_bits
from tests.support.serving import nobody
from top_server.record.model_files import load

#: The name of the top server's machine, which only the proxy knows.
FAR = "top.example.test"
USER, SECRET = "site", "p:w@rd/100%"


def tls_flags(authority: Authority, name: str, hosts: tuple[str, ...] = HERE) -> list[str]:
    files = authority.issue(name, hosts=hosts, identity=TOP_SERVER if name == "top" else identity_of(name))
    return ["--tls-ca", str(files.ca), "--tls-cert", str(files.cert), "--tls-key", str(files.key)]


def arguments_of(pid: int) -> str:
    return " ".join(psutil.Process(pid).cmdline())


@pytest.mark.e2e
@pytest.mark.timeout(120)
@pytest.mark.parametrize("secured", [True, pytest.param(False, marks=pytest.mark.slow)])
async def test_nodes_behind_a_proxy_with_a_password_play_a_run(tmp_path: Path, secured: bool) -> None:
    authority, run = Authority(tmp_path), tmp_path / "run"
    (tmp_path / "password").write_text(SECRET)
    flags = ["--rounds", "2", "--beta", "2", "--sampling-rate", "1", "--min-nodes", "2", "--keep-models", "all"]
    flags += ["--task-option", "clients=8", "--listen", "0.0.0.0:0", "--run-dir", str(run)]
    flags += tls_flags(authority, "top", (*HERE, FAR)) if secured else ["--insecure"]
    async with AsyncExitStack() as stack:
        way = await stack.enter_async_context(connect_proxy(user=USER, password=SECRET, hosts={FAR: "127.0.0.1"}))
        server = await stack.enter_async_context(top_server(tmp_path, *flags))
        far = f"{FAR}:{split_address((await server.event('listening'))['address'])[1]}"
        started = []
        for name, clients in (("n0", "0-3"), ("n1", "4-7")):
            own = ["--task-option", "clients=8", "--clients", clients, "--proxy", f"http://{USER}@{way.address}"]
            own += tls_flags(authority, name) if secured else ["--insecure"]
            given = {} if name == "n0" else {PASSWORD_VARIABLE: SECRET}
            own += ["--proxy-password", str(tmp_path / "password")] if name == "n0" else []
            host = node(tmp_path, far, *own, name=name, env=given or None)
            started.append(await stack.enter_async_context(host))
        await server.event("round_started", round=1)
        assert not any(SECRET in arguments_of(process.pid) for process in started)
        assert await server.ended(90) == 0, server.errors
        for process in started:
            assert await process.ended() == 0, process.errors
        oracle = Reference(load_task("digits", {"clients": "8"}), range(8), rounds=2, beta=2, sampling_rate=1.0)
        assert_same_bits(load(run / "models" / "round-0002.safetensors")[0], oracle.play_fedgsp()[1])
        # For orders and for models, to the top server and to at least two managers.
        assert way.opened.count(far) >= 4
        assert len({address for address in way.opened if address.startswith(FAR)}) >= 3
        assert not way.refused
    assert_nowhere_written(tmp_path)


def assert_nowhere_written(folder: Path) -> None:
    """The password stands in no log, no record and no other file, except in the one that the user wrote."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != "password"]
    assert {"events.jsonl", "n0.log"} <= {path.name for path in files}
    assert [path for path in files if SECRET.encode() in path.read_bytes()] == []


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("password", "refusals", "there", "said"),
    [
        ("another", {}, True, "does not accept this user and password (407 Refused)"),
        (SECRET, {"": 403}, True, "does not allow connections to 127.0.0.1:9 (403 Refused)"),
        (SECRET, {}, False, "the proxy cannot be reached: nothing listens at"),
    ],
)
async def test_a_check_names_what_is_wrong_with_the_proxy(
    tmp_path: Path, password: str, refusals: dict[str, int], there: bool, said: str
) -> None:
    (tmp_path / "password").write_text(password)
    async with nobody() as gone, connect_proxy(user=USER, password=SECRET, refusals=refusals) as way:
        flags = ["--top-server", "127.0.0.1:9", "--clients", "0", "--task-option", "clients=8"]
        flags += ["--proxy", f"http://{USER}@{way.address if there else gone.address}"]
        flags += ["--proxy-password", str(tmp_path / "password")]
        async with program(["fedgsp_node", "check", *flags], tmp_path / "check.log") as check:
            assert await check.ended() == 7, check.errors
    (line,) = [line for line in check.lines if said in line]
    assert line.split()[:2] == ["bad", "proxy"]
    assert password not in "\n".join(check.lines) + check.errors
