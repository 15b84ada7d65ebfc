"""Mutual TLS: reads and checks the files of the three --tls flags before any connection is opened."""

import contextlib
import dataclasses
import datetime as dt
import os
import re
import ssl
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from fedgsp.connections.addresses import ip_of
from fedgsp.errors import ConfigError, PeerError
from fedgsp.files import MOST_OF_PEM, file_version, read_secret
from fedgsp.identity import Identity, Role, identity_in
from fedgsp.owners import check_secret
from fedgsp.security.signing import has_expired

#: Most calls of do_handshake in turn; a complete handshake needs fewer.
_TURNS = 20

#: OpenSSL's codes for a certificate that is not valid now.
_NOT_YET, _EXPIRED = 9, 10
#: OpenSSL's code for an untrusted certificate -> what is wrong with our certificate, and the remedy.
_UNTRUSTED = {
    _NOT_YET: ("is not valid yet, or its CA's certificate is not", "set the clock of this machine: it says {now}"),
    _EXPIRED: ("has expired, or its CA's certificate has", "issue a new certificate"),
    26: (
        "may not be used for both server and client connections",
        "issue it with extendedKeyUsage = serverAuth, clientAuth",
    ),
}

NOT_OF_CA = "its certificate was not issued by the CA that this process trusts"
_NOT_OF_HOST = "its certificate does not cover the host name used for it; add that name to its subjectAltName"
#: Part of gRPC's message about a failed connection -> its meaning for the process that opened the connection.
_HANDSHAKES = {
    "WRONG_VERSION_NUMBER": "it does not use TLS: start it with TLS (a top server with --federation, or every program"
    " with the three --tls flags), or this process without",
    "certificate has expired": "its certificate has expired; issue a new certificate",
    "certificate is not yet valid": "its certificate is not valid yet; set the clocks",
    "unsupported certificate purpose": "its certificate is not for servers; issue it with serverAuth, clientAuth",
    "unable to get local issuer certificate": NOT_OF_CA,
    "self signed certificate": NOT_OF_CA,
    "self-signed certificate": NOT_OF_CA,
    "Hostname Verification Check failed": _NOT_OF_HOST,
    "mismatch, certificate is not valid for": _NOT_OF_HOST,
}
#: A private key in a PEM file that also has its certificate.
_KEY = re.compile(rb"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?-----END [A-Z ]*PRIVATE KEY-----\s*", re.DOTALL)
#: The source of the files of an invitation that is being used.
TOKEN = "the token"
#: Source of the files -> what to do if one of them cannot be used.
_REMEDIES = {
    "--identity": "restore this folder from a copy; or ask for `top-server revoke` of this node and a new invitation,"
    " and run fedgsp-node enrol with another --identity",
    "--federation": "restore this folder from a copy",
}
#: How an enrolled node whose certificate has expired gets a new one.
ENROL_ANEW = "ask for `top-server revoke` of this node and a new invitation, then run: fedgsp-node enrol"
#: Code of OpenSSL -> source of the files -> what to do, where it differs from the remedies above.
_REMEDIES_OF_CODES: Mapping[int, Mapping[str, str]] = {
    _NOT_YET: dict.fromkeys(_REMEDIES, _UNTRUSTED[_NOT_YET][1]),
    _EXPIRED: {"--identity": ENROL_ANEW},
}
#: Source of the certificate -> how it comes to cover the host `name`.
_UNCOVERED = {
    "--identity": "ask for `top-server revoke` of this node and a new invitation with --host {name}",
    "--federation": "give --host {name}",
}
_CLOSED = ("Socket closed", "Connection reset", "Broken pipe")


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Paths of three PEM files: the trusted CA, the certificate of this process, and its private key."""

    ca: Path
    cert: Path
    key: Path
    #: What has these files, if they are not given by the three --tls flags: --identity, --federation or a token.
    source: str = field(default="", compare=False)

    def named(self, which: str) -> str:
        """The file `ca`, `cert` or `key` for a message, behind the flag by which the user has given it."""
        return f"{self.naming(which)} {getattr(self, which)}"

    def naming(self, which: str) -> str:
        """What stands before the path of a file in a message."""
        return f"{self.source}: file" if self.source else f"--tls-{which}"

    def remedy(self, otherwise: str, code: int = 0) -> str:
        """What to do about a file that cannot be used, for this code of OpenSSL; `otherwise`, if the user made it."""
        found = {**_REMEDIES, **_REMEDIES_OF_CODES.get(code, {})}.get(self.source, otherwise)
        return found.format(now=f"{dt.datetime.now(dt.UTC):%Y-%m-%d %H:%M} UTC")

    def versions(self) -> tuple[tuple[int, ...], ...]:
        """What changes when one of the files is replaced."""
        return tuple(file_version(path) for path in (self.ca, self.cert, self.key))


@dataclass(frozen=True, slots=True)
class Tls:
    """The contents of three files. `load` has checked that they fit together and are valid now."""

    files: TlsFiles
    ca: bytes
    cert: bytes
    key: bytes = field(repr=False)
    #: The process that the certificate names, if it names one.
    identity: Identity | None = None
    #: The versions of the files that were read.
    versions: tuple[tuple[int, ...], ...] = ()

    def context(self, protocol: int) -> ssl.SSLContext:
        """A context of Python's `ssl` for one side; raises SSLError, or ConfigError if the key is encrypted.

        The files are not read again: they may be in the middle of a replacement.
        """

        def refuse_password() -> NoReturn:
            remedy = self.files.remedy("decrypt it: openssl pkey -in FILE -out FILE")
            raise ConfigError(f"{self.files.named('key')} is encrypted", remedy)

        made = ssl.SSLContext(protocol)
        made.hostname_checks_common_name = False  # a name in the subjectAltName alone counts: see `tls_probe`
        made.load_verify_locations(cadata=_text(self.ca))
        with _as_file(self.cert) as cert, _as_file(self.key) as key:
            made.load_cert_chain(cert, key, refuse_password)
        return made

    def check_is(self, *roles: Role) -> None:
        """Raises ConfigError unless the certificate is for a process of one of these roles."""
        if self.identity is not None and self.identity.role in roles:
            return
        wanted = Identity(roles[0], "NAME" if roles[0] is Role.NODE else "").uri
        enrolment = "give --identity with a folder made by fedgsp-node enrol, or " if roles[0] is Role.NODE else ""
        raise ConfigError(
            f"{self.files.named('cert')} is not the certificate of a {roles[0]}: {self.identity or 'it names none'}",
            f"{enrolment}issue one with URI:{wanted} in its subjectAltName",
        )

    def check_not_expired(self) -> None:
        """Raises PeerError if the certificate has expired since it was read: all servers would refuse it.

        It is not an error of the settings: a process that is running goes on with a new certificate as soon as there
        is one.
        """
        if has_expired(self.cert, dt.datetime.now(dt.UTC)):
            remedy = self.files.remedy("put a new one in its place; the next try reads it", _EXPIRED)
            raise PeerError(f"the certificate of {self.files.named('cert')} has expired", remedy)

    def check_covers(self, host: str, why: str) -> None:
        """Raises ConfigError unless the certificate covers `host`, by which peers connect; `why` explains the need."""
        name = host.strip("[]").partition("%")[0]  # peers also leave out the zone of an IPv6 address
        try:
            _speak_with_itself(self, name)
        except UnicodeError:
            raise ConfigError(f"{name!r}, {why}, is not a host name", "give a host name or an IP address") from None
        except ssl.SSLCertVerificationError:
            raise ConfigError(
                f"{self.files.named('cert')} does not cover {name}, {why}",
                _UNCOVERED.get(self.files.source, "").format(name=name)
                or f"issue a certificate with {'IP' if ip_of(name) else 'DNS'}:{name} in its subjectAltName",
            ) from None


def in_folder(folder: Path, name: str, source: str) -> TlsFiles:
    """The files in a folder that FedGSP keeps: certificate and key are one file, which can be replaced at once.

    `source` is the flag of the folder.
    """
    both = folder / f"{name}.pem"
    return TlsFiles(folder / "ca.pem", both, both, source)


def tls_files(ca: Path | None, cert: Path | None, key: Path | None) -> TlsFiles | None:
    """The files of the three flags; None if no flag is given, ConfigError if only some are given."""
    if ca is not None and cert is not None and key is not None:
        return TlsFiles(ca, cert, key)
    named = {"--tls-ca": ca, "--tls-cert": cert, "--tls-key": key}
    given = [flag for flag, path in named.items() if path is not None]
    if given:
        missing = [flag for flag in named if flag not in given]
        raise ConfigError(
            f"{' and '.join(given)} without {' and '.join(missing)}",
            "give all three flags for TLS, or none for connections without TLS",
        )
    return None


def load(files: TlsFiles | None) -> Tls | None:
    """Reads and checks the files; None without files.

    Raises ConfigError if they are unreadable, unfit or not valid now, or if others can read the key.
    """
    if files is None:
        return None
    versions = files.versions()
    ca, _ = _read(files, "ca")
    cert, _ = _read(files, "cert")
    key, status = _read(files, "key")
    check_secret(files.naming("key"), files.key, status)
    for which, content in (("ca", ca), ("cert", cert)):
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=_text(content))
        except (ssl.SSLError, ValueError):
            raise ConfigError(
                f"{files.named(which)} holds no PEM certificate", files.remedy("give a PEM file, or convert this file")
            ) from None
    tls = Tls(files, ca, _KEY.sub(b"", cert), key, versions=versions)
    _check_key(tls)
    try:
        return dataclasses.replace(tls, identity=identity_in(_speak_with_itself(tls)))
    except ssl.SSLCertVerificationError as error:
        otherwise = (f"is not trusted by {files.named('ca')} ({error.verify_message})", "give the CA that issued it")
        wrong, remedy = _UNTRUSTED.get(error.verify_code, otherwise)
        raise ConfigError(
            f"the certificate of {files.named('cert')} {wrong}", files.remedy(remedy, error.verify_code)
        ) from None
    except ssl.SSLError as error:
        raise ConfigError(
            f"{files.named('cert')} cannot be used: {error.reason}", files.remedy("issue another certificate")
        ) from None


def meaning_of(details: str) -> str | None:
    """What the words of OpenSSL about a server's certificate mean for its owner; None for other words."""
    return next((meaning for part, meaning in _HANDSHAKES.items() if part in details), None)


