"""Clients that come after the groups were formed, or are away when they are formed anew."""

from __future__ import annotations

from collections.abc import Iterable

from top_server.grouping import Plan


def with_absent(plan: Plan, before: Plan) -> Plan:
    """The plan, and those whom only the one before names: each with most of its former group, or with its rest."""
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
    return Plan(tuple(tuple(sorted(group)) for group in groups), plan.idle)


def with_latecomers(plan: Plan, clients: Iterable[int]) -> tuple[Plan, dict[int, int]]:
    """The plan with those it does not name, each in the smallest group, of equals the first; and who went where."""
    groups = [list(group) for group in plan.groups]
    named = {client for group in groups for client in group} | set(plan.idle)
    placed = {}
    for client in sorted(set(clients) - named):
        index = min(range(len(groups)), key=lambda index: len(groups[index]))
        groups[index].append(client)
        placed[client] = index
    return Plan(tuple(map(tuple, groups)), plan.idle), placed
