"""Which requests a manager cannot run, said before anything is begun."""

from __future__ import annotations

import math
from collections.abc import Callable

from fedgsp.aggregations import AGGREGATIONS
from fedgsp.errors import UserError
from fedgsp.messages import MOST_CLIENT, MOST_SAMPLES, ModelRef, Part, RunGroupRequest
from fedgsp.programs import PROGRAMS

#: Longest wait for a member that makes no progress: a year.
MOST_STALL_S = 366 * 24 * 3600.0
#: Pairs of clients that are told apart at once.
MOST_PAIRS = 10_000_000
#: Managers that may have been lost with a group: what they ordered is numbered, too.
MOST_LOST = (1 << 16) - 1

#: Programs whose members start from a model, and those that need training settings.
_WITH_START = ("relay", "parallel", "alone", "compare", "distance", "evaluate", "evaluate-training")
_WITH_TRAINING = ("relay", "parallel", "alone", "initialise")
_FOR_OWN_MODELS = ("collect", "forget", "compare", "distance")


def refusal(request: RunGroupRequest) -> str:
    """What is wrong with a request of a known program; empty if it can be run."""
    try:
        return next((why for check in _CHECKS if (why := check(request))), "")
    except UserError as error:  # an unknown part, or a wrong option of one
        return str(error)


def _times(request: RunGroupRequest) -> str:
    if not 0 < request.stall_timeout_s <= MOST_STALL_S:  # nor NaN
        return f"members cannot stall for {request.stall_timeout_s} s"
    return ""


def _training(request: RunGroupRequest) -> str:
    if request.program in _WITH_TRAINING and request.training is None:
        return f"program {request.program} needs training settings"
    return ""


def _start(request: RunGroupRequest) -> str:
    if request.parts and not _named(request.start):
        return "the mean of the parts has no name"
    if request.program not in _WITH_START or _named(request.start):
        return ""
    compared = request.program == "parallel" and AGGREGATIONS[request.aggregation or "mean"].needs_start
    of_members = request.program not in _FOR_OWN_MODELS and not compared
    if of_members and all(member.start is not None for member in request.members):
        return ""
    return f"program {request.program} needs a start"


def _parts(request: RunGroupRequest) -> str:
    starts = [member.start for member in request.members if member.start is not None]
    if not all(_named(part.ref) for part in (*request.parts, *starts)):
        return "a part has no name"
    if request.start is not None and any(_id(part) == request.start.id for part in request.parts):
        return f"model {request.start.id!r} cannot be a part of itself"
    if request.program == "collect" and len(starts) < len(request.members):
        return "a member has no model to collect"
    return ""


def _members(request: RunGroupRequest) -> str:
    stranger = next((member.client for member in request.members if member.client > MOST_CLIENT), None)
    if stranger is not None:
        return f"no client has the id {stranger}"
    if len({member.client for member in request.members}) < len(request.members):
        return "a client is a member twice"
    count = len(request.members)
    if request.program == "discriminate" and count * (count - 1) // 2 > MOST_PAIRS:
        return f"{count} clients are too many to tell apart in pairs"
    return ""


def _finished(request: RunGroupRequest) -> str:
    if request.finished and request.program != "relay":
        return f"program {request.program} has no hops"
    if not all(hop.member is not None and _named(hop.model) for hop in request.finished):
        return "a finished hop has no member or no model"
    clients = [hop.member.client for hop in request.finished if hop.member is not None]
    if len(set(clients)) < len(clients) or max(clients, default=0) > MOST_CLIENT:
        return "a client is in the finished hops twice, or has no possible id"
    if len({hop.model.id for hop in request.finished if hop.model is not None}) < len(request.finished):
        return "a model is in the finished hops twice"
    if any(hop.member.samples > MOST_SAMPLES for hop in request.finished if hop.member is not None):
        return "a finished hop has more samples than can be"
    if request.attempt > MOST_LOST:
        return f"no group has lost {request.attempt} managers"
    if request.planned and not {member.client for member in request.members}.issubset(request.planned):
        return "a member is not planned"
    if len(set(request.planned)) < len(request.planned):
        return "a client is planned twice"
    if not 0 <= request.most_update_ratio < math.inf:
        return f"updates cannot be {request.most_update_ratio} times as long as others"
    return ""


def _options(request: RunGroupRequest) -> str:
    """What is wrong with the options of the program and of the aggregation, which travel as text."""
    program, aggregation = PROGRAMS[request.program], AGGREGATIONS[request.aggregation or "mean"]
    program.read(request.program_options)
    aggregation.read(request.aggregation_options)
    return ""


_CHECKS: tuple[Callable[[RunGroupRequest], str], ...] = (
    _options,
    _times,
    _training,
    _start,
    _parts,
    _members,
    _finished,
)


def _named(ref: ModelRef | None) -> bool:
    return ref is not None and bool(ref.id)


def _id(part: Part) -> str:
    return part.ref.id if part.ref is not None else ""
