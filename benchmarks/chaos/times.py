"""Measures when a fault was noticed, and when the interrupted work continued.

Detection is the time from the fault to the first event that shows it: an event of the victim (`node_left`,
`node_joined`, `manager_lost`, `manager_spawned`) or of its clients (`client_skipped`, `rerouted`). Of a cut between
two nodes, it begins when one of them waits for the other. A fault of the top server is noticed when nodes log that
they look for it, or when its last manager has ended. Short faults may have no event, and neither may a cut between two
nodes while none waits for the other. A node that is away already when a fault hits it, because of the fault before or
an expired certificate, cannot be missed once more: then nothing is measured. Nor is anything measured after the top
server was killed or frozen, because it is the one that notices.

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


def detection(
    plan: Plan, strike: Strike, events: Sequence[Event], lost_top_server: Iterable[float], until: float = math.inf
) -> float | None:
    """Seconds from a fault until it was noticed; None if it was not, or only after the moment `until`."""
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
    noticed = min((moment for moment in told if strike.at - RESOLUTION_S <= moment < until), default=None)
    if noticed is None:
        return None
    # Nobody can notice a cut between two nodes before one of them waits for the other.
    waited = [begin for begin, end in _waits(strike, events) if begin <= noticed <= end]
    return max(0.0, noticed - max([strike.at, *waited]))


def next_fault(strike: Strike, strikes: Iterable[Strike]) -> float:
    """The moment of the next fault that makes this one unknowable; infinity if there is none.

    After a fault that was over, later events show the next fault; but a killed process may be missed later than it was
    started again. A cut between two nodes counts as over when a fault hits one of them as a whole: from then on that
    node is missed by all. A top server that is killed or frozen cannot notice what happened before.
    """
    over = math.inf if strike.fault.kind == "kill" else strike.undone or math.inf
    hiding = (other.at for other in strikes if over <= other.at or _covers(other, strike) or _blinds(other, strike))
    return min(hiding, default=math.inf)


def _covers(other: Strike, strike: Strike) -> bool:
    """Whether a fault that came later hits a whole node of a cut between two."""
    hit = other.at > strike.at and other.fault.victim != "pair" and bool(set(other.nodes) & set(strike.nodes))
    return strike.fault.victim == "pair" and hit


def _blinds(other: Strike, strike: Strike) -> bool:
    """Whether a fault that came later keeps the top server from noticing, and from being told."""
    down = other.fault.kind in ("kill", "stop") and TOP_SERVER in other.victims
    return other.at > strike.at and down and TOP_SERVER not in strike.victims


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


def exposed(strike: Strike, events: Sequence[Event], until: float = math.inf) -> float:
    """Seconds in which the fault could be noticed: until it ended, the last round ended, or the moment `until`.

    For a cut between two nodes, it is the time for which one of them waited for the other. A full disk is noticed
    when something is written, which need not be soon.
    """
    if strike.fault.kind == "fill" or _was_away(strike, events):
        return 0.0
    if strike.fault.victim == "pair":
        return _longest_wait(strike, events, until)
    over = max((epoch(event) for event in events if event["event"] == "round_finished"), default=strike.at)
    return max(0.0, min(strike.undone or over, over, until) - strike.at)


def _was_away(strike: Strike, events: Sequence[Event]) -> bool:
    """Whether one of the nodes had left, and had not joined again, when the fault began."""
    there = presence(event for event in events if epoch(event) < strike.at)
    return TOP_SERVER not in strike.victims and not all(there.get(node, True) for node in strike.nodes)


def _longest_wait(strike: Strike, events: Sequence[Event], until: float) -> float:
    """The longest time, in seconds, for which a hop between two nodes waited for the link between them."""
    over = min(strike.undone or epoch(events[-1]), until)
    waits = (min(end, over) - max(begin, strike.at) for begin, end in _waits(strike, events))
    return max(0.0, max(waits, default=0.0))


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
