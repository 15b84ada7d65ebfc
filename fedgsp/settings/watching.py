"""The settings by which people and other systems watch a run while it goes on."""

from dataclasses import dataclass

from fedgsp.connections.addresses import check_address, split_address
from fedgsp.errors import ConfigError
from fedgsp.security.cleartext import leaves_machine
from fedgsp.settings.fields import setting
from fedgsp.settings.identities import FederationSettings
from fedgsp.settings.web import check_web

WATCHING = "Watching"


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchSettings(FederationSettings):
    """Settings of the web page, of trackers, and of the door for monitoring. None of them affects results."""

    track: tuple[str, ...] = setting(
        (),
        "a tracker that follows the run; NAME=VALUE also gives it its option `to`; repeatable",
        other_names=True,
        may_change=True,
        metavar="NAME[=VALUE]",
        panel=WATCHING,
    )
    track_option: dict[str, str] = setting(
        {},
        "an option of a tracker; repeatable",
        options_of="track",
        may_change=True,
        metavar="NAME.KEY=VALUE",
        panel=WATCHING,
    )
    web: str | None = setting(
        None,
        "show the run on a web page at this address; port 0 takes any free port. Beyond loopback it needs TLS, and"
        " shows itself to holders of a certificate of an operator",
        metavar="HOST:PORT",
        address=True,
        may_change=True,
        panel=WATCHING,
    )
    metrics: str | None = setting(
        None,
        "serve figures of the run for Prometheus at /metrics, and whether it makes progress at /healthz; beyond "
        "loopback only with TLS, to certificates of an operator",
        may_change=True,
        metavar="HOST:PORT",
        panel=WATCHING,
    )
    unhealthy_after: float = setting(
        1800.0,
        "/healthz answers 503 after this long without an event; time in which a run waits for nodes does not count",
        above=0,
        may_change=True,
        metavar="SECONDS",
        panel=WATCHING,
    )

    def check_together(self) -> None:
        """Raise ConfigError for settings that do not go together."""
        check_web("--web", self.web, self.tls_files)
        FederationSettings.check_together(self)
        if self.metrics is not None:
            check_address("--metrics", self.metrics)
            if leaves_machine(self.metrics) and self.tls_files is None:
                raise ConfigError(
                    f"--metrics {self.metrics} is not on this machine's loopback, and there is no TLS",
                    "give 127.0.0.1 and a port, or give --federation or the three --tls flags too",
                )
        taken: dict[tuple[str, int], str] = {}
        for flag, address in (("--listen", self.listen), ("--web", self.web), ("--metrics", self.metrics)):
            host, port = split_address(address) if address else ("", 0)
            if port and (other := taken.setdefault((host, port), flag)) != flag:
                raise ConfigError(f"{other} and {flag} are both {address}", "give one of them another port")
