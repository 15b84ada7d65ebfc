"""The settings of connections, which every program has."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedgsp.connections.liveness import LEAST_LOST_AFTER_S, LOST_AFTER_S, MOST_LOST_AFTER_S
from fedgsp.errors import ConfigError
from fedgsp.security.cleartext import check_cleartext
from fedgsp.security.tls import TlsFiles, tls_files
from fedgsp.settings.checks import flag
from fedgsp.settings.fields import described, setting
from fedgsp.transfers.link_choice import WIRES
from fedgsp.transfers.pipes import HAND_OVERS

CONNECTIONS = "Connections"


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFlags:
    """The files of mutual TLS."""

    tls_ca: Path | None = setting(
        None,
        "PEM file of the certificate authority (CA) that issued the certificates of all peers; without it, "
        "connections are not encrypted",
        metavar="FILE",
        panel=CONNECTIONS,
    )
    tls_cert: Path | None = setting(
        None, "PEM file of the certificate that this process shows to its peers", metavar="FILE", panel=CONNECTIONS
    )
    tls_key: Path | None = setting(
        None, "PEM file of the private key of --tls-cert", metavar="FILE", panel=CONNECTIONS
    )

    @property
    def tls_files(self) -> TlsFiles | None:
        """The files of mutual TLS, or None for plain connections; ConfigError if only some are given."""
        folder, flag = self.folder_of_tls
        if folder and (self.tls_ca or self.tls_cert or self.tls_key):
            raise ConfigError(f"{flag} and --tls flags are given", f"drop {flag}, or the --tls flags")
        return folder or tls_files(self.tls_ca, self.tls_cert, self.tls_key)

    @property
    def folder_of_tls(self) -> tuple[TlsFiles | None, str]:
        """The files of mutual TLS in a folder that FedGSP keeps, if there is one, and the flag that names it."""
        return None, ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsSettings(TlsFlags):
    """The files of mutual TLS, or the permission to do without."""

    insecure: bool = setting(
        False,
        "allow connections without TLS; everybody who can reach the ports may then join, and read and change models",
        may_change=True,
        panel=CONNECTIONS,
    )

    def check_together(self) -> None:
        """Raise ConfigError for settings that do not go together; each of them is already checked on its own."""
        if self.tls_files is not None:
            if self.insecure:
                source = self.folder_of_tls[1] or "the three --tls flags"
                raise ConfigError("--insecure is for connections without TLS", f"drop it, or {source}")
            return
        for name, one in described(type(self)).items():
            value, service = getattr(self, name) or "", one.metadata.get("service")
            if value and (one.metadata.get("address") or (service and value.startswith(service))):
                check_cleartext(flag(name), value.removeprefix(service or ""), self.insecure)


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerSettings(TlsSettings):
    """Settings of connections, which every program has. A process passes them on to the processes that it starts."""

    lost_after: float = setting(
        LOST_AFTER_S,
        "treat a peer as lost after this long without a sign of life: it is dead, frozen or cut off",
        least=LEAST_LOST_AFTER_S,
        most=MOST_LOST_AFTER_S,
        metavar="SECONDS",
        panel=CONNECTIONS,
    )
    hand_over: str = setting(
        HAND_OVERS[0],
        "how models pass between processes of one machine: through a pipe (auto), or always over the network",
        choices=HAND_OVERS,
        panel=CONNECTIONS,
    )
    wire: str = setting(
        WIRES[0],
        "how models travel: coded without loss where a link is slower than the coding (auto), never coded (raw), or "
        "always coded except through a pipe (coded)",
        choices=WIRES,
        may_change=True,
        panel=CONNECTIONS,
    )

    @property
    def for_children(self) -> dict[str, Any]:
        """The values of these settings by name, for the processes that this process starts."""
        values = {name: getattr(self, name) for name in described(PeerSettings)}
        files = self.tls_files
        return {**values, "tls_ca": files.ca, "tls_cert": files.cert, "tls_key": files.key} if files else values
