"""The door for monitoring: read-only, on loopback without TLS, elsewhere for operators alone."""

from __future__ import annotations

import asyncio
import dataclasses
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from fedgsp.errors import ConfigError
from fedgsp.identity import TOP_SERVER, Identity, Role, node
from fedgsp.security.tls import Tls, load
from fedgsp.settings.run import RunConfig
from tests.support.certificates import Authority, unchecked
from top_server.metrics import door
from top_server.metrics.state import State

DEADLINE_S = 30.0
OPERATOR = Identity(Role.OPERATOR, "alice")


@asynccontextmanager
async def opened(tls: Tls | None = None, patience_s: float = DEADLINE_S) -> AsyncIterator[int]:
    """The port of a door: on every interface with TLS, else on loopback."""
    listen, pages = ("0.0.0.0:0" if tls else "127.0.0.1:0"), door.pages_of(State(), 60.0)
    async with door.opened(listen, tls, pages, patience_s) as address:
        yield int(address.rpartition(":")[2])


async def said(port: int, question: str | bytes, tls: Tls | ssl.SSLContext | None = None) -> str:
    """All that a caller hears; empty if the connection ends without an answer."""
    context = tls.context(ssl.PROTOCOL_TLS_CLIENT) if isinstance(tls, Tls) else tls
    async with asyncio.timeout(DEADLINE_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
        try:
            writer.write(question if isinstance(question, bytes) else question.replace("\n", "\r\n").encode())
            return (await reader.read()).decode()
        except ConnectionError:
            return ""
        finally:
            writer.transport.abort()


def asked(path: str = "/healthz", host: str = "127.0.0.1", method: str = "GET", more: str = "") -> str:
    return f"{method} {path} HTTP/1.1\nHost: {host}\n{more}\n"


def status(answer: str) -> str:
    return answer.partition("\r\n")[0].partition(" ")[2]


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost:9", "[::1]", "[::1]:9", "127.0.0.1:1234"])
async def test_a_caller_on_this_machine_may_read(host: str) -> None:
    async with opened() as port:
        assert status(await said(port, asked("/metrics?x=1", host))) == "200 OK"
        assert (await said(port, asked(host=host))).endswith("\r\n\r\nok\n")
        head = await said(port, asked(host=host, method="HEAD"))
        assert status(head) == "200 OK"
        assert head.endswith("\r\n\r\n")


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "10.0.0.1", "", "a b"])
async def test_a_page_of_another_origin_that_rebinds_its_name_reads_nothing(host: str) -> None:
    async with opened() as port:
        assert status(await said(port, asked("/metrics", host))) == "421 Misdirected Request"
        assert status(await said(port, f"GET /metrics HTTP/1.1\nHost: localhost\nHost: {host}\n\n")).startswith("421")
        assert status(await said(port, "GET /metrics HTTP/1.1\n\n")).startswith("421")


async def test_no_answer_may_be_read_by_other_origins_or_kept() -> None:
    async with opened() as port:
        told = await said(port, asked("/metrics", more="Origin: http://evil.example\n"))
    assert "Access-Control" not in told
    assert {"Cross-Origin-Resource-Policy: same-origin", "Cache-Control: no-store"} <= set(told.split("\r\n"))


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "CONNECT"])
async def test_nothing_can_be_changed(method: str) -> None:
    async with opened() as port:
        assert status(await said(port, asked(method=method))) == "405 Method Not Allowed"


@pytest.mark.parametrize("path", ["/", "/../etc/passwd", "//healthz", "http://127.0.0.1/healthz", "/metrics/"])
async def test_there_is_nothing_else_to_read(path: str) -> None:
    async with opened() as port:
        assert status(await said(port, asked(path))) == "404 Not Found"


@pytest.mark.parametrize(
    ("question", "told"),
    [
        (b"GET /metrics\r\nHost: localhost\r\n\r\n", "400 Bad Request"),
        (b"\x16\x03\x01 hello \xff\r\n\r\n", "400 Bad Request"),
        (b"GET /metrics SPDY/3\r\nHost: localhost\r\n\r\n", "400 Bad Request"),
        (b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 200 + b"\r\n", "400 Bad Request"),
        (b"GET / HTTP/1.1\r\nHost: " + b"a" * 20_000 + b"\r\n\r\n", ""),
    ],
)
async def test_what_is_no_question_gets_no_more_than_a_refusal(question: bytes, told: str) -> None:
    async with opened() as port:
        assert status(await said(port, question)) == told
        assert status(await said(port, asked())) == "200 OK"


