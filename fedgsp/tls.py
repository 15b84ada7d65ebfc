"""Mutual TLS: the three files that a process is given, checked before anything is opened."""

from __future__ import annotations

import ipaddress
import logging
import ssl
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from fedgsp.errors import ConfigError

logger = logging.getLogger(__name__)

#: More than both sides of a handshake need to speak in turn.
_TURNS = 20

#: By OpenSSL's code of why it does not trust a certificate: what is wrong with one of our own, and what to do.
_UNTRUSTED = {
    9: ("is not valid yet, or that of its CA", "wait, or set the clock of this machine"),
    10: ("has expired, or that of its CA", "issue a new one"),
    26: (
        "may not be used by both a server and a client",
        "issue it with extendedKeyUsage = serverAuth, clientAuth",
    ),
}

_NOT_OF_CA = "its certificate is not of the CA in --tls-ca"
#: Parts of gRPC's message when a connection fails, and what they mean to whoever dialled.
_HANDSHAKES = {
    "WRONG_VERSION_NUMBER": "it does not speak TLS; start it with the three --tls flags, or this process without",
    "certificate has expired": "its certificate has expired; issue a new one",
    "certificate is not yet valid": "its certificate is not valid yet; set the clocks",
    "unsupported certificate purpose": "its certificate is not one for servers; issue it with serverAuth",
    "unable to get local issuer certificate": _NOT_OF_CA,
    "self signed certificate": _NOT_OF_CA,
    "Hostname Verification Check failed": (
        "its certificate does not cover the host by which it is dialled; name that in its subjectAltName"
    ),
}
_CLOSED = ("Socket closed", "Connection reset", "Broken pipe")


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Paths of PEM files: who is trusted, who this process is, and the proof of that."""

    ca: Path
    cert: Path
    key: Path


@dataclass(frozen=True, slots=True)
class Tls:
    """The contents of the files, which fit together and are valid now."""

    files: TlsFiles
    ca: bytes
    cert: bytes
    key: bytes = field(repr=False)

    def check_covers(self, host: str, why: str) -> None:
        """Raises ConfigError unless peers that dial `host` will take the certificate for that of this host."""
        name = host.strip("[]").partition("%")[0]  # peers leave the zone of an IPv6 address out as well
        try:
            _speak_with_itself(self.files, name)
        except UnicodeError:
            raise ConfigError(f"{name!r}, {why}, is no host name", "give a name or an address") from None
        except ssl.SSLCertVerificationError:
            entry = f"{'IP' if _is_ip(name) else 'DNS'}:{name}"
            raise ConfigError(
                f"--tls-cert {self.files.cert} does not cover {name}, {why}",
                f"issue it with {entry} in its subjectAltName",
            ) from None


def tls_files(ca: Path | None, cert: Path | None, key: Path | None) -> TlsFiles | None:
    """The files of the three flags, None if there are none; raises ConfigError if only some are given."""
    if ca is not None and cert is not None and key is not None:
        return TlsFiles(ca, cert, key)
    named = {"--tls-ca": ca, "--tls-cert": cert, "--tls-key": key}
    missing = [flag for flag, path in named.items() if path is None]
    if len(missing) < len(named):
        given = [flag for flag in named if flag not in missing]
        raise ConfigError(
            f"{' and '.join(given)} without {' and '.join(missing)}",
            "give all three for TLS, or none for plain connections",
        )
    return None


def load(files: TlsFiles | None) -> Tls | None:
    """What the files hold; raises ConfigError if they cannot be read, do not fit together or are not valid now."""
    if files is None:
        return None
    ca, cert, key = _read("--tls-ca", files.ca), _read("--tls-cert", files.cert), _read("--tls-key", files.key)
    for flag, path in (("--tls-ca", files.ca), ("--tls-cert", files.cert)):
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(path)
        except ssl.SSLError:
            raise ConfigError(f"{flag} {path} holds no certificate in PEM", "give one, or convert it") from None
    _check_key(files)
    try:
        _speak_with_itself(files)
    except ssl.SSLCertVerificationError as error:
        otherwise = (f"is not trusted by --tls-ca {files.ca} ({error.verify_message})", "give the CA that issued it")
        wrong, remedy = _UNTRUSTED.get(error.verify_code, otherwise)
        raise ConfigError(f"the certificate of --tls-cert {files.cert} {wrong}", remedy) from None
    except ssl.SSLError as error:
        raise ConfigError(f"--tls-cert {files.cert} cannot be used: {error.reason}", "issue another one") from None
    if files.key.stat().st_mode & stat.S_IROTH:
        logger.warning("--tls-key %s can be read by everybody on this machine: chmod 600 it", files.key)
    return Tls(files, ca, cert, key)


def handshake_failure(details: str) -> str | None:
    """What a message of gRPC says about TLS, for whoever dialled; None if it is about something else."""
    for part, meaning in _HANDSHAKES.items():
        if part in details:
            return f"the TLS handshake failed: {meaning}"
    if "handshake" in details.lower():
        return f"the TLS handshake failed, as it does with keys other than RSA, P-256 and P-384: {details}"
    if "failed to connect" in details and any(part in details for part in _CLOSED):
        return (
            "it closed the connection at once, as servers do that want TLS or another certificate;"
            " compare the --tls flags of both"
        )
    return None


def _read(flag: str, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{flag} {path} cannot be read: {error.strerror}", "give a PEM file") from None


def _check_key(files: TlsFiles) -> None:
    def refuse_password() -> NoReturn:
        raise ConfigError(f"--tls-key {files.key} is encrypted", "decrypt it: openssl pkey -in FILE -out FILE")

    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(files.cert, files.key, refuse_password)
    except ssl.SSLError as error:
        if "MISMATCH" in (error.reason or ""):
            raise ConfigError(
                f"--tls-key {files.key} is not the key of --tls-cert {files.cert}", "give the two that belong together"
            ) from None
        raise ConfigError(
            f"--tls-key {files.key} holds no private key in PEM that can be used ({error.reason or 'unknown format'})",
            "give the key of --tls-cert, unencrypted",
        ) from None


def _speak_with_itself(files: TlsFiles, host: str | None = None) -> None:
    """A handshake in memory, as both sides; raises SSLError where peers with the same CA would refuse this process."""
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    server.verify_mode = ssl.CERT_REQUIRED
    client.check_hostname = host is not None
    for context in (server, client):
        context.load_verify_locations(files.ca)
        context.load_cert_chain(files.cert, files.key)
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


def _is_ip(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
