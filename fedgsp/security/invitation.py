"""The token of an invitation: what a node needs to make its first connection, in one line of text.

It holds the certificate of the federation's CA, by which the node knows the top server, and a certificate with its
key, by which the top server knows the invited node. That certificate is good for a short time, for one enrolment.
A checksum shows slips of who copied the token.
"""

import base64
import zlib
from dataclasses import dataclass, field

from cryptography import x509

from fedgsp.errors import ConfigError, valid
from fedgsp.identity import Role, identity_in
from fedgsp.security.certificates import KEY_BYTES, Key, belongs, key_of, number_of, read, uris_of

#: The first byte of every token, for later forms.
_FORM = 1
#: Bytes of the checksum at its end.
_SUM_BYTES = 4
#: Most characters of a token.
MOST = 10_000


@dataclass(frozen=True, slots=True)
class Invitation:
    """What a token holds. The certificates are in DER."""

    ca: bytes
    certificate: bytes
    key: Key = field(repr=False)

    @property
    def token(self) -> str:
        """The invitation as text: letters, digits, dashes and underscores."""
        parts = [bytes([_FORM]), number_of(self.key)]
        parts += [part for der in (self.ca, self.certificate) for part in (len(der).to_bytes(2, "big"), der)]
        data = b"".join(parts)
        return base64.urlsafe_b64encode(data + _sum(data)).rstrip(b"=").decode()

    @property
    def opened(self) -> x509.Certificate:
        """The certificate of the invited node."""
        return read(self.certificate)

    @property
    def name(self) -> str:
        """The name under which the node is invited."""
        found = identity_in(uris_of(self.opened))
        return found.name if found is not None and found.role is Role.INVITED else ""


def invitation_in(token: str) -> Invitation:
    """The invitation that a token holds; raises ConfigError if the text is no token, or not a whole one."""
    try:
        found = _read(token.strip())
        found.opened.verify_directly_issued_by(read(found.ca))
        whole = bool(found.name) and belongs(found.opened, found.key)
    except Exception:  # `cryptography` has several errors for what somebody may have put into a token
        whole = False
    ConfigError.require(whole, "this is not the token of an invitation, or not all of it", "copy the whole line anew")
    return found


def _read(token: str) -> Invitation:
    valid(len(token) <= MOST and token.isascii(), "too long")
    data = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
    data, told = data[:-_SUM_BYTES], data[-_SUM_BYTES:]
    valid(told == _sum(data) and data[0] == _FORM, "a wrong letter, or another form")
    key, rest = key_of(data[1 : 1 + KEY_BYTES]), data[1 + KEY_BYTES :]
    ders = []
    for _ in range(2):
        end = 2 + int.from_bytes(rest[:2], "big")
        ders.append(rest[2:end])
        rest = rest[end:]
    valid(not rest, "too much")
    return Invitation(ders[0], ders[1], key)


def _sum(data: bytes) -> bytes:
    """A checksum against slips: the signatures in a token do not show every wrong letter."""
    return zlib.crc32(data).to_bytes(_SUM_BYTES, "big")
