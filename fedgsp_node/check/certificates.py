"""Judges certificates by their dates and names: that of this node, and that of the top server."""

from __future__ import annotations

import datetime as dt

from cryptography import x509

from fedgsp.identity import identity_in
from fedgsp.security.certificates import uris_of
from fedgsp_node.check.facts import Certificate, Facts, Shown
from fedgsp_node.check.finding import Finding, bad, good, warning

#: A certificate is about to expire with less time left than this, and less than one part in SHARE of its life.
SOON, SHARE = dt.timedelta(days=7), 20
CLOCK = "set the clock of this machine if it is wrong"


def read(certificate: x509.Certificate) -> Certificate:
    """The names and dates of a certificate."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        hosts = (*names.get_values_for_type(x509.DNSName), *map(str, names.get_values_for_type(x509.IPAddress)))
    except (x509.ExtensionNotFound, ValueError):
        hosts = ()
    identity = identity_in(uris_of(certificate))
    return Certificate(hosts, certificate.not_valid_before_utc, certificate.not_valid_after_utc, str(identity or ""))


def judge_own(own: Certificate, facts: Facts) -> Finding:
    """The certificate of this node; its files can be used if its dates are good."""
    remedy = f"{CLOCK}; otherwise get a new certificate (`fedgsp-node enrol` with a new invitation, or your own CA)"
    return _dates(own, f"it is that of {own.identity or 'no process of a federation'},", facts.now, remedy)


def judge_shown(shown: Shown, facts: Facts) -> Finding:
    """The certificate of the top server."""
    remedy = f"{CLOCK}, or that of the top server; otherwise the top server needs a new certificate"
    found = _dates(shown.certificate, f"{facts.address} shows that of", facts.now, remedy, shown.certificate.identity)
    if shown.refused is None or found.words.startswith(_NOT_NOW):
        return found
    names = ", ".join(shown.certificate.names) or "none"
    return bad(f"{shown.refused.what} (the host names that it has: {names})", shown.refused.remedy)


_NOT_NOW = ("it is not valid yet", "it expired")


def _dates(found: Certificate, whose: str, now: float, remedy: str, named: str = "") -> Finding:
    at = dt.datetime.fromtimestamp(now, dt.UTC)
    if at < found.begins:
        return bad(f"it is not valid yet: it begins on {_day(found.begins)}, and this clock says {_day(at)}", remedy)
    if found.ends <= at:
        return bad(f"it expired on {_day(found.ends)}, and this clock says {_day(at)}", remedy)
    left = found.ends - at
    words = f"{whose} {named}".strip(" ,") + f", valid until {_day(found.ends)}"
    if left < min(SOON, (found.ends - found.begins) / SHARE):
        return warning(f"{words}, for {left.total_seconds() / 3600:.0f} more hours", remedy)
    return good(words)


def _day(when: dt.datetime) -> str:
    return f"{when:%Y-%m-%d %H:%M} UTC"
