"""The secret of a node, from which steps draw what nobody else may know."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import secrets
from pathlib import Path

from fedgsp.errors import DataError, not_written

SECRET_BYTES = 32
_NAME = "secret"


def node_secret(directory: Path) -> bytes:
    """The secret in a state directory, made at the first call; raises UserError if it cannot be read or written."""
    path = directory / _NAME
    try:
        if not path.exists():
            aside = path.with_name(f".{_NAME}.{os.getpid()}")
            aside.touch(mode=0o600)
            aside.write_bytes(secrets.token_bytes(SECRET_BYTES))
            # A link never replaces a secret that another process has made in the meantime.
            with contextlib.suppress(FileExistsError):
                os.link(aside, path)
            aside.unlink()
        found = path.read_bytes()
    except OSError as error:
        raise not_written(path, error) from None
    if len(found) != SECRET_BYTES:
        raise DataError(f"{path} holds {len(found)} bytes, not {SECRET_BYTES}", "restore it from a copy")
    return found


def derived(secret: bytes, *purpose: object) -> bytes:
    """32 bytes for one purpose; without the secret they look random (HMAC-SHA256)."""
    return hmac.digest(secret, "\0".join(map(str, purpose)).encode(), hashlib.sha256)
