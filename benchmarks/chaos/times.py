"""Measures when a fault was noticed, and when the interrupted work continued.

Detection is the time from the fault to the first event that shows it: an event of the victim (`node_left`,
`node_joined`, `manager_lost`, `manager_spawned`) or of its clients (`client_skipped`, `rerouted`). Of a cut between
two nodes, it begins when one of them waits for the other. A fault of the top server is noticed when nodes log that
they look for it, or when its last manager has ended. Short faults may have no event, and neither may a cut between two
nodes while none waits for the other. A node that is away already when a fault hits it, because of the fault before or
an expired certificate, cannot be missed once more: then nothing is measured. A top server that is killed or frozen
cannot notice other faults, so that time does not count.

Recovery is the time from the fault to the first work afterwards that needed the victim. It includes the duration of
the fault, and it ends after detection. For a node, this work is the end of a hop in a group with its clients, or else
the end of a round; for the top server or a manager, the end of any hop or round. If the fault was not noticed,
recovery ends with the next hop of the node's clients, or else the end of a round. For an unnoticed fault of the top
server or a manager, it ends with the next hop or round after the fault.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from benchmarks.chaos.events import Event, epoch, presence
from benchmarks.chaos.faults import Strike
from benchmarks.chaos.plan import Plan
from benchmarks.chaos.world import TOP_SERVER

_OF_NODES = ("node_left", "node_joined")
_OF_MANAGERS = ("manager_lost", "manager_spawned", "group_failed")
_OF_CLIENTS = ("client_skipped", "rerouted")
LOOKING = "no top server at"
#: Precision of the times of events, in seconds.
RESOLUTION_S = 0.001
#: A time in a run: its begin and its end.
Span = tuple[float, float]


def detection(
    plan: Plan,
    strike: Strike,
    events: Sequence[Event],
    lost_top_server: Iterable[float],
    until: float = math.inf,
    unwatched: Sequence[Span] = (),
) -> float | None:
    """Seconds from a fault until it was noticed; None if it was not, or only after the moment `until`.

    What comes in a span of `unwatched` shows nothing, and after a span the seconds begin at its end.
    """
    if _was_away(strike, events):
        return None
    clients = _clients(plan, strike)
    told = [
        epoch(event)
        for event in events
        if (event["event"] in _OF_NODES and event["node"] in strike.nodes and event.get("reason") != "dismissed")
        or (event["event"] in _OF_CLIENTS and event["client"] in clients)
        or (event["event"] in _OF_MANAGERS and strike.fault.victim == "manager")
        or (event["event"] == "node_left" and TOP_SERVER in strike.victims and event["reason"] != "dismissed")
    ]
    if TOP_SERVER in strike.victims:
        told += lost_top_server
    told = [moment for moment in told if not any(begin <= moment < end for begin, end in unwatched)]
    noticed = min((moment for moment in told if strike.at - RESOLUTION_S <= moment < until), default=None)
    if noticed is None:
        return None
    # Nobody can notice a cut between two nodes before one of them waits for the other.
    waited = [begin for begin, end in _waits(strike, events) if begin <= noticed <= end]
    watched_again = [end for _, end in unwatched if end <= noticed]
    return max(0.0, noticed - max([strike.at, *waited, *watched_again]))


def next_fault(strike: Strike, strikes: Iterable[Strike]) -> float:
    """The moment of the next fault, if this one was over by then and left nothing behind; else infinity.

    Later events show the next fault. A killed process may be missed later than it was started again. A cut between two
    nodes counts as over when a fault hits one of them as a whole, or the top server: from then on all miss that node,
    or the top server misses all nodes.
    """
    if strike.fault.kind == "kill":
        return math.inf
    over = strike.undone or math.inf
    return min((other.at for other in strikes if over <= other.at or _covers(other, strike)), default=math.inf)


def _covers(other: Strike, strike: Strike) -> bool:
    """Whether a fault that came later than a cut between two nodes hits one of them as a whole, or the top server."""
    hit = TOP_SERVER in other.victims or bool(set(other.nodes) & set(strike.nodes))
    return strike.fault.victim == "pair" and other.at > strike.at and other.fault.victim != "pair" and hit


def unwatched(strike: Strike, strikes: Iterable[Strike], events: Sequence[Event]) -> list[Span]:
    """The times in which the top server was killed or frozen, and could notice no fault.

    A frozen top server is back when it goes on. One that was killed is back when it has resumed the run, which begins
    when the nodes are back.
    """
    if TOP_SERVER in strike.victims:
        return []
    resumed = [epoch(event) for event in events if event["event"] == "run_resumed"]
    spans = []
    for other in strikes:
        if TOP_SERVER in other.victims and other.fault.kind in ("kill", "stop"):
            back = [other.undone] if other.fault.kind == "stop" else resumed
            spans.append((other.at, min((at for at in back if at is not None and at > other.at), default=math.inf)))
    return spans


def recovery(plan: Plan, strike: Strike, events: Sequence[Event], detected: float | None) -> float | None:
    """Seconds from a fault until the work that needed its victim continued; None if there was none."""
    clients = _clients(plan, strike)
    anybody = not strike.nodes or TOP_SERVER in strike.victims
    begin = strike.at + (detected or 0.0)
    if detected is None and anybody:
        begin = strike.undone or strike.at
    teams: Sequence[Sequence[int]] = []
    for event in events:
        if event["event"] == "round_started":
            teams = event["teams"]
        if epoch(event) <= begin:
            continue
        if event["event"] == "round_finished":
            return epoch(event) - strike.at
        if event["event"] == "hop_finished":
            needed = {event["client"]} if detected is None else set(teams[event["group"]])
            if anybody or needed & clients:
                return epoch(event) - strike.at
    return None


def exposed(strike: Strike, events: Sequence[Event], until: float = math.inf, unwatched: Sequence[Span] = ()) -> float:
    """The longest time, in seconds, in which the fault could be noticed without a pause.

    It ends when the fault ended, after the last round, or at the moment `until`; spans of `unwatched` interrupt it.
    For a cut between two nodes, one of them must wait for the other. A full disk is noticed when something is written,
    which need not be soon.
    """
    if strike.fault.kind == "fill" or _was_away(strike, events):
        return 0.0
    if strike.fault.victim == "pair":
        over = min(strike.undone or epoch(events[-1]), until)
        spans = [(max(begin, strike.at), min(end, over)) for begin, end in _waits(strike, events)]
    else:
        over = max((epoch(event) for event in events if event["event"] == "round_finished"), default=strike.at)
        spans = [(strike.at, min(strike.undone or over, over, until))]
    return max((end - begin for span in spans for begin, end in _without(span, unwatched)), default=0.0)


def _without(span: Span, others: Iterable[Span]) -> Iterator[Span]:
    """The parts of a span that no other span covers."""
    begin, end = span
    for start, stop in sorted(others):
        if start > begin:
            yield begin, min(start, end)
        begin = max(begin, min(stop, end))
    yield begin, max(begin, end)


def _was_away(strike: Strike, events: Sequence[Event]) -> bool:
    """Whether one of the nodes had left, and had not joined again, when the fault began."""
    there = presence(event for event in events if epoch(event) < strike.at)
    return TOP_SERVER not in strike.victims and not all(there.get(node, True) for node in strike.nodes)


def _waits(strike: Strike, events: Sequence[Event]) -> Iterator[tuple[float, float]]:
    """Begin and end of each time for which one of two nodes waited in a chain for the other and trained."""
    if strike.fault.victim != "pair":
        return
    last: dict[tuple[int, int], Event] = {}
    for event in events:
        if event["event"] != "hop_finished":
            continue
        group = event["round"], event["group"]
        before = last.get(group)
        if before is not None and {before["node"], event["node"]} == set(strike.nodes):
            yield epoch(before), epoch(event)
        last[group] = event


def lost_top_server(logs: Iterable[Path]) -> list[float]:
    """Times at which nodes began to look for the top server, from their logs."""
    lines = [line for log in logs for line in log.read_text(errors="replace").splitlines()]
    return [epoch(json.loads(line)) for line in lines if line.startswith("{") and LOOKING in line]


def _clients(plan: Plan, strike: Strike) -> set[int]:
    return {client for name in strike.nodes for client in plan.hosted[int(name[1:])]}
