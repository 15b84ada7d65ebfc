"""Clients that come after a static scheme formed its groups."""

from __future__ import annotations

from collections.abc import Iterable

from top_server.grouping import Plan


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
