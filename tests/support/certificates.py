"""Certificates for tests: authorities of their own, and what they issue, right or wrong in one point."""

from __future__ import annotations

import datetime as dt
import ipaddress
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedgsp.identity import TOP_SERVER, Identity
from fedgsp.security.tls import Tls, TlsFiles

HERE = ("127.0.0.1", "localhost")
DAY = dt.timedelta(days=1)
PEM = serialization.Encoding.PEM
SERVERS = [ExtendedKeyUsageOID.SERVER_AUTH]


class Authority:
    """A CA whose files, and those of all that it issues, lie in `folder`."""

    def __init__(self, folder: Path, name: str = "ca", hosts: Sequence[str] = ()) -> None:
        """`hosts` stand in the certificate of the CA itself."""
        self._folder = folder
        self._name = name
        self._key = ec.generate_private_key(ec.SECP256R1())
        self.ca = folder / f"{name}.pem"
        own = _builder(name, name, self._key, 1).add_extension(x509.BasicConstraints(True, None), critical=True)
        if hosts:
            names = x509.SubjectAlternativeName([_named(host) for host in hosts])
            own = own.add_extension(names, critical=False)
        self.ca.write_bytes(own.sign(self._key, hashes.SHA256()).public_bytes(PEM))

    @property
    def own(self) -> tuple[bytes, bytes]:
        """The key and the certificate of the CA, in PEM."""
        unlocked = serialization.NoEncryption()
        key = self._key.private_bytes(PEM, serialization.PrivateFormat.PKCS8, unlocked)
        return key, self.ca.read_bytes()

    def files(self, name: str) -> TlsFiles:
        """The files of what was issued under a name."""
        return TlsFiles(self.ca, self._folder / f"{self._name}-{name}.pem", self._folder / f"{self._name}-{name}.key")

    def issue(
        self,
        name: str = "peer",
        hosts: Sequence[str] = HERE,
        days: float = 1,
        begins: int = -9,
        usage: Sequence[x509.ObjectIdentifier] = (),
        password: bytes | None = None,
        common_name: str = "",
        names: Sequence[x509.GeneralName] | None = (),
        identity: Identity | None = TOP_SERVER,
        key: bytes = b"",
    ) -> TlsFiles:
        """A certificate of a process for these hosts and other `names`, with its key.

        It is valid until in `days` days, and `begins` days after today. Without a subjectAltName if `names` is None.
        `key` is a key (PEM) that is there already.
        """
        own: Any = serialization.load_pem_private_key(key, None) if key else ec.generate_private_key(ec.SECP256R1())
        cert = _builder(common_name or name, self._name, own, days, begins)
        if names is not None:
            alternative = x509.SubjectAlternativeName([*map(_named, hosts), *_uris(identity), *names])
            cert = cert.add_extension(alternative, critical=False)
        if usage:
            cert = cert.add_extension(x509.ExtendedKeyUsage(usage), critical=False)
        files = self.files(name)
        files.cert.write_bytes(cert.sign(self._key, hashes.SHA256()).public_bytes(PEM))
        locked = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
        files.key.write_bytes(own.private_bytes(PEM, serialization.PrivateFormat.PKCS8, locked))
        files.key.chmod(0o600)
        return files


def unchecked(files: TlsFiles) -> Tls:
    """What the files hold, however wrong: as by a peer that does not check itself."""
    return Tls(files, files.ca.read_bytes(), files.cert.read_bytes(), files.key.read_bytes())


def _builder(
    name: str, issuer: str, key: ec.EllipticCurvePrivateKey, days: float, begins: int = -9
) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(_common(name))
        .issuer_name(_common(issuer))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + begins * DAY)
        .not_valid_after(now + days * DAY)
    )


def _common(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _uris(identity: Identity | None) -> list[x509.GeneralName]:
    return [] if identity is None else [x509.UniformResourceIdentifier(identity.uri)]


def _named(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
