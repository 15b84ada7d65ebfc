"""Signatures with the key of a certificate, and what a certificate proves. `cryptography` does the work."""

from __future__ import annotations

import datetime as dt
import functools
import hashlib
import re
import ssl
from typing import TYPE_CHECKING, Any

from fedgsp.identity import Identity, enrolment_in, identity_in

if TYPE_CHECKING:
    from cryptography import x509

#: Certificates beside its own of which those that lead from a caller to the CA have to be among the first.
MOST_SENT = 16
#: Most bytes, in PEM, of the certificate of a caller and those between it and the CA: the record keeps them.
MOST_PATH_BYTES = 16_000
_PEM = re.compile(b"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)


class Signer:
    """Signs with the private key of a process."""

    def __init__(self, key: bytes, certificate: bytes) -> None:
        """`key` and `certificate` are in PEM, as `fedgsp.security.tls` has checked them."""
        from cryptography.hazmat.primitives import serialization  # here: without TLS it is never needed

        #: The certificate, and those between it and the CA, in PEM.
        self.certificate = certificate
        self._key: Any = serialization.load_pem_private_key(key, None)

    def sign(self, text: bytes) -> bytes:
        """The signature of a text."""
        return bytes(self._key.sign(text, *_scheme(self._key)))


def holds(certificate: bytes, text: bytes, signature: bytes) -> bool:
    """Whether the holder of a certificate (PEM) has signed this text."""
    try:
        key: Any = _public_key(certificate)
        key.verify(signature, text, *_scheme(key))
    except _refusals():
        return False
    return True


def fingerprint(certificate: bytes) -> str:
    """SHA-256 of a certificate in PEM, in hex digits, as `openssl x509 -fingerprint -sha256` shows it without colons.

    Of several certificates the first counts. Raises ValueError if there is none.
    """
    found = _PEM.search(certificate)
    if found is None:
        raise ValueError("there is no certificate")
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(found[0].decode("ascii", "replace"))).hexdigest()


def certificates_in(pem: bytes) -> list[x509.Certificate]:
    """All certificates in a PEM text; raises ValueError if there is none, or if one cannot be read."""
    from cryptography import x509  # here: without TLS it is never needed

    return x509.load_pem_x509_certificates(pem)


def identity_of(certificate: bytes) -> Identity | None:
    """Whom a certificate (PEM) names; None if it names no process of a federation, or is not a certificate."""
    return identity_in(uris_in(certificate))


def same_holder(certificate: bytes, other: bytes) -> bool:
    """Whether two certificates (PEM) that the CA has proven are those of one process: one may be the renewed other.

    The keys may differ, because a renewal makes a new key. A node that was invited anew may have another owner: its
    certificates have another enrolment. Without certificates, nothing tells two processes apart.
    """
    if certificate == other:
        return True
    uris, others = uris_in(certificate), uris_in(other)
    return identity_in(uris) == identity_in(others) is not None and enrolment_in(uris) == enrolment_in(others)


@functools.lru_cache(maxsize=4096)
def uris_in(certificate: bytes) -> list[str]:
    """The URIs in the subjectAltName of a certificate (PEM); none if it is not a certificate."""
    from fedgsp.security.certificates import uris_of  # here: without TLS it is never needed

    try:
        return uris_of(certificates_in(certificate)[0])
    except _refusals():
        return []


def has_expired(certificate: bytes, at: dt.datetime) -> bool:
    """Whether a certificate (PEM), or one between it and the CA, has expired at a time; raises ValueError."""
    return _ends(certificates_in(certificate)) < at


#: Part of what `cryptography` says about a certificate -> what it means.
_MEANINGS = {
    "all candidates exhausted with no interior errors": "it was not issued by this CA",
    "candidates exhausted: signature does not match": "it was not issued by this CA, but by one of the same name",
    "not valid at validation time": "it, or its CA, was not valid at that time",
}


def why_not_trusted(certificate: bytes, ca: bytes, at: dt.datetime, since: dt.datetime | None = None) -> str:
    """Why a certificate (PEM, with those between it and the CA) was not one of this CA at a time; empty if it was.

    With `since`, it is enough that the certificate was valid at some time between `since` and `at`: a connection lasts
    longer than the certificate with which it was made. `since` may be the later time, if the clock was set back.
    """
    first, last = sorted((since or at, at))
    try:
        _path(certificates_in(certificate), certificates_in(ca), last, first)
    except _refusals() as error:
        return _words(error)
    return ""


