"""Adds clients to a plan: clients that joined after the groups were formed, and clients whose nodes are away."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from top_server.grouping import Plan


def with_absent(plan: Plan, before: Plan) -> Plan:
    """The plan with the clients that only the earlier plan `before` names, because their nodes are away.

    Each of them goes where most members of its former group are now. If none of these is in a group any more, the
    absent clients of that former group are a group again.
    """
    groups = [list(group) for group in plan.groups]
    here = {client for group in groups for client in group} | set(plan.idle)
    for former in before.groups:
        away = [client for client in former if client not in here]
        if not away:
            continue
        common = [len(set(former).intersection(group)) for group in groups]
        if max(common, default=0):
            groups[common.index(max(common))] += away
        else:
            groups.append(away)
    return replace(plan, groups=tuple(tuple(sorted(group)) for group in groups))


def with_latecomers(plan: Plan, clients: Iterable[int]) -> tuple[Plan, dict[int, int]]:
    """The plan with those of `clients` that it does not name, and client -> index of the group that it was put into.

    Each client goes into the smallest group; in a tie, into the first one.
    """
    groups = [list(group) for group in plan.groups]
    named = {client for group in groups for client in group} | set(plan.idle)
    placed = {}
    for client in sorted(set(clients) - named):
        index = min(range(len(groups)), key=lambda index: len(groups[index]))
        groups[index].append(client)
        placed[client] = index
    return Plan(tuple(map(tuple, groups)), plan.idle), placed
