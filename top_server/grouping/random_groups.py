"""Random groups, which ignore the clients' data: the baseline for other groupings."""

from __future__ import annotations

from dataclasses import dataclass

from fedgsp import seeds
from fedgsp.settings.fields import setting
from top_server.grouping.request import GroupingRequest, Plan
from top_server.grouping.sizes import MODE_HELP, MODES, hand_out, shape_for


@dataclass(frozen=True, slots=True)
class RandomOptions:
    """Options of grouping `random`."""

    mode: str = setting("exact", MODE_HELP, choices=MODES)


def random_groups(request: GroupingRequest, options: RandomOptions) -> Plan:
    """Random groups (uniform) with the same sizes as the groups of ICG."""
    rng = seeds.stream(request.seed, "random-groups", request.round)
    shape = shape_for(len(request.clients), request.groups, options.mode)
    order = rng.permutation(len(request.clients))
    groups = order[: shape.clients].reshape(shape.groups, shape.members).tolist()
    if options.mode == "all":
        hand_out(groups, order[shape.clients :].tolist(), rng)
    return Plan.from_rows(groups, request)
