"""The door of the web page: who may read, and what a browser may do with what it gets.

Every request passes here first, those of unknown paths too.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Collection
from http import HTTPStatus

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fedgsp.identity import Identity
from top_server.operators import WATCH

#: Only scripts, styles and data of this page: no other host, no inline script, no frame around it, no form to others.
_POLICY = "; ".join(
    (
        "default-src 'none'",
        *("script-src 'self'", "style-src 'self'", "img-src 'self'", "connect-src 'self'", "form-action 'self'"),
        *("base-uri 'none'", "frame-ancestors 'none'", "require-trusted-types-for 'script'", "trusted-types 'none'"),
    )
)
HEADERS = {
    "content-security-policy": _POLICY,
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "cache-control": "no-store",
}
#: What reads, and changes nothing.
METHODS = ("GET", "HEAD")


class RefusedError(Exception):
    """A request that is refused, with the reason for its sender."""

    def __init__(self, status: HTTPStatus, why: str) -> None:
        super().__init__(why)
        self.status = status


class Guard:
    """Lets requests through to `app` that name a host of this server, and whose sender may read.

    With a `key`, each path begins with it; without one, `holder` tells who is at the other end of a connection.
    """

    def __init__(
        self,
        app: ASGIApp,
        hosts: Collection[str],
        key: str = "",
        holder: Callable[[Scope], Identity | None] = lambda _: None,
    ) -> None:
        self._app = app
        self._hosts = frozenset(host.lower() for host in hosts)
        self._key = key
        self._holder = holder

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request."""

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        if scope["type"] != "http":
            return
        try:
            inner = self._admitted(scope)
        except RefusedError as refused:
            response = PlainTextResponse(f"{refused}\n", refused.status)
            await response(scope, receive, guarded)
        else:
            await self._app(inner, receive, guarded)

    def _admitted(self, scope: Scope) -> Scope:
        headers = Headers(scope=scope)
        if host_of(headers.getlist("host")) not in self._hosts:  # a name of somebody else that leads here
            raise RefusedError(HTTPStatus.MISDIRECTED_REQUEST, "that is no name of this server: use its own")
        # A page of another origin may lead a person here, but may load nothing from here.
        if headers.get("sec-fetch-site") in ("cross-site", "same-site") and (
            headers.get("sec-fetch-mode") != "navigate" or headers.get("sec-fetch-dest") != "document"
        ):
            raise RefusedError(HTTPStatus.FORBIDDEN, "other pages can read nothing here")
        path: str = scope["path"]
        if self._key:
            begin = f"/{self._key}/"
            if not hmac.compare_digest(path[: len(begin)].encode(), begin.encode()):
                raise RefusedError(HTTPStatus.FORBIDDEN, "use the whole address that the top server has printed")
            scope = {**scope, "path": path[len(begin) - 1 :]}
        else:
            who = self._holder(scope)
            if who is None or who.role not in WATCH:
                raise RefusedError(
                    HTTPStatus.FORBIDDEN,
                    f"{who or 'this certificate'} may not read here; it takes an operator's",
                )
        if scope["method"] not in METHODS:
            raise RefusedError(HTTPStatus.METHOD_NOT_ALLOWED, "this page is only read")
        return scope


def host_of(given: list[str]) -> str:
    """The host in the header Host, without its port and in small letters; empty unless there is one such header."""
    if len(given) != 1:
        return ""
    host = given[0].lower()
    if host.startswith("["):
        return host[: host.find("]") + 1]
    return host.partition(":")[0]
