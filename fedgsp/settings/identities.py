"""The settings of folders that FedGSP keeps certificates in: that of a federation, and that of a node's identity."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

from fedgsp.connections.addresses import check_host, loopback, split_address
from fedgsp.errors import ConfigError
from fedgsp.security.tls import TlsFiles, in_folder
from fedgsp.settings.connections import CONNECTIONS, PeerSettings
from fedgsp.settings.fields import setting

#: The hosts by which a process is dialled on its own machine.
NEAR_HOSTS = ("127.0.0.1", "::1", "localhost")


class Federated:
    """What a process has that listens and may have a federation folder. Its settings have these three fields."""

    __slots__ = ()

    listen: str
    federation: Path | None
    host: tuple[str, ...]

    @property
    def hosts(self) -> tuple[str, ...]:
        """The hosts by which this process is dialled, for its certificate; without brackets and zones."""
        dialled = (loopback(split_address(self.listen)[0]), *self.host)
        return tuple(sorted({*NEAR_HOSTS, *(host.strip("[]").partition("%")[0] for host in dialled)}))

    @property
    def folder_of_tls(self) -> tuple[TlsFiles | None, str]:
        """The files of mutual TLS in the federation folder, if there is one, and the flag that names it."""
        if self.federation is None:
            return None, ""
        # Several top servers may use one folder. Those with the same hosts share a certificate.
        digest = hashlib.sha256("\n".join(self.hosts).encode()).hexdigest()
        return in_folder(self.federation, f"top-server-{digest[:8]}", "--federation"), "--federation"

    def check_hosts(self) -> None:
        """Raise ConfigError for a --host that is none, or without --federation."""
        if self.host and self.federation is None:
            raise ConfigError("--host is for a certificate from --federation", "give --federation too, or drop --host")
        for host in self.host:
            check_host("--host", host)


@dataclass(frozen=True, slots=True, kw_only=True)
class FederationSettings(Federated, PeerSettings):
    """Settings of a top server that may have a federation folder."""

    listen: str = setting(
        "127.0.0.1:7000",
        "where nodes join; port 0 takes any free port",
        metavar="HOST:PORT",
        address=True,
        panel=CONNECTIONS,
    )
    federation: Path | None = setting(
        None,
        "folder made by `top-server invite`: the top server issues itself a certificate from it, and only the nodes "
        "and clients that are registered there may join; in place of the three --tls flags",
        metavar="DIRECTORY",
        panel=CONNECTIONS,
    )
    host: tuple[str, ...] = setting(
        (),
        "with --federation: a host name or address by which nodes dial this top server; repeatable",
        metavar="HOST",
        other_names=True,
        may_change=True,
        panel=CONNECTIONS,
    )

    def check_together(self) -> None:
        """Raise ConfigError for settings that do not go together."""
        self.check_hosts()
        PeerSettings.check_together(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class IdentitySettings(PeerSettings):
    """Settings of a node that may have a folder with its identity."""

    identity: Path | None = setting(
        None,
        "folder made by `fedgsp-node enrol`, with the certificate of this node, which the node renews by itself; "
        "in place of the three --tls flags",
        metavar="DIRECTORY",
        panel=CONNECTIONS,
    )

    @property
    def folder_of_tls(self) -> tuple[TlsFiles | None, str]:
        """The files of mutual TLS in the folder of the identity, if there is one, and the flag that names it."""
        return (in_folder(self.identity, "node", "--identity"), "--identity") if self.identity else (None, "")
