"""Certificates of workers, and of a top server that has none and whose workers are on other machines.

They are issued by the CA of the federation if the run has one, and otherwise by a CA of the run, whose key stays in
the run directory and is never handed out.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from fedgsp.connections.addresses import check_host
from fedgsp.errors import ConfigError, DataError
from fedgsp.files import MOST_OF_PEM, private, read_secret, write_secret
from fedgsp.identity import TOP_SERVER, Identity, manager, node, worker
from fedgsp.owners import check_secret
from fedgsp.security.cleartext import leaves_machine
from fedgsp.settings.run import RunConfig
from top_server.nodes.callers import enrolment_of
from top_server.placing.base import CA, OWN

if TYPE_CHECKING:
    from top_server.federation.authority import Authority

#: How long certificates are good that a start of the top server makes. They are made anew at the next start.
LIFE = dt.timedelta(days=90)
_CA, _KEY, _TOP_SERVER = "ca.pem", "ca.key", "top-server.pem"
#: The port that a run takes whose workers are on other machines, unless --listen says another.
ANYWHERE = "0.0.0.0:0"


def check(config: RunConfig) -> None:
    """Raises ConfigError for connections that workers on other machines could not use."""
    if config.listen != RunConfig().listen and not leaves_machine(config.listen):
        raise ConfigError(
            f"--listen {config.listen} is on loopback, where workers of --place {config.placed} cannot reach it",
            "leave it out: the run then takes a free port of all addresses of this machine",
        )
    if config.insecure:
        raise ConfigError(
            f"--place {config.placed} gives each process a certificate, and --insecure is for connections without TLS",
            "drop --insecure",
        )
    if config.tls_files is not None and config.federation is None:
        raise ConfigError(
            f"--place {config.placed} gives each worker a certificate, and the key of the CA of --tls-ca is not here",
            "drop the three --tls flags: the run then has a CA of its own; or give --federation",
        )


def connected(config: RunConfig, folder: Path, host: str) -> RunConfig:
    """The settings with which a run connects to workers on other machines, who reach it at `host`.

    Without a federation it makes a certificate, issued by the CA of the run in `folder`. Raises UserError.
    """
    check_host("place option host", host)
    listen = ANYWHERE if config.listen == RunConfig().listen else config.listen
    dialled = dataclasses.replace(config, listen=listen, host=(*config.host, host))
    if config.federation is not None:
        return dialled
    from fedgsp.security.certificates import new_key, now, pem_of, pem_of_key  # here: other runs need no cryptography

    own, key = _authority(folder), new_key()
    certificate = own.issued(TOP_SERVER, dialled.hosts, key.public_key(), now() + LIFE)
    both = folder / _TOP_SERVER
    write_secret(both, pem_of(certificate) + pem_of_key(key))
    return dataclasses.replace(config, listen=listen, tls_ca=folder / _CA, tls_cert=both, tls_key=both)


class Certificates:
    """Issues the certificates of the workers of a run, and of the managers on their machines."""

    def __init__(self, authority: Authority, run: str) -> None:
        self._authority = authority
        self._run = run

    def secrets(self, name: str) -> Mapping[str, bytes]:
        """The files of a worker: it has a key of its own, and is dialled by its name, wherever it runs."""
        from fedgsp.security.certificates import pem_of

        return {CA: pem_of(self._authority.certificate), OWN: self._own(worker(name), node(name))}

    def of_manager(self, name: str) -> bytes:
        """The certificate of a manager that runs on the machine of a worker, with its key."""
        return self._own(manager(name), manager(name))

    def _own(self, who: Identity, server: Identity) -> bytes:
        """A certificate with its key, in PEM, of a process that others dial as `server`."""
        from fedgsp.security.certificates import new_key, now, pem_of, pem_of_key

        key, until = new_key(), now() + LIFE
        found = self._authority.for_placed(who, server, enrolment_of(self._run, who.name), key.public_key(), until)
        return pem_of(found) + pem_of_key(key)


def issuer(config: RunConfig, folder: Path, run: str) -> Certificates | None:
    """Who issues the certificates of workers; None if the run has no TLS, or a CA whose key is not here.

    `config` are the settings of connections: see `connected`.
    """
    if config.federation is not None:
        from top_server.federation.folder import opened

        return Certificates(opened(config.federation).authority(), run)
    if config.tls_ca == folder / _CA:
        return Certificates(_authority(folder), run)
    return None


def _authority(folder: Path) -> Authority:
    """The CA of the run in its folder, made if there is none. Only one top server at a time has this folder."""
    from fedgsp.security.certificates import pem_of, pem_of_key
    from top_server.federation.authority import Authority, new_authority

    if not (folder / _CA).exists():
        made = new_authority()
        private(folder)
        write_secret(folder / _KEY, pem_of_key(made.key))
        write_secret(folder / _CA, pem_of(made.certificate))
        return made
    try:
        (certificate, _), (key, status) = (read_secret(folder / name, MOST_OF_PEM) for name in (_CA, _KEY))
        check_secret("the key of the run", folder / _KEY, status)
        return Authority.read(certificate, key)
    except (OSError, ValueError, TypeError) as error:
        raise DataError(
            f"the CA of the run in {folder} cannot be used: {error}", f"remove {folder}: a new one is then made"
        ) from None
