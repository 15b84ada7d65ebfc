"""Groups at random, whatever the clients hold: what a better grouping is compared with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedgsp import seeds
from top_server.grouping.options import Options
from top_server.grouping.request import GroupingRequest, Plan
from top_server.grouping.sizes import MODES, hand_out, shape_for

if TYPE_CHECKING:
    from collections.abc import Mapping


def read_random(given: Mapping[str, str]) -> str:
    """Its option; ConfigError for what cannot be."""
    return Options("random", given, ("mode",)).choice("mode", MODES)


def random_groups(request: GroupingRequest) -> Plan:
    """Groups of the same sizes as ICG makes, drawn uniformly; option `mode` as in `sizes`."""
    mode = read_random(request.options)
    rng = seeds.stream(request.seed, "random-groups", request.round)
    shape = shape_for(len(request.clients), request.groups, mode)
    order = rng.permutation(len(request.clients))
    groups = order[: shape.clients].reshape(shape.groups, shape.members).tolist()
    if mode == "all":
        hand_out(groups, order[shape.clients :].tolist(), rng)
    return Plan.from_rows(groups, request)
