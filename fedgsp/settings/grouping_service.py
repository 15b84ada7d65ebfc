"""The settings of a grouping service."""

from __future__ import annotations

from dataclasses import dataclass

from fedgsp.settings.fields import setting
from fedgsp.settings.peers import TlsSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupingServiceSettings(TlsSettings):
    """Every setting of `top-server grouping-service`."""

    listen: str = setting(
        "127.0.0.1:7300", "where top servers ask; port 0 takes any free port", metavar="HOST:PORT", address=True
    )
