"""The settings of the web page of runs."""

from dataclasses import dataclass
from pathlib import Path

from fedgsp.cleartext import leaves_machine
from fedgsp.errors import ConfigError
from fedgsp.settings.connections import CONNECTIONS, TlsFlags
from fedgsp.settings.fields import setting
from fedgsp.settings.identities import check_hosts, files_of, hosts_of
from fedgsp.tls import TlsFiles


@dataclass(frozen=True, slots=True, kw_only=True)
class WebSettings(TlsFlags):
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

    @property
    def hosts(self) -> tuple[str, ...]:
        """The hosts by which browsers reach the page, for its certificate; without brackets and zones."""
        return hosts_of(self.listen, self.host)

    @property
    def folder_of_tls(self) -> tuple[TlsFiles | None, str]:
        """The files of mutual TLS in the federation folder, if there is one, and the flag that names it."""
        return files_of(self.federation, self.hosts)

    def check_together(self) -> None:
        """Raise ConfigError for settings that do not go together."""
        check_hosts(self.federation, self.host)
        check_web("--listen", self.listen, self.tls_files)


def check_web(flag: str, address: str | None, files: TlsFiles | None) -> None:
    """Raise ConfigError for a page that others could read on its way, `--insecure` or not."""
    if address is not None and files is None and leaves_machine(address):
        raise ConfigError(
            f"{flag} {address} is not on this machine's loopback, and the web page has no TLS",
            "give --federation or the three --tls flags; or take 127.0.0.1 and reach it by `ssh -L` from elsewhere",
        )
