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

    With a `key`, each path begins with it. Without one, `why_not` gives the reason why the holder of a certificate may
    not read; empty if the holder may. A stream ends when there is a reason.
    """

    def __init__(
        self,
        app: ASGIApp,
        hosts: Collection[str],
        key: str = "",
        why_not: Callable[[Scope], str] = lambda _: "it has shown no certificate",
    ) -> None:
        self._app = app
        self._hosts = frozenset(host.lower() for host in hosts)
        self._key = key
        self._why_not = why_not

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request."""

        streams = ended = False

        async def guarded(message: Message) -> None:
            nonlocal streams, ended
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
                streams = "content-length" not in headers
            elif streams and not ended and not self._key and self._why_not(scope):
                ended = True  # the server then tells the app that its reader has gone
                await send({"type": "http.response.body", "body": b"", "more_body": False})
            if not ended:
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
        elif why := self._why_not(scope):
            raise RefusedError(HTTPStatus.FORBIDDEN, f"{why}; to read here takes the certificate of an operator")
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
