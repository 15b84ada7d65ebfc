"""Operators: people and programs that may watch a run from another machine, known by their certificates."""

from __future__ import annotations

import ssl
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from fedgsp.identity import Role, enrolment_in, identity_in
from fedgsp.security.tls import Tls
from fedgsp.security.tls_followed import Followed

if TYPE_CHECKING:
    from top_server.federation.live_registry import LiveRegistry

#: Who may watch a run. A certificate of the top server counts for every role.
WATCH = (Role.OPERATOR, Role.TOP_SERVER)


class OperatorTls:
    """TLS of a door for operators: shows the certificate of the top server, and asks for one of the same CA."""

    def __init__(self, tls: Tls) -> None:
        self._followed = Followed(tls)
        self._made = tls, _context(tls)

    @cached_property
    def context(self) -> ssl.SSLContext:
        """The context for a listening socket. A new connection gets the certificate that the files have by then."""

        def renew(connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
            connection.context = self._now()

        first = _context(self._followed.now())
        first.sni_callback = renew
        return first

    def _now(self) -> ssl.SSLContext:
        tls = self._followed.now()
        if tls is not self._made[0]:
            self._made = tls, _context(tls)
        return self._made[1]


def _context(tls: Tls) -> ssl.SSLContext:
    made = tls.context(ssl.PROTOCOL_TLS_SERVER)
    made.verify_mode = ssl.CERT_REQUIRED
    made.minimum_version = ssl.TLSVersion.TLSv1_2
    made.set_alpn_protocols(["http/1.1"])
    return made


class Watchers:
    """Who may watch. With a federation, its registry says whose certificate was revoked meanwhile."""

    def __init__(self, federation: Path | None = None) -> None:
        """Raises ConfigError or DataError if the federation cannot be used."""
        self._registry: LiveRegistry | None = None
        if federation is not None:
            from top_server.federation.folder import opened  # here: others need no cryptography
            from top_server.federation.live_registry import LiveRegistry

            self._registry = LiveRegistry(opened(federation))

    def why_not(self, uris: Iterable[str]) -> str:
        """Why the holder of a certificate with these URIs may not watch; empty if it may."""
        named = tuple(uris)
        found = identity_in(named)
        if found is None:
            return "its certificate names no process of a federation (URI:fedgsp://...)"
        if found.role not in WATCH:
            return f"{found} is no operator"
        revoked = self._registry is not None and enrolment_in(named) in self._registry.now().revoked
        return f"the certificate of {found} was revoked" if revoked else ""
