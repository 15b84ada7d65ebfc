"""The settings of a group manager."""

from dataclasses import dataclass

from fedgsp.settings.connections import PeerSettings
from fedgsp.settings.fields import setting

#: What a manager runs, and what its template imports before.
COMMAND, IMPORTS = ["group_manager"], ["group_manager.server"]
#: Folder in the state of a node that runs managers, for their certificates and keys.
KEYS = "managers"


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagerSettings(PeerSettings):
    """Every setting of a group manager. The top server chooses them; no person writes them."""

    name: str = setting("", "name of this manager in the run's records", required="give --name")
    listen: str = setting(
        "127.0.0.1:0", "where the top server and nodes reach this manager", metavar="HOST:PORT", address=True
    )
    advertise: str | None = setting(
        None,
        "the address that they dial, if it differs from --listen; HOST:0 for the port that is bound",
        metavar="HOST:PORT",
        address=True,
    )
    top_host: str = setting(
        "",
        "host of the top server, for an address such as 0.0.0.0:7000, which names no host; this machine by default",
    )
    run: str = setting("", "id of the run; nodes of other runs are refused", metavar="ID")
