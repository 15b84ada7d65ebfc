"""The tasks of a round: what each group that trains is asked."""

import numpy as np

from fedgsp.messages import Results
from top_server.evidence import Evidence
from top_server.groups.task import GroupTask
from top_server.merging import Merging
from top_server.merging.weighing import WEIGHINGS
from top_server.models import Holdings
from top_server.schemes import Scheme
from top_server.teams import Teams


def round_tasks(
    scheme: Scheme, merging: Merging, holdings: Holdings, teams: Teams, evidence: Evidence
) -> list[GroupTask]:
    """A task for each group that trains; clients that train alone share one, if their models need no manager each."""
    there = holdings.samples
    known = {client for client in evidence.clients if client in there}
    tasks: list[GroupTask] = []
    alone: dict[int, int] = {}  # clients that train alone -> number of their group
    for index, group in enumerate(teams.sampled):
        if len(group) == 1 and merging.alone is not None:
            alone[group[0]] = index
            continue
        members = [client for client in group if client in known]
        sizes = np.array([there[client] for client in members])
        weights = WEIGHINGS[scheme.weighing](sizes, evidence.columns(members), scheme.given("weighing")).tolist()
        tasks.append(
            GroupTask(
                index,
                scheme.program,
                group,
                merging.start(group, holdings),
                weights=dict(zip(members, weights, strict=True)),
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
                own_starts={client: merging.start((client,), holdings)[0][0] for client in alone if client in there},
                results=merging.alone,
                reveal=evidence.reveal,
                groups_of_one=alone,
            )
        )
    return tasks