def handshake_failure(details: str) -> str | None:
    """The meaning of a gRPC error message for the process that connected; None if it does not concern TLS."""
    if meaning := meaning_of(details):
        return f"the TLS handshake failed: {meaning}"
    if "handshake" in details.lower():
        return f"the TLS handshake failed, perhaps because a key is not RSA, P-256 or P-384: {details}"
    if "failed to connect" in details and any(part in details for part in _CLOSED):
        return (
            "it closed the connection at once; perhaps it requires TLS, or by its clock the certificate of this"
            " process has expired, or is of another CA: compare the clocks and the --tls flags of both processes"
        )
    return None


def _read(files: TlsFiles, which: str) -> tuple[bytes, os.stat_result]:
    try:
        return read_secret(getattr(files, which), MOST_OF_PEM)
    except OSError as error:
        what = f"{files.named(which)} cannot be read: {error.strerror}"
        raise ConfigError(what, files.remedy("give a PEM file")) from None


def _text(pem: bytes) -> str:
    """PEM as `ssl` takes it; what stands between the certificates does not count."""
    return pem.decode("ascii", "ignore")


@contextlib.contextmanager
def _as_file(content: bytes) -> Iterator[str]:
    """The name of a file in memory, or without a name on disk, for `ssl`, which takes a key only from a file."""
    made = os.memfd_create("pem") if hasattr(os, "memfd_create") else None
    with open(made, "w+b") if made is not None else tempfile.TemporaryFile() as file:
        file.write(content)
        file.seek(0)
        yield f"/dev/fd/{file.fileno()}"


