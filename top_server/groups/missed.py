"""Which clients missed a round, from what its groups have done."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from fedgsp.messages import Failure, FailureCode
from top_server.absences import AWAY, GROUP_FAILED, LEFT_OUT, Missed
from top_server.evidence import Evidence
from top_server.grouping import Plan
from top_server.groups.task import GroupOutcome
from top_server.nodes.departures import Departure

#: Nodes that are away, and for how many seconds.
Away = list[tuple[Departure, float]]


def without(away: Away, clients: Collection[int]) -> Away:
    """The nodes that are away without these of their clients; a node that has no other clients is left out."""
    left = [(replace(gone, clients=gone.clients.difference(clients)), seconds) for gone, seconds in away]
    return [(gone, seconds) for gone, seconds in left if gone.clients]


def not_placed(present: Collection[int], evidence: Evidence, plan: Plan) -> set[int]:
    """Clients that are there, and that no group could get: they gave no evidence, and no group has them from before.

    A client with evidence that is in no group was only not drawn.
    """
    return set(present) - (set(evidence.clients) - evidence.away.keys()) - plan.clients


def missed_in(
    outcomes: Sequence[GroupOutcome], away: Away, left_out: Collection[int], silent: Mapping[int, Failure]
) -> dict[int, Missed]:
    """Client -> why it missed the round.

    `away` are the nodes that were away when the round began; some of their clients may have come back in time.
    `left_out` are clients whose models had been refused too often before. In the round in which this happens to a
    client, its own failure is the reason. `silent` are clients that gave no evidence, with the reason.
    """
    away = without(away, set[int]().union(*(outcome.took_part for outcome in outcomes)))
    found = {client: Missed(why.code.name, str(why)) for client, why in silent.items()}
    for gone, seconds in away:
        found |= dict.fromkeys(gone.clients, Missed(AWAY, f"node {gone.node} was away: {gone.reason}", seconds))
    for outcome in outcomes:
        if isinstance(outcome.result, Failure):
            found |= dict.fromkeys(outcome.missed, Missed(GROUP_FAILED, f"its group failed: {outcome.result}"))
        for skipped in outcome.skipped:
            code = skipped.failure.code if skipped.failure is not None else FailureCode.UNSPECIFIED
            found[skipped.client] = Missed(code.name, str(skipped.failure))
    return found | dict.fromkeys(left_out, Missed(LEFT_OUT, "its models were refused"))
