"""The door for monitoring: /metrics and /healthz over HTTP. Nobody can change anything by it."""

import asyncio
import functools
import http.client
import io
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from fedgsp.connections.addresses import is_near, split_address
from fedgsp.errors import ConfigError, reason_of
from fedgsp.limits.descriptors import for_connections
from fedgsp.security.tls import Tls, uris_of
from fedgsp.security.tls_followed import Followed
from fedgsp.seldom import SeldomLog
from fedgsp.visible import visible
from top_server.metrics.state import State, unhealthy
from top_server.operators import OperatorTls, Watchers

logger = logging.getLogger(__name__)

#: How long a caller may take for a handshake, for its question, and to read the answer, in seconds each.
PATIENCE_S = 5.0
#: Most bytes of a question, and most connections at once.
MOST_BYTES, MOST_CONNECTIONS = 8192, 32
_TEXT = "text/plain; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Answer:
    """What a caller gets."""

    status: HTTPStatus
    body: bytes
    kind: str = _TEXT

    def encoded(self, with_body: bool) -> bytes:
        """The answer as bytes. Nobody may keep it, and pages of other origins cannot read it."""
        head = [
            f"HTTP/1.1 {self.status.value} {self.status.phrase}",
            f"Content-Type: {self.kind}",
            f"Content-Length: {len(self.body)}",
            "Cache-Control: no-store",
            "Cross-Origin-Resource-Policy: same-origin",
            "X-Content-Type-Options: nosniff",
            "Allow: GET, HEAD",
            "Connection: close",
        ]
        return "\r\n".join([*head, "", ""]).encode() + (self.body if with_body else b"")


def answer(head: bytes, is_host: Callable[[str], bool], pages: dict[str, Callable[[], Answer]]) -> tuple[Answer, bool]:
    """The answer to a question, and whether its body is sent; `is_host` says which hosts callers may name."""
    file = io.BytesIO(head)
    words = file.readline().decode("latin-1").split()
    try:
        headers = http.client.parse_headers(file)
    except http.client.HTTPException:
        return _said(HTTPStatus.BAD_REQUEST, "these are no headers of HTTP"), True
    if len(words) != 3 or not words[2].startswith("HTTP/1."):
        return _said(HTTPStatus.BAD_REQUEST, "this is no question in HTTP/1.1"), True
    if words[0] not in ("GET", "HEAD"):
        return _said(HTTPStatus.METHOD_NOT_ALLOWED, "only GET and HEAD are answered"), True
    hosts = headers.get_all("Host") or []
    if len(hosts) != 1 or not is_host(hosts[0].strip()):
        return _said(HTTPStatus.MISDIRECTED_REQUEST, "the Host of this question is not this server"), True
    page = pages.get(words[1].partition("?")[0])
    if page is None:
        return _said(HTTPStatus.NOT_FOUND, f"there are {' and '.join(pages)}"), True
    return page(), words[0] == "GET"


def _said(status: HTTPStatus, text: str) -> Answer:
    return Answer(status, f"{text}\n".encode())


def pages_of(state: State, after_s: float) -> dict[str, Callable[[], Answer]]:
    """The pages of a run, by path; `after_s`: after how many seconds without an event a run is not healthy."""
    registry = CollectorRegistry()
    registry.register(state)
    ProcessCollector(registry=registry)

    def metrics() -> Answer:
        return Answer(HTTPStatus.OK, generate_latest(registry), CONTENT_TYPE_LATEST)

    def health() -> Answer:
        why = visible(unhealthy(state, after_s))
        return _said(HTTPStatus.SERVICE_UNAVAILABLE, why) if why else _said(HTTPStatus.OK, "ok")

    return {"/metrics": metrics, "/healthz": health}


@asynccontextmanager
async def opened(
    listen: str,
    tls: Tls | None,
    pages: dict[str, Callable[[], Answer]],
    patience_s: float = PATIENCE_S,
    federation: Path | None = None,
) -> AsyncIterator[str]:
    """Serves the pages while the body runs; yields the address. On loopback without TLS, elsewhere to operators.

    With a `federation`, an operator may be revoked meanwhile. Raises ConfigError if it cannot listen there.
    """
    host, port = split_address(listen)
    name = None if host == "*" else host.strip("[]")
    secure: dict[str, Any] = {}
    if is_near(host):
        door = _Door(pages, is_near_host, None, patience_s)
    elif tls is not None:
        door = _Door(pages, functools.partial(_is_covered, Followed(tls)), Watchers(federation), patience_s)
        secure = {"ssl": OperatorTls(tls).context, "ssl_handshake_timeout": patience_s}
    else:
        raise ConfigError(f"--metrics {listen} is not on this machine's loopback, and there is no TLS", "give TLS too")
    try:
        server = await asyncio.start_server(door.meet, name, port, limit=MOST_BYTES, **secure)
    except OSError as error:
        remedy = "the port is in use, or the host is not this machine's: choose another"
        raise ConfigError(f"cannot listen on --metrics {listen}: {reason_of(error)}", remedy) from None
    try:
        yield f"{host}:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        await door.leave()


def is_near_host(host: str) -> bool:
    """Whether a Host header names this machine, as a page of another origin that has rebound its name cannot."""
    try:
        return is_near(split_address(host if _has_port(host) else f"{host}:80")[0])
    except ConfigError:
        return False


def _is_covered(followed: Followed, host: str) -> bool:
    try:
        followed.now().check_covers(split_address(host if _has_port(host) else f"{host}:443")[0], "")
    except ConfigError:
        return False
    return True


def _has_port(host: str) -> bool:
    return ":" in host.rpartition("]")[2]


class _Door:
    """The connections of one listening socket: one question each."""

    def __init__(
        self,
        pages: dict[str, Callable[[], Answer]],
        is_host: Callable[[str], bool],
        watchers: Watchers | None,
        patience_s: float,
    ) -> None:
        self._pages = pages
        self._is_host = is_host
        self._watchers = watchers
        self._patience_s = patience_s
        self._most = min(MOST_CONNECTIONS, for_connections())
        self._open: set[asyncio.Task[None]] = set()
        self._log = SeldomLog(logger, logging.WARNING, "refusal")

    def meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Takes a new connection."""
        if len(self._open) >= self._most:
            self._log.line(f"--metrics has {self._most} connections already, and refuses more")
            writer.transport.abort()
            return
        task = asyncio.create_task(self._serve(reader, writer), name="monitoring")
        self._open.add(task)
        task.add_done_callback(self._open.discard)

    async def leave(self) -> None:
        """Ends all connections."""
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(self._patience_s):
                said = await reader.readuntil(b"\r\n\r\n")
                writer.write(self._answered(said, writer.get_extra_info("ssl_object"), writer))
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # a caller that is slow, gone, or says too much gets no answer
        finally:
            writer.transport.abort()

    def _answered(self, said: bytes, connection: Any, writer: asyncio.StreamWriter) -> bytes:
        if self._watchers is not None and (why := self._watchers.why_not(uris_of(connection))):
            self._log.line(f"--metrics refuses {writer.get_extra_info('peername')}: {why}")
            return _said(HTTPStatus.FORBIDDEN, "this door is for operators").encoded(True)
        found, with_body = answer(said, self._is_host, self._pages)
        return found.encoded(with_body)