@functools.lru_cache(maxsize=256)
def path_to_ca(own: bytes, others: bytes, ca: bytes) -> bytes:
    """A certificate with those between it and the CA, all in PEM, as they were when they were last valid together.

    The caller has sent `others` beside its own: those between, and perhaps unrelated ones. The unrelated ones are left
    out, so that neither its receipts nor the record depend on certificates that it has made up.

    Raises ValueError if no path leads to the CA, or if the path has more than `MOST_PATH_BYTES`.
    """
    from cryptography.hazmat.primitives.serialization import Encoding  # here: without TLS it is never needed

    try:
        first, *sent = certificates_in(own + b"".join(_PEM.findall(others)[:MOST_SENT]))
        between = _path([first, *sent], certificates_in(ca), dt.datetime.now(dt.UTC), first.not_valid_before_utc)
    except _refusals() as error:
        raise ValueError(_words(error)) from None
    path = own + b"".join(one.public_bytes(Encoding.PEM) for one in between)
    if len(path) > MOST_PATH_BYTES:
        raise ValueError(f"it has, with those between it and the CA, more than {MOST_PATH_BYTES} bytes")
    return path


def _path(
    chain: list[x509.Certificate], ca: list[x509.Certificate], at: dt.datetime, since: dt.datetime
) -> list[x509.Certificate]:
    """Those of a chain that lie between its first and the CA, at the last time up to `at` at which they were valid.

    Raises one of `_refusals` if they were not valid together at any time between `since` and `at`.
    """
    from cryptography import x509
    from cryptography.x509 import verification

    def is_ca(_: object, __: object, found: Any) -> None:
        if not found.ca:
            raise ValueError("it is not the certificate of a CA")

    # The names and uses in certificates are checked by those who make connections. Here the signatures count.
    lenient = verification.ExtensionPolicy.permit_all()
    for_ca = lenient.require_present(x509.BasicConstraints, verification.Criticality.AGNOSTIC, is_ca)
    own, *others = chain
    builder = verification.PolicyBuilder().store(verification.Store(ca))
    builder = builder.extension_policies(ca_policy=for_ca, ee_policy=lenient)
    # A path is last valid at `at`, or when the first of its certificates ends. Which of them are on a path, and not
    # only beside it, is known when one was found: each end is tried, the latest first.
    ends = {end for one in (*chain, *ca) if since <= (end := one.not_valid_after_utc) < at}
    refusal: Exception | None = None
    for time in (at, *sorted(ends, reverse=True)):
        try:
            return builder.time(time).build_client_verifier().verify(own, others).chain[1:-1]
        except verification.VerificationError as error:
            refusal = refusal or error
    assert refusal is not None
    raise refusal


def _words(refusal: Exception) -> str:
    """Why a certificate proves nothing, in words that a person understands."""
    words = str(refusal)
    return next((meaning for part, meaning in _MEANINGS.items() if part in words), words or "it is no certificate")


def _ends(chain: list[x509.Certificate]) -> dt.datetime:
    return min(one.not_valid_after_utc for one in chain)


def _refusals() -> tuple[type[Exception], ...]:
    """What is raised about a signature or a certificate that somebody has made up."""
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
    from cryptography.x509.verification import VerificationError

    of_x509 = x509.DuplicateExtension, x509.ExtensionNotFound, x509.InvalidVersion, x509.UnsupportedGeneralNameType
    return (ValueError, TypeError, IndexError, InvalidSignature, UnsupportedAlgorithm, VerificationError, *of_x509)


@functools.lru_cache(maxsize=4096)
def _public_key(certificate: bytes) -> object:
    return certificates_in(certificate)[0].public_key()


def _scheme(key: Any) -> tuple[Any, ...]:
    """What the methods `sign` and `verify` of a key need beside the text; ValueError for a key that gRPC refuses."""
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa

    match key:
        case ec.EllipticCurvePrivateKey() | ec.EllipticCurvePublicKey():
            return (ec.ECDSA(hashes.SHA256() if key.key_size <= 256 else hashes.SHA384()),)
        case rsa.RSAPrivateKey() | rsa.RSAPublicKey():
            return padding.PSS(padding.MGF1(hashes.SHA256()), padding.PSS.DIGEST_LENGTH), hashes.SHA256()
    raise ValueError("the key is neither RSA nor on an elliptic curve")
