"""Signatures hold for their text and their key alone, and a certificate proves what its CA said."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID

from fedgsp.identity import Identity, Role, node
from fedgsp.signing import Signer, fingerprint, holds, identity_of, why_not_trusted
from tests.support.certificates import DAY, PEM, Authority, unchecked

NOW = dt.datetime.now(dt.UTC)
KEYS: dict[str, Callable[[], ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey]] = {
    "P-256": lambda: ec.generate_private_key(ec.SECP256R1()),
    "P-384": lambda: ec.generate_private_key(ec.SECP384R1()),
    "RSA": lambda: rsa.generate_private_key(65537, 2048),
}


def own(key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) -> Signer:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "own")])
    built = x509.CertificateBuilder(name, name, key.public_key(), 7, NOW - DAY, NOW + DAY).sign(key, hashes.SHA256())
    text = key.private_bytes(PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return Signer(text, built.public_bytes(PEM))


@pytest.mark.parametrize("kind", KEYS)
def test_a_signature_holds_for_one_text_and_one_key(kind: str) -> None:
    signer, other = own(KEYS[kind]()), own(KEYS[kind]())
    signature = signer.sign(b"text")
    assert holds(signer.certificate, b"text", signature)
    assert not holds(signer.certificate, b"text ", signature)
    assert not holds(other.certificate, b"text", signature)
    for wrong in (b"", signature[:-1], signature + b"\0", bytes(64), other.sign(b"text")):
        assert not holds(signer.certificate, b"text", wrong)


@pytest.mark.parametrize("made_up", [b"", b"nothing", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----"])
def test_what_is_no_certificate_proves_nothing(tmp_path: Path, made_up: bytes) -> None:
    assert not holds(made_up, b"text", b"signature")
    assert identity_of(made_up) is None
    assert why_not_trusted(made_up, Authority(tmp_path).own[1], NOW)


def test_a_certificate_is_good_for_its_ca_and_its_time(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    tls = unchecked(authority.issue("a", identity=node("a"), days=1))
    assert identity_of(tls.cert) == node("a")
    assert why_not_trusted(tls.cert, tls.ca, NOW) == ""
    assert "not valid" in why_not_trusted(tls.cert, tls.ca, NOW + 2 * DAY)
    assert why_not_trusted(tls.cert, tls.ca, NOW + 2 * DAY, since=NOW) == ""
    assert "not valid" in why_not_trusted(tls.cert, tls.ca, NOW + 3 * DAY, since=NOW + 2 * DAY)
    assert "not valid" in why_not_trusted(tls.cert, tls.ca, NOW - 10 * DAY, since=NOW - 11 * DAY)
    foreign = Authority(tmp_path, "foreign")
    assert why_not_trusted(tls.cert, foreign.own[1], NOW) == "it was not issued by this CA"
    assert identity_of(unchecked(authority.issue("none", identity=None)).cert) is None
    assert identity_of(unchecked(authority.issue("m", identity=Identity(Role.MANAGER, "m"))).cert) != node("m")


def test_the_holder_of_a_certificate_cannot_issue_another(tmp_path: Path) -> None:
    tls = unchecked(Authority(tmp_path).issue("a", identity=node("a")))
    key = serialization.load_pem_private_key(tls.key, None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    issuer = x509.load_pem_x509_certificate(tls.cert).subject
    name = x509.SubjectAlternativeName([x509.UniformResourceIdentifier(node("b").uri)])
    forged = x509.CertificateBuilder(issuer, issuer, key.public_key(), 7, NOW - DAY, NOW + DAY)
    made = forged.add_extension(name, critical=False).sign(key, hashes.SHA256()).public_bytes(PEM)
    assert identity_of(made) == node("b")
    assert "basicConstraints" in why_not_trusted(made + tls.cert, tls.ca, NOW)


def test_the_fingerprint_is_that_of_openssl(tmp_path: Path) -> None:
    cert = unchecked(Authority(tmp_path).issue()).cert
    assert fingerprint(cert) == x509.load_pem_x509_certificate(cert).fingerprint(hashes.SHA256()).hex()
    assert fingerprint(b"first words\n" + cert + b"more") == fingerprint(cert)
    with pytest.raises(ValueError, match="no certificate"):
        fingerprint(b"nothing")