def _check_key(tls: Tls) -> None:
    files = tls.files
    try:
        tls.context(ssl.PROTOCOL_TLS_SERVER)
    except ssl.SSLError as error:
        if "MISMATCH" in (error.reason or ""):
            raise ConfigError(
                f"{files.named('key')} is not the key of {files.named('cert')}",
                files.remedy("give a certificate and its key"),
            ) from None
        raise ConfigError(
            f"{files.named('key')} holds no usable PEM private key ({error.reason or 'unknown format'})",
            files.remedy("give the unencrypted key of --tls-cert"),
        ) from None


def _speak_with_itself(tls: Tls, host: str | None = None) -> list[str]:
    """A handshake in memory, with this process as both sides; returns the URIs in the certificate.

    Raises SSLError if peers with the same CA would refuse the certificate.
    """
    server, client = tls.context(ssl.PROTOCOL_TLS_SERVER), tls.context(ssl.PROTOCOL_TLS_CLIENT)
    server.verify_mode = ssl.CERT_REQUIRED
    client.check_hostname = host is not None
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [
        client.wrap_bio(to_client, to_server, server_hostname=host),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    for turn in range(_TURNS):
        try:
            sides[turn % 2].do_handshake()
        except ssl.SSLWantReadError:
            continue
    return uris_of(sides[0])


def uris_of(shown: ssl.SSLObject) -> list[str]:
    """The URIs in the certificate that the other side of a connection has shown."""
    found: Any = shown.getpeercert() or {}
    return [name for kind, name in found.get("subjectAltName", ()) if kind == "URI"]
