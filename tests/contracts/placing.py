"""Places of the top server."""

from __future__ import annotations

from tests.contracts.declarations import check_declaration
from top_server.placing import PLACES
from top_server.placing.base import Place, Placing, RemoteOptions


async def check_place(name: str) -> None:
    """It is declared as a place, its code is one, and a remote one has the options of all remote places.

    What it does with workers needs a cluster: its own tests play it.
    """
    part = check_declaration(PLACES, name)
    assert isinstance(part, Place)
    assert issubclass(part.load(), Placing)
    assert issubclass(part.options, RemoteOptions) == part.remote, "remote places have options of RemoteOptions"
