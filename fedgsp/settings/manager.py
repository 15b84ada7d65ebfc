"""The settings of a group manager. The top server chooses them; no person writes them."""

from __future__ import annotations

from dataclasses import dataclass

from fedgsp.settings.fields import setting
from fedgsp.settings.peers import PeerSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagerSettings(PeerSettings):
    """Every setting of a group manager."""

    name: str = setting("", "name of this manager in the run's records", required="give --name")
    listen: str = setting(
        "127.0.0.1:0", "where the top server and nodes reach this manager", metavar="HOST:PORT", address=True
    )
    run: str = setting("", "id of the run; nodes of other runs are refused", metavar="ID")
