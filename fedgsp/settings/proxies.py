"""The settings of an HTTP proxy by which a node reaches other machines."""

from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from fedgsp.connections.addresses import split_address
from fedgsp.errors import ConfigError
from fedgsp.settings.connections import CONNECTIONS, PeerSettings
from fedgsp.settings.fields import setting
from fedgsp.settings.identities import IdentitySettings

#: The environment variable that may hold the password, in place of a file.
PASSWORD_VARIABLE = "FEDGSP_PROXY_PASSWORD"
_FORM = "write http://HOST:PORT or http://USER@HOST:PORT"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxySettings(IdentitySettings):
    """Settings of a node that may be behind a proxy."""

    proxy: str | None = setting(
        None,
        "an HTTP proxy that opens every connection of this node (CONNECT); HTTP_PROXY and the like are not read",
        metavar="http://[USER@]HOST:PORT",
        panel=CONNECTIONS,
    )
    proxy_password: Path | None = setting(
        None,
        f"file with the password of USER of --proxy; the environment variable {PASSWORD_VARIABLE} may have it too",
        metavar="FILE",
        panel=CONNECTIONS,
    )

    def check_together(self) -> None:
        """Raise ConfigError for settings that do not go together."""
        PeerSettings.check_together(self)
        if self.proxy is not None:
            proxy_parts(self.proxy)


def proxy_parts(url: str) -> tuple[str, str]:
    """Host and port of a proxy, and its user, from the text of `--proxy`; raises ConfigError."""
    try:
        found = urlsplit(url)
        password, port = found.password, found.port
    except ValueError:
        raise ConfigError("--proxy is not the address of a proxy", _FORM) from None
    if password is not None:
        raise ConfigError(
            "--proxy has a password, which others on this machine could read in the list of processes",
            f"write http://USER@HOST:PORT, and give the password in a file (--proxy-password FILE) or in"
            f" {PASSWORD_VARIABLE}",
        )
    if found.scheme != "http":
        raise ConfigError(
            f"--proxy begins with {found.scheme!r}" if found.scheme else "--proxy has no http://",
            f"{_FORM}: a node speaks HTTP with the proxy, also for connections with TLS, which the proxy cannot read",
        )
    if found.path not in ("", "/") or found.query or found.fragment or port is None:
        raise ConfigError("--proxy is not the address of a proxy", _FORM)
    address = found.netloc.rpartition("@")[2]
    split_address(address)
    return address, unquote(found.username or "")
