"""Temporary certificates for measures with TLS, made by the commands of docs/tls.md."""

from __future__ import annotations

import subprocess
from pathlib import Path

_NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")


def make(directory: Path, ip: str = "127.0.0.1") -> tuple[Path, Path, Path]:
    """Makes a CA, and a certificate with its key for localhost and an IP, valid for a day. Needs `openssl` 3."""
    ca, cert, key = (directory / name for name in ("ca.pem", "here.pem", "here.key"))
    ca_key, wish = directory / "ca.key", directory / "here.csr"
    names = ("-addext", f"subjectAltName=DNS:localhost,IP:{ip},URI:fedgsp://node/reader")
    _openssl("req", "-x509", *_NEW_KEY, "-days", "1", "-subj", "/CN=ca", "-keyout", ca_key, "-out", ca)
    _openssl("req", "-new", *_NEW_KEY, "-subj", "/CN=here", *names, "-keyout", key, "-out", wish)
    signed = ("-CA", ca, "-CAkey", ca_key, "-copy_extensions", "copy", "-days", "1", "-out", cert)
    _openssl("x509", "-req", "-in", wish, *signed)
    return ca, cert, key


def _openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)
