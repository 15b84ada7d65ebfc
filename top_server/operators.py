"""Operators: people and programs that may watch a run from another machine, known by their certificates."""

import ssl
from functools import cached_property
from typing import Any

from fedgsp.identity import Role, identity_in
from fedgsp.tls import Tls, uris_of
from fedgsp.tls_followed import Followed

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


def why_no_operator(connection: Any) -> str:
    """Why the other side of a TLS connection may not watch the run; empty if it may."""
    found = identity_in(uris_of(connection))
    if found is None:
        return "its certificate names no process of a federation (URI:fedgsp://...)"
    return "" if found.role in WATCH else f"{found} is no operator"
