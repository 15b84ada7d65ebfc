"""The empty profile: the grouping knows only the clients' ids and their numbers of samples."""

from __future__ import annotations

from fedgsp.parts import NoOptions
from top_server.evidence import Evidence
from top_server.profiles.base import Profile


class Nothing(Profile[NoOptions]):
    """Asks the clients nothing."""

    async def gather(self, round_number: int) -> Evidence:
        """Evidence with the ids of the present clients, and nothing else."""
        return Evidence(tuple(self.context.membership.clients))
