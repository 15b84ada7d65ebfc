"""Signatures with the key of a certificate, and what a certificate proves. `cryptography` does the work."""

from __future__ import annotations

import datetime as dt
import functools
import hashlib
import re
import ssl
from typing import TYPE_CHECKING, Any

from fedgsp.identity import Identity, identity_in

if TYPE_CHECKING:
    from cryptography import x509

_PEM = re.compile(b"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)


class Signer:
    """Signs with the private key of a process."""

    def __init__(self, key: bytes, certificate: bytes) -> None:
        """`key` and `certificate` are in PEM, as `fedgsp.tls` has checked them."""
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


@functools.lru_cache(maxsize=4096)
def uris_in(certificate: bytes) -> list[str]:
    """The URIs in the subjectAltName of a certificate (PEM); none if it is not a certificate."""
    from fedgsp.certificates import uris_of  # here: without TLS it is never needed

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
    longer than the certificate with which it was made.
    """
    from cryptography import x509
    from cryptography.x509 import verification

    def is_ca(_: object, __: object, found: Any) -> None:
        if not found.ca:
            raise ValueError("it is not the certificate of a CA")

    # The names and uses in certificates are checked by those who make connections. Here the signatures count.
    lenient = verification.ExtensionPolicy.permit_all()
    for_ca = lenient.require_present(x509.BasicConstraints, verification.Criticality.AGNOSTIC, is_ca)
    try:
        own, *between = certificates_in(certificate)
        time = max(since or at, min(at, _ends([own, *between])))
        builder = verification.PolicyBuilder().store(verification.Store(certificates_in(ca))).time(time)
        builder.extension_policies(ca_policy=for_ca, ee_policy=lenient).build_client_verifier().verify(own, between)
    except _refusals() as error:
        words = str(error)
        return next((meaning for part, meaning in _MEANINGS.items() if part in words), words or "it is no certificate")
    return ""


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
