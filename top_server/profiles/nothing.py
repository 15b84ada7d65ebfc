"""No profile: grouping knows ids and sizes only."""

from __future__ import annotations

from fedgsp.parts import NoOptions
from top_server.evidence import Evidence
from top_server.profiles.base import Profile


class Nothing(Profile[NoOptions]):
    """Asks nobody anything."""

    async def gather(self, round_number: int) -> Evidence:
        """The clients that are there."""
        return Evidence(tuple(self.context.membership.clients))