async def test_a_caller_that_says_nothing_is_sent_away() -> None:
    async with opened(patience_s=0.05) as port:
        assert await said(port, b"GET /metrics HTTP/1.1\r\n") == ""


async def test_many_silent_callers_get_no_more_than_their_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "MOST_CONNECTIONS", 3)
    async with opened() as port:
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
        assert await said(port, asked()) == ""
        for _, writer in silent:
            writer.transport.abort()
        for _ in range(1000):
            if await said(port, asked()):
                return
    raise AssertionError("nobody is answered after silent callers have gone")


async def test_an_operator_may_read_from_another_machine(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    tls = load(authority.issue("top"))
    alice = unchecked(authority.issue("alice", identity=OPERATOR))
    async with opened(tls) as port:
        assert status(await said(port, asked("/metrics", "localhost:1"), alice)) == "200 OK"
        assert status(await said(port, asked("/metrics", "evil.example"), alice)) == "421 Misdirected Request"


@pytest.mark.parametrize("identity", [node("n0"), Identity(Role.MANAGER), Identity(Role.GROUPING_SERVICE), None])
async def test_no_other_role_may_read(tmp_path: Path, identity: Identity | None) -> None:
    authority = Authority(tmp_path)
    tls = load(authority.issue("top"))
    async with opened(tls) as port:
        told = await said(port, asked("/metrics"), unchecked(authority.issue("other", identity=identity)))
    assert status(told) == "403 Forbidden"
    assert "fedgsp_" not in told


async def test_nobody_may_read_without_a_certificate_of_the_ca(tmp_path: Path) -> None:
    authority, other = Authority(tmp_path), Authority(tmp_path, "other")
    tls = load(authority.issue("top"))
    stranger = dataclasses.replace(unchecked(other.issue("alice", identity=OPERATOR)), ca=authority.ca.read_bytes())
    expired = unchecked(authority.issue("expired", days=-1, identity=OPERATOR))
    async with opened(tls) as port:
        assert "fedgsp_" not in await said(port, asked("/metrics"))  # without TLS
        nothing = ssl.create_default_context(cafile=str(authority.ca))
        for caller in (stranger, expired, nothing):
            try:
                told = await said(port, asked("/metrics"), caller)
            except ssl.SSLError:
                told = ""
            assert told == ""


async def test_a_renewed_certificate_is_shown_without_a_restart(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    tls = load(authority.issue("top"))
    alice = unchecked(authority.issue("alice", identity=OPERATOR))
    context = alice.context(ssl.PROTOCOL_TLS_CLIENT)

    async def shown(port: int) -> object:
        async with asyncio.timeout(DEADLINE_S):
            _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
        try:
            return writer.get_extra_info("peercert")["serialNumber"]
        finally:
            writer.transport.abort()

    async with opened(tls) as port:
        before = await shown(port)
        authority.issue("top")
        assert await shown(port) != before


async def test_an_operator_may_read_after_the_first_certificate_has_ended(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    tls = dataclasses.replace(unchecked(authority.issue("top", days=-1)), identity=TOP_SERVER)
    alice = unchecked(authority.issue("alice", identity=OPERATOR))
    async with opened(tls) as port:
        authority.issue("top")
        assert status(await said(port, asked(), alice)) == "200 OK"


@pytest.mark.parametrize("address", ["0.0.0.0:9100", "top.example.org:9100", "*:9100"])
def test_it_does_not_open_beyond_loopback_without_tls_whatever_is_allowed_elsewhere(address: str) -> None:
    with pytest.raises(ConfigError, match=r"--metrics .* is not on this machine's loopback, and there is no TLS"):
        RunConfig(metrics=address, insecure=True).check_together()


async def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    async with opened() as port:
        with pytest.raises(ConfigError, match=f"cannot listen on --metrics 127.0.0.1:{port}"):
            async with door.opened(f"127.0.0.1:{port}", None, {}):
                pass
