"""Everybody alone."""

from __future__ import annotations

from top_server.grouping.options import Options
from top_server.grouping.request import GroupingRequest, Plan


def singletons(request: GroupingRequest) -> Plan:
    """One group per client, whatever number of groups was asked for; no options."""
    Options("singletons", request.options, ())
    return Plan(groups=tuple((client,) for client in request.clients), idle=())
