"""How processes of one user on one machine know each other without TLS: by a key in a file that only they can read.

A server that listens on loopback writes a fresh key for its host and port. Clients on the same machine look there.
So another user of the machine can neither call the server, nor pass for it: the server proves in its answer that it
has the key.
"""

import contextlib
import hmac
import os
import secrets
import stat
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from fedgsp.connections.addresses import ip_of, is_near, split_address
from fedgsp.errors import ConfigError, PeerError, not_written
from fedgsp.files import write_secret
from fedgsp.identity import Identity
from fedgsp.security.tickets import KEY_BYTES, Ticket, Verb, answer, issue, new_key

#: A host that stands for several addresses -> these. A server on all interfaces can also be dialled at 127.0.0.2.
_DIALLED = {
    "localhost": ["127.0.0.1", "::1"],
    "0.0.0.0": ["127.0.0.1", "any"],
    "::": ["127.0.0.1", "::1", "any"],
    "*": ["127.0.0.1", "::1", "any"],
}
REMEDY = (
    "start both as the same user of this machine, use TLS (docs/tls.md), or give --insecure to both if every user of"
    " this machine may take part"
)


def folder() -> Path:
    """The folder of this user's keys; made if it is missing. Raises ConfigError if another user can reach into it."""
    # Not XDG_RUNTIME_DIR: a service and a login of one user do not both have it, and would not find each other.
    found = Path(tempfile.gettempdir(), f"fedgsp-{os.getuid()}")
    try:
        with contextlib.suppress(FileExistsError):
            found.mkdir(mode=0o700)
        about = found.lstat()
    except OSError as error:
        raise not_written(found, error) from error
    if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.getuid() or stat.S_IMODE(about.st_mode) & 0o077:
        raise ConfigError(
            f"{found} is not a folder that only this user can enter",
            "remove it, or set TMPDIR to a folder of this user",
        )
    return found


@contextlib.contextmanager
def offered(address: str) -> Iterator[bytes]:
    """A fresh key for a server of this process at host:port, in its files until the block ends."""
    key, paths = new_key(), _files(*split_address(address))
    try:
        for path in paths:
            write_secret(path, key, lasting=False)
        yield key
    finally:
        for path in paths:
            with contextlib.suppress(OSError):
                if path.read_bytes() == key:  # another server may have the address by now
                    path.unlink()


def found(address: str) -> bytes | None:
    """The key of the server at host:port; None if there is none, or if the server is on another machine."""
    host, port = split_address(address)
    if not is_near(host):
        return None
    for path in [*_files(host, port), *_files("*", port)]:
        with contextlib.suppress(OSError):
            key = path.read_bytes()
            if len(key) == KEY_BYTES:
                return key
    return None


def needed(address: str) -> bytes:
    """The key of the server at host:port; raises PeerError if there is none."""
    key = found(address)
    if key is None:
        raise PeerError(
            "no top server of this user listens there without TLS",
            "start it, and compare --top-server with its line 'listening on'; start both as the same user of this"
            " machine; if it uses TLS, give --identity or --tls-ca (docs/tls.md)",
        )
    return key


def _files(host: str, port: int) -> list[Path]:
    """The files with the key of a server that listens at a host: one for each address by which it may be dialled."""
    name = str(ip_of(host) or host)
    return [folder() / f"{one}:{port}" for one in _DIALLED.get(name, [name])]


def proof(key: bytes, asked: str) -> bytes:
    """What a server answers to the question `asked`, to show that it knows the key; empty without one of the two."""
    return answer(key, asked) if key and asked else b""


@dataclass(frozen=True, slots=True)
class Question:
    """What one call of a client asks the server at an address, which can answer only if it knows the key."""

    address: str
    key: bytes = field(repr=False)
    text: str = field(default_factory=lambda: secrets.token_hex(16))

    def ticket(self, verb: Verb, reader: Identity) -> bytes:
        """The ticket of the call: it carries the question, and shows that the client knows the key, too."""
        return issue(self.key, Ticket(verb, self.text, reader))

    def is_answer(self, shown: bytes) -> bool:
        """Whether the server has shown that it knows the key."""
        return hmac.compare_digest(proof(self.key, self.text), shown)

    @property
    def stranger(self) -> PeerError:
        """The error for a server that has not shown it."""
        return PeerError(f"the process at {self.address} is not a server of this user", REMEDY)

    def check(self, shown: bytes) -> None:
        """Raises PeerError unless the server has shown that it knows the key."""
        if not self.is_answer(shown):
            raise self.stranger
