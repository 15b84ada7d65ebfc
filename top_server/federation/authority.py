"""The CA of a federation: what it issues, and to whom. All work is done by `cryptography`."""

import datetime as dt
import hashlib
import ipaddress
import secrets
from collections.abc import Collection
from dataclasses import dataclass
from typing import Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedgsp.identity import TOP_SERVER, Identity, Role, host_of_placed, invited, node
from fedgsp.security.certificates import BACKDATED, Key, new_key, now
from fedgsp.security.invitation import Invitation
from top_server.federation.registry import Entry, Operator

#: How long the CA is good.
CA_LIFE = dt.timedelta(days=3650)
#: How long a certificate of the top server is good. It renews itself.
SERVER_LIFE = dt.timedelta(days=7)
_CLIENT, _SERVER = ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH

PublicKey = ec.EllipticCurvePublicKey


def public_key_in(request: bytes) -> PublicKey:
    """The key of a certificate signing request (DER), which is the only thing that is taken from it.

    Raises ValueError unless the sender has that key, and it is a P-256 key.
    """
    try:
        found = x509.load_der_x509_csr(request)
        key = found.public_key()
    except Exception as error:  # `cryptography` has several, also for algorithms that it does not know
        raise ValueError("the request cannot be read") from error
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise ValueError("the key of the request is not a P-256 key")
    if not found.is_signature_valid:
        raise ValueError("the request is not signed with its key")
    return key


def fingerprint_of(key: PublicKey) -> str:
    """SHA-256 of a public key, in hex digits."""
    return hashlib.sha256(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).hexdigest()


@dataclass(frozen=True, slots=True)
class Authority:
    """A CA with its key."""

    certificate: x509.Certificate
    key: Key

    @classmethod
    def read(cls, certificate: bytes, key: bytes) -> Self:
        """A CA from its two files in PEM; raises ValueError or TypeError."""
        found = load_pem_private_key(key, None)
        if not isinstance(found, ec.EllipticCurvePrivateKey):
            raise ValueError("the key is of another kind")
        return cls(x509.load_pem_x509_certificate(certificate), found)

    def for_invitation(self, name: str, entry: Entry) -> Invitation:
        """A certificate with its key, by which an invited node makes its first connection."""
        key, until = new_key(), dt.datetime.fromtimestamp(entry.invited_until, dt.UTC)
        names = _uris(invited(name).uri, entry.enrolment)
        return Invitation(
            ca=_der(self.certificate),
            certificate=_der(self._issue(key.public_key(), names, until, [_CLIENT])),
            key=key,
        )

    def for_node(self, name: str, entry: Entry, key: PublicKey) -> bytes:
        """The certificate of a node, in DER."""
        names = [*_uris(node(name).uri, entry.enrolment), *map(_host, entry.hosts)]
        until = now() + dt.timedelta(seconds=entry.certificate_s)
        return _der(self._issue(key, names, until, [_SERVER, _CLIENT]))

    def for_operator(self, name: str, operator: Operator, key: PublicKey) -> x509.Certificate:
        """The certificate of an operator. Nobody dials it, so it names no host."""
        names = _uris(Identity(Role.OPERATOR, name).uri, operator.enrolment)
        return self._issue(key, names, dt.datetime.fromtimestamp(operator.until, dt.UTC), [_CLIENT])

    def for_top_server(self, hosts: Collection[str], key: PublicKey) -> x509.Certificate:
        """The certificate of a top server that is dialled by these hosts."""
        return self.issued(TOP_SERVER, hosts, key, now() + SERVER_LIFE)

    def for_placed(
        self, who: Identity, server: Identity, enrolment: str, key: PublicKey, until: dt.datetime
    ) -> x509.Certificate:
        """The certificate of a worker or a manager, with a host name of its own in place of hosts where it may run.

        Others dial it as `server`.
        """
        names = [*_uris(who.uri, enrolment), _host(host_of_placed(server))]
        return self._issue(key, names, until, [_SERVER, _CLIENT])

    def issued(self, who: Identity, hosts: Collection[str], key: PublicKey, until: dt.datetime) -> x509.Certificate:
        """The certificate of a process that is dialled by these hosts, and that is not in the registry."""
        return self._issue(key, [*_uris(who.uri), *map(_host, hosts)], until, [_SERVER, _CLIENT])

    def _issue(
        self,
        key: PublicKey,
        names: list[x509.GeneralName],
        until: dt.datetime,
        usage: list[x509.ObjectIdentifier],
    ) -> x509.Certificate:
        # No common name: some programs take it for a host name. Without a subject, the other names are critical.
        builder = (
            _builder(x509.Name([]), self.certificate.subject, key, until)
            .add_extension(x509.SubjectAlternativeName(names), critical=True)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usage), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()),
                critical=False,
            )
        )
        return builder.sign(self.key, hashes.SHA256())


def new_authority() -> Authority:
    """A fresh CA, which can issue certificates of processes, and of no further CA."""
    key = new_key()
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"FedGSP federation {secrets.token_hex(4)}")])
    builder = (
        _builder(name, name, key.public_key(), now() + CA_LIFE)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
    )
    return Authority(builder.sign(key, hashes.SHA256()), key)


def _builder(subject: x509.Name, issuer: x509.Name, key: PublicKey, until: dt.datetime) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now() - BACKDATED)
        .not_valid_after(until)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _usage(signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _uris(*uris: str) -> list[x509.GeneralName]:
    return [x509.UniformResourceIdentifier(uri) for uri in uris]


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _der(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(Encoding.DER)
