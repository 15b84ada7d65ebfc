"""The tasks of the groups of a round, by pure functions.

A task holds for all clients of its group, present or not: a node that is away now may be back when the order is given.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from fedgsp.messages import Results
from top_server.evidence import Evidence
from top_server.groups.task import GroupTask
from top_server.merging.base import Merging, Starts
from top_server.merging.weighing import WEIGHINGS
from top_server.models import Held, Holdings
from top_server.schemes import Scheme
from top_server.teams import Teams


def count_tasks(merging: Merging, teams: Teams) -> int:
    """How many tasks `round_tasks` makes."""
    alone = _alone(merging, teams)
    return len(teams.sampled) - len(alone) + bool(alone)


def round_tasks(
    scheme: Scheme, merging: Merging, holdings: Holdings, teams: Teams, evidence: Evidence
) -> list[GroupTask]:
    """A task for each group that trains; clients that train alone share one, if their models need no manager each."""
    alone = _alone(merging, teams)
    tasks: list[GroupTask] = []
    for index, group in enumerate(teams.sampled):
        if group[0] in alone:
            continue
        sizes = _sizes(scheme, holdings, evidence, group)
        members = list(sizes)
        weights = WEIGHINGS[scheme.weighing](
            np.array(list(sizes.values()), np.int64), evidence.columns(members), scheme.given("weighing")
        )
        tasks.append(
            GroupTask(
                index,
                scheme.program,
                group,
                _start(merging, holdings, group),
                weights=dict(zip(members, weights.tolist(), strict=True)),
                samples=sizes,
                results=Results.RETAINED if evidence.retain else Results.UNSPECIFIED,
                reveal=evidence.reveal,
            )
        )
    if alone:
        assert merging.alone is not None
        tasks.append(
            GroupTask(
                len(teams.sampled),
                "alone",
                tuple(alone),
                own_starts=_own_starts(merging, holdings, alone),
                results=merging.alone,
                reveal=evidence.reveal,
                groups_of_one=alone,
            )
        )
    return tasks


def _alone(merging: Merging, teams: Teams) -> dict[int, int]:
    """Clients that train alone -> number of their group."""
    if merging.alone is None:
        return {}
    return {group[0]: index for index, group in enumerate(teams.sampled) if len(group) == 1}


def _own_starts(merging: Merging, holdings: Holdings, clients: Iterable[int]) -> dict[int, Held]:
    """Client -> the model that it starts from; a client without one is left out."""
    holdings = holdings.with_everybody(clients)
    starts = {client: merging.start((client,), holdings) for client in holdings.samples}
    return {client: start[0][0] for client, start in starts.items() if start}


def _sizes(scheme: Scheme, holdings: Holdings, evidence: Evidence, group: Sequence[int]) -> dict[int, int]:
    """The training samples of each client of a group that can be weighed.

    A weighing that reads what clients revealed would take a client without evidence for one that does not count.
    """
    told = holdings.with_everybody(group).samples
    without = WEIGHINGS[scheme.weighing].everybody or not evidence.figures
    revealed = set(evidence.clients)
    return {client: told[client] for client in group if client in told and (without or client in revealed)}


def _start(merging: Merging, holdings: Holdings, group: Sequence[int]) -> Starts:
    """The models that a group starts from: those of the members that are there, or of all if none is there."""
    return merging.start(group, holdings) or merging.start(group, holdings.with_everybody(group))
