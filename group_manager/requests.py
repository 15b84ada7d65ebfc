"""Which requests a manager cannot run; found before anything is begun."""

import math
from collections.abc import Collection

from fedgsp.aggregations import AGGREGATIONS
from fedgsp.errors import UserError
from fedgsp.messages import MOST_CLIENT, MOST_SAMPLES, RunGroupRequest
from fedgsp.programs import PROGRAMS

#: Longest time, in seconds, that a member may make no progress: a year.
MOST_STALL_S = 366 * 24 * 3600.0
#: Pairs of clients that one program can compare.
MOST_PAIRS = 10_000_000
#: Managers that a group may have lost before: their attempts are numbered, too.
MOST_LOST = (1 << 16) - 1


def refusal(request: RunGroupRequest) -> str:
    """Why a request cannot be run; empty if it can be run."""
    try:
        name, program = request.program, PROGRAMS[request.program]
        aggregation = AGGREGATIONS[request.aggregation or "mean"]
        program.read(request.program_options)
        aggregation.read(request.aggregation_options)
    except UserError as error:  # an unknown part, or a wrong option
        return str(error)
    clients, count = [member.client for member in request.members], len(request.members)
    own = [member.start for member in request.members if member.start is not None]
    start = request.start.id if request.start is not None else ""
    parts = [part.ref.id if part.ref is not None else "" for part in (*request.parts, *own)]
    only_own = program.takes_own_starts and not (program.aggregates and aggregation.needs_start)
    hops = [hop.member for hop in request.finished if hop.member is not None]
    made = [hop.model.id for hop in request.finished if hop.model is not None and hop.model.id]
    trained = [member.client for member in hops]
    stranger = next((client for client in clients if client > MOST_CLIENT), None)
    stall_s, ratio = request.stall_timeout_s, request.most_update_ratio
    refusals = (
        (not 0 < stall_s <= MOST_STALL_S, f"members cannot stall for {stall_s} s"),  # nor for NaN
        (program.needs_training and request.training is None, f"program {name} needs training settings"),
        (bool(request.parts) and not start, "the mean of the parts has no name"),
        (program.needs_start and not start and not (only_own and len(own) == count), f"program {name} needs a start"),
        ("" in parts, "a part has no name"),
        (start in parts[: len(request.parts)], f"model {start!r} cannot be a part of itself"),
        (program.needs_own_models and len(own) < count, f"a member has no model to {name}"),
        (stranger is not None, f"no client has the id {stranger}"),
        (_repeats(clients), "a client is a member twice"),
        (program.pairs and count * (count - 1) // 2 > MOST_PAIRS, f"{count} clients are too many to compare in pairs"),
        (bool(request.finished) and not program.chained, f"program {name} has no hops"),
        (not len(hops) == len(made) == len(request.finished), "a finished hop has no member or no model"),
        (
            _repeats(trained) or max(trained, default=0) > MOST_CLIENT,
            "a client is in the finished hops twice, or has no possible id",
        ),
        (_repeats(made), "a model is in the finished hops twice"),
        (any(member.samples > MOST_SAMPLES for member in hops), "a finished hop has more samples than can be"),
        (request.attempt > MOST_LOST, f"no group has lost {request.attempt} managers"),
        (bool(request.planned) and not set(clients).issubset(request.planned), "a member is not planned"),
        (_repeats(request.planned), "a client is planned twice"),
        (not 0 <= ratio < math.inf, f"updates cannot be {ratio} times as long as others"),
    )
    return next((why for refused, why in refusals if refused), "")


def _repeats(ids: Collection[int] | Collection[str]) -> bool:
    return len(set(ids)) < len(ids)
