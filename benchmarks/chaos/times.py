"""How long a fault went unnoticed, and how long it held the run up.

Detection: from the fault to the first event that tells of it: of its victim (`node_left`, `node_joined`,
`manager_lost`, `manager_spawned`) or of the victim's clients (`client_skipped`, `rerouted`). The top server's is told
by the nodes' logs, when they begin to look for it, and by its managers, when the last of them has left. Nothing may
tell of a fault that was soon over, or of a cut between two nodes while neither waits for the other.

Recovery: from the fault (so with the time until it was undone) to the first thing done, after it was noticed, by
anybody who needed the victim: the end of a hop in a group that has clients of a struck node, or else the end of a
round; of any hop or round, if the victim was the top server or a manager. Of a fault that nobody noticed: the next hop
of the victim's clients, or else the end of a round; for the top server or a manager, the next hop or end of a round
once the fault was undone.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from benchmarks.chaos.events import Event, epoch
from benchmarks.chaos.faults import Strike
from benchmarks.chaos.plan import Plan
from benchmarks.chaos.world import TOP_SERVER

_OF_NODES = ("node_left", "node_joined")
_OF_MANAGERS = ("manager_lost", "manager_spawned", "group_failed")
_OF_CLIENTS = ("client_skipped", "rerouted")
LOOKING = "no top server at"
#: Of the times of events.
RESOLUTION_S = 0.001


def detection(plan: Plan, strike: Strike, events: Sequence[Event], lost_top_server: Iterable[float]) -> float | None:
    """Seconds from a fault until somebody told of it; None if nobody did."""
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
    after = [moment - strike.at for moment in told if moment >= strike.at - RESOLUTION_S]
    return max(0.0, min(after)) if after else None


def recovery(plan: Plan, strike: Strike, events: Sequence[Event], detected: float | None) -> float | None:
    """Seconds from a fault until the work that needed its victim went on; None if there was none."""
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


def exposed(strike: Strike, events: Sequence[Event]) -> float:
    """Seconds in which there was something to notice: until the fault was undone, or the last round was over; of a cut
    between two nodes, while one of them waited for the other.
    """
    if strike.fault.victim == "pair":
        return _longest_wait(strike, events)
    over = max((epoch(event) for event in events if event["event"] == "round_finished"), default=strike.at)
    return max(0.0, min(strike.undone or over, over) - strike.at)


def _longest_wait(strike: Strike, events: Sequence[Event]) -> float:
    """Seconds that a hop from one of two nodes to the other had to wait for the link between them, at most."""
    begin, end = strike.at, strike.undone or epoch(events[-1])
    last: dict[tuple[int, int], Event] = {}
    longest = 0.0
    for event in events:
        if event["event"] != "hop_finished":
            continue
        group = event["round"], event["group"]
        before = last.get(group)
        if before is not None and {before["node"], event["node"]} == set(strike.nodes):
            longest = max(longest, min(epoch(event), end) - max(epoch(before), begin))
        last[group] = event
    return longest


def lost_top_server(logs: Iterable[Path]) -> list[float]:
    """When nodes began to look for the top server, by their logs."""
    lines = [line for log in logs for line in log.read_text(errors="replace").splitlines()]
    return [epoch(json.loads(line)) for line in lines if line.startswith("{") and LOOKING in line]


def _clients(plan: Plan, strike: Strike) -> set[int]:
    return {client for name in strike.nodes for client in plan.hosted[int(name[1:])]}
