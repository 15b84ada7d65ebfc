"""The settings of the web page of runs."""

from dataclasses import dataclass
from pathlib import Path

from fedgsp.errors import ConfigError
from fedgsp.security.cleartext import leaves_machine
from fedgsp.security.tls import TlsFiles
from fedgsp.settings.connections import CONNECTIONS, TlsFlags
from fedgsp.settings.fields import setting
from fedgsp.settings.identities import Federated


@dataclass(frozen=True, slots=True, kw_only=True)
class WebSettings(Federated, TlsFlags):
    """Every setting of `top-server web`."""

    listen: str = setting(
        "127.0.0.1:7080",
        "where browsers reach the page; port 0 takes any free port. Beyond loopback it needs TLS, and shows itself to"
        " holders of a certificate of an operator",
        metavar="HOST:PORT",
        address=True,
        panel=CONNECTIONS,
    )
    federation: Path | None = setting(
        None,
        "folder made by `top-server invite`, from which the page gets its certificate, in place of the three --tls"
        " flags",
        metavar="DIRECTORY",
        panel=CONNECTIONS,
    )
    host: tuple[str, ...] = setting(
        (),
        "with --federation: a host name or address by which browsers reach the page; repeatable",
        metavar="HOST",
        other_names=True,
        panel=CONNECTIONS,
    )

    def check_together(self) -> None:
        """Raise ConfigError for settings that do not go together."""
        self.check_hosts()
        check_web("--listen", self.listen, self.tls_files)


def check_web(flag: str, address: str | None, files: TlsFiles | None) -> None:
    """Raise ConfigError for a page that others could read on its way, `--insecure` or not."""
    if address is not None and files is None and leaves_machine(address):
        raise ConfigError(
            f"{flag} {address} is not on this machine's loopback, and the web page has no TLS",
            "give --federation or the three --tls flags; or take 127.0.0.1 and reach it by `ssh -L` from elsewhere",
        )
