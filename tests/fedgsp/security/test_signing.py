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
from fedgsp.security.signing import Signer, fingerprint, holds, identity_of, path_to_ca, why_not_trusted
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
    # A clock that was set back meanwhile: the connection was made at the later time.
    assert why_not_trusted(tls.cert, tls.ca, NOW - 10 * DAY, since=NOW) == ""
    foreign = Authority(tmp_path, "foreign")
    assert why_not_trusted(tls.cert, foreign.own[1], NOW) == "it was not issued by this CA"
    assert identity_of(unchecked(authority.issue("none", identity=None)).cert) is None
    assert identity_of(unchecked(authority.issue("m", identity=Identity(Role.MANAGER, "m"))).cert) != node("m")


def made_up(days: float, size: int = 0, key: x509.Certificate | None = None) -> bytes:
    """A certificate by nobody, which may have the name and the public key of another."""
    own, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "x")])
    subject, public = (key.subject, key.public_key()) if key else (name, own.public_key())
    assert isinstance(public, ec.EllipticCurvePublicKey)
    built = x509.CertificateBuilder(name, subject, public, 7, NOW - 9 * DAY, NOW + days * DAY)
    built = built.add_extension(x509.BasicConstraints(True, None), critical=True)
    filled = x509.UnrecognizedExtension(x509.ObjectIdentifier("1.2.3.4.5"), bytes(size))
    return built.add_extension(filled, critical=False).sign(own, hashes.SHA256()).public_bytes(PEM)


def test_what_is_sent_beside_a_certificate_does_not_end_it(tmp_path: Path) -> None:
    """Otherwise a node could add unrelated certificates to its own, and the whole group would lose its work."""
    authority = Authority(tmp_path)
    renewed = unchecked(authority.issue("a", identity=node("a"), days=7, begins=0))
    of_ca = x509.load_pem_x509_certificate(renewed.ca)
    for beside in (b"", made_up(-8), made_up(-8, key=of_ca), made_up(8, key=of_ca)):
        for began in (dt.timedelta(), dt.timedelta(hours=2), 30 * DAY):
            later = dt.datetime.now(dt.UTC)
            assert why_not_trusted(renewed.cert + beside, renewed.ca, later, later - began) == ""
        assert path_to_ca(renewed.cert, beside, renewed.ca) == renewed.cert
    # Also after its end, if it was good at some time since the start.
    after = NOW + 9 * DAY
    assert why_not_trusted(renewed.cert + made_up(8), renewed.ca, after, NOW + DAY / 2) == ""


def test_of_what_a_caller_sends_the_path_to_the_ca_counts(tmp_path: Path) -> None:
    authority, key = Authority(tmp_path), ec.generate_private_key(ec.SECP256R1())
    root_key = serialization.load_pem_private_key(authority.own[0], None)
    assert isinstance(root_key, ec.EllipticCurvePrivateKey)
    root, leaf_key = x509.load_pem_x509_certificate(authority.own[1]), ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "between")])
    middle = x509.CertificateBuilder(root.subject, name, key.public_key(), 8, NOW - DAY, NOW + DAY)
    between = middle.add_extension(x509.BasicConstraints(True, None), critical=True).sign(root_key, hashes.SHA256())
    leaf = x509.CertificateBuilder(name, name, leaf_key.public_key(), 9, NOW - DAY, NOW + DAY)
    own, pem = leaf.sign(key, hashes.SHA256()).public_bytes(PEM), between.public_bytes(PEM)
    junk = [made_up(days, 14_000, one) for days in (-8, 8) for one in (None, between)]
    assert path_to_ca(own, b"".join([*junk, pem, *junk]), authority.own[1]) == own + pem
    assert why_not_trusted(b"".join([own, *junk, pem]), authority.own[1], NOW, NOW - 2 * DAY) == ""
    for lacking in (b"", b"".join(junk), b"".join(5 * junk) + pem, b"-----BEGIN CERTIFICATE-----\n"):
        with pytest.raises(ValueError, match="issued by this CA"):
            path_to_ca(own, lacking, authority.own[1])


def test_a_path_has_so_many_bytes(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    large = x509.UniformResourceIdentifier("x:" + 16_000 * "a")
    files = authority.issue("a", identity=node("a"), names=[large])
    with pytest.raises(ValueError, match="more than 16000 bytes"):
        path_to_ca(files.cert.read_bytes(), b"", authority.own[1])


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
