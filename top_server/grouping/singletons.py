"""Everybody alone."""

from __future__ import annotations

from fedgsp.parts import NoOptions
from top_server.grouping.request import GroupingRequest, Plan


def singletons(request: GroupingRequest, options: NoOptions) -> Plan:
    """One group per client, whatever number of groups was asked for."""
    return Plan(groups=tuple((client,) for client in request.clients), idle=())
