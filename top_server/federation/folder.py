"""The files of a federation: `ca.pem`, `ca.key`, `registry.json`. Only their owner can read and change them."""

import contextlib
import fcntl
import os
import re
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from cryptography import x509

from fedgsp.errors import ConfigError, DataError, not_written
from fedgsp.files import MOST_OF_PEM, MOST_OF_RECORD, read_secret, write_secret
from fedgsp.owners import check_secret, check_tree
from fedgsp.security.certificates import is_fresh, new_key, now, pem_of, pem_of_key
from top_server.federation.authority import Authority, new_authority
from top_server.federation.registry import EMPTY, Registry, dump, parse

FLAG = "--federation"
_REGISTRY = "registry.json"
_FILES = ("ca.pem", "ca.key", _REGISTRY)
#: What to do if a federation is not found. A second one would have another CA, which knows none of the nodes.
EXISTING = "give the folder that the first `top-server invite` has made"
#: The files of a folder that is being made, or whose making was interrupted; `write_secret` adds the digits.
_BEGUN = re.compile(r"lock|ca\.key|ca\.pem|\.(ca\.key|ca\.pem|registry\.json)\.[0-9a-f]{8}")


class Folder:
    """A federation folder that was checked."""

    def __init__(self, path: Path) -> None:
        """Use `opened` or `made`."""
        self.path = path
        self.registry_file = path / _REGISTRY

    def authority(self) -> Authority:
        """The CA; raises ConfigError or DataError if its files cannot be used."""
        certificate, key = _read(self.path / "ca.pem"), _read(self.path / "ca.key")
        try:
            return Authority.read(certificate, key)
        except (ValueError, TypeError) as error:
            raise DataError(f"the CA in {self.path} cannot be used: {error}", "restore ca.pem and ca.key") from None

    def registry(self) -> Registry:
        """The registry; raises DataError if it is damaged."""
        try:
            return parse(_read(self.registry_file).decode())
        except ValueError as error:
            raise DataError(f"{self.registry_file} is damaged: {error}", "restore it from a copy") from None

    def change(self, change: Callable[[Registry], Registry]) -> Registry:
        """Changes the registry. No other process changes it meanwhile, and readers see the old one or the new one."""
        with _locked(self.path):
            before = self.registry()
            changed = change(before)
            if changed != before:
                write_secret(self.registry_file, dump(changed).encode())
            return changed

    def certify(self, file: Path, hosts: Collection[str]) -> x509.Certificate:
        """Puts a certificate of the top server, and its key, into `file`, unless there is a fresh one; returns it."""
        authority = self.authority()
        certificate = _found(file, authority.certificate)
        if certificate is None or not is_fresh(certificate, now()):
            key = new_key()
            certificate = authority.for_top_server(hosts, key.public_key())
            write_secret(file, pem_of(certificate) + pem_of_key(key))
        return certificate


def opened(path: Path, remedy: str = EXISTING) -> Folder:
    """The federation in a folder; raises ConfigError if there is none, or if others can read or change it."""
    if lacking := [name for name in _FILES if not (path / name).is_file()]:
        raise ConfigError(f"{FLAG} {path} holds no federation: there is no {', no '.join(lacking)}", remedy)
    check_tree(FLAG, path)
    return Folder(path)


def made(path: Path) -> Folder:
    """As `opened`; makes the folder, with a new CA and an empty registry, if there is nothing.

    The registry is written last. Without it, no top server has used the CA, and another one may take its place.
    """
    if not path.exists() or (path.is_dir() and all(_BEGUN.fullmatch(one.name) for one in path.iterdir())):
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.chmod(0o700)
        except OSError as error:
            raise not_written(path, error) from error
        check_tree(FLAG, path)
        with _locked(path):
            if not (path / _REGISTRY).exists():  # another process may have been faster
                authority = new_authority()
                write_secret(path / "ca.key", pem_of_key(authority.key))
                write_secret(path / "ca.pem", pem_of(authority.certificate))
                write_secret(path / _REGISTRY, dump(EMPTY).encode())
    return opened(path, "give the folder of the federation, or for a new federation a new or empty folder")


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """While the body runs, no other process makes or changes this federation."""
    with contextlib.ExitStack() as stack:
        try:
            lock = stack.enter_context(open(path / "lock", "ab", opener=_for_me))
            fcntl.flock(lock, fcntl.LOCK_EX)
        except OSError as error:
            raise not_written(path / "lock", error) from error
        yield


def _found(file: Path, ca: x509.Certificate) -> x509.Certificate | None:
    """The certificate in a file, if there is one that this CA issued."""
    try:
        found = x509.load_pem_x509_certificate(read_secret(file, MOST_OF_PEM)[0])
        found.verify_directly_issued_by(ca)
    except Exception:  # it is missing, or of another CA, or no certificate: `cryptography` has several errors
        return None
    return found


def _for_me(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _read(path: Path) -> bytes:
    try:
        content, status = read_secret(path, MOST_OF_RECORD)
    except OSError as error:
        raise ConfigError(f"{FLAG}: {path} cannot be read: {error.strerror}", "restore it from a copy") from None
    check_secret(FLAG, path, status)
    return content
