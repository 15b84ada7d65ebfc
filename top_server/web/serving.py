"""Serves the web page: on loopback at an address with a secret key, elsewhere by TLS to holders of certificates."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import secrets
import socket
from collections.abc import Callable, Collection, Iterator
from typing import Any

import uvicorn
from cryptography import x509
from starlette.types import Scope
from uvicorn.protocols.http.h11_impl import H11Protocol

from fedgsp.connections.addresses import is_near, split_address
from fedgsp.errors import ConfigError
from fedgsp.limits.descriptors import for_connections
from fedgsp.processes.lifecycle import beside
from fedgsp.security.tls import Tls, uris_of
from fedgsp.settings.web import WebSettings
from top_server.federation.opening import certify
from top_server.operators import OperatorTls, Watchers
from top_server.web.app import Pages
from top_server.web.guard import Guard
from top_server.web.runs import Runs

logger = logging.getLogger(__name__)

#: Connections at once, and bytes of the head of a request.
_CONNECTIONS, _MOST_OF_HEAD = 1000, 1 << 14
#: Seconds for a handshake, and for the next whole head of a request: then a connection without a request is closed.
SILENT_S = 10.0
#: How long streams have to send what is new when the process ends.
_LAST_WORDS_S = 2
#: How often the certificate is looked at.
_CERTIFY_S = 3600.0
#: The names of loopback in the header Host.
_NEAR = ("127.0.0.1", "localhost", "[::1]")


class _Server(uvicorn.Server):
    """A server whose process handles signals itself."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """As in uvicorn, which cannot bound a handshake: connections that make none would take all descriptors."""
        assert sockets is not None
        kind: Any = self.config.http_protocol_class
        make = functools.partial(
            kind, config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )
        tls, loop = self.config.ssl, asyncio.get_running_loop()
        patience_s = SILENT_S if tls is not None else None
        self.servers = [
            await loop.create_server(make, sock=sock, ssl=tls, ssl_handshake_timeout=patience_s) for sock in sockets
        ]
        self.started = True


class Holders:
    """Who is at the other end of each connection, by the URIs of its certificate."""

    def __init__(self, watchers: Watchers) -> None:
        self._watchers = watchers
        self._of: dict[Any, list[str]] = {}

    def why_not(self, scope: Scope) -> str:
        """Why the sender of a request may not read; empty if it may."""
        return self._watchers.why_not(self._of.get(tuple(scope["client"]), ()))

    def protocol(self) -> type[H11Protocol]:
        """The class of connections, which note here who is at their other end.

        Each is closed if it brings no request for some seconds. In uvicorn, some bytes of a head are enough to stay.
        """
        of = self._of

        class Connection(H11Protocol):
            def connection_made(self, transport: Any) -> None:
                super().connection_made(transport)
                shown = transport.get_extra_info("ssl_object")
                of[self.client] = uris_of(shown) if shown is not None else []
                self._wait()

            def _wait(self) -> None:
                self._silent = self.loop.call_later(SILENT_S, self.timeout_keep_alive_handler)

            def handle_events(self) -> None:
                before = self.cycle
                super().handle_events()
                if self.cycle is not before:
                    self._silent.cancel()

            def on_response_complete(self) -> None:
                self._wait()  # the next request may be there already
                super().on_response_complete()

            def connection_lost(self, exc: Exception | None) -> None:
                self._silent.cancel()
                of.pop(self.client, None)
                super().connection_lost(exc)

        return Connection


async def serve(runs: Runs, settings: WebSettings, tls: Tls | None, ready: Callable[[str], None]) -> None:
    """Serves the runs until this task is cancelled; `ready` gets the address to open, once it can be opened.

    Raises ConfigError if the process cannot listen there. TLS is for addresses beyond loopback alone.
    """
    host, port = split_address(settings.listen)
    near = is_near(host)
    listening = _bound(host, port, settings.listen)
    key = secrets.token_urlsafe(24) if near else ""
    holders, pages = Holders(Watchers(settings.federation)), Pages(runs)
    names = {*_NEAR, host} if near or tls is None else names_in(tls.cert)
    app = Guard(pages.app(), names, key, holders.why_not)
    secure: dict[str, Any] = {}
    if not near and tls is not None:
        secure = {"ssl_context_factory": lambda *_: OperatorTls(tls).context}
    config = uvicorn.Config(
        app,
        http=holders.protocol(),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        limit_concurrency=min(_CONNECTIONS, for_connections()),
        h11_max_incomplete_event_size=_MOST_OF_HEAD,
        timeout_keep_alive=3600,  # each connection watches this by itself, for `SILENT_S`
        timeout_graceful_shutdown=_LAST_WORDS_S,
        **secure,
    )
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    server = _Server(config)
    serving = asyncio.create_task(server.serve([listening]), name="web page")
    shown = next(iter(settings.host), host) if host in ("0.0.0.0", "*", "[::]") else host
    path = f"/{key}/" if key else "/"
    ready(f"{'https' if secure else 'http'}://{shown}:{listening.getsockname()[1]}{path}")
    try:
        async with beside(_renewed(settings, tls), "certificate of the web page"):
            await asyncio.shield(serving)
    finally:
        pages.closing.set()
        server.should_exit = True
        await serving


def _bound(host: str, port: int, address: str) -> socket.socket:
    plain = "0.0.0.0" if host == "*" else host.strip("[]")
    try:
        kind, _, _, _, where = socket.getaddrinfo(plain, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(where[:2] if kind == socket.AF_INET else where, family=kind, backlog=128)
    except OSError as error:
        raise ConfigError(
            f"the web page cannot listen at {address}: {error.strerror or error}",
            "end the process that has that port, or choose another port; port 0 takes any free one",
        ) from None


def names_in(cert: bytes) -> Collection[str]:
    """The hosts that a certificate (PEM) names, as they stand in the header Host."""
    try:
        found = x509.load_pem_x509_certificate(cert).extensions
        names = found.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, ValueError):
        return ()
    addresses = names.get_values_for_type(x509.IPAddress)
    return {
        *(name.lower() for name in names.get_values_for_type(x509.DNSName)),
        *(f"[{one}]" if one.version == 6 else str(one) for one in addresses),
    }


async def _renewed(settings: WebSettings, tls: Tls | None) -> None:
    """Renews the certificate of a federation when it is due."""
    while tls is not None and settings.federation is not None:
        await asyncio.sleep(_CERTIFY_S)
        await asyncio.to_thread(certify, settings)
