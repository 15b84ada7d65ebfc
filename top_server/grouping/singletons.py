"""Everybody alone."""

from __future__ import annotations

from top_server.grouping.options import no_options
from top_server.grouping.request import GroupingRequest, Plan


def singletons(request: GroupingRequest) -> Plan:
    """One group per client, whatever number of groups was asked for; no options."""
    no_options("singletons", request.options)
    return Plan(groups=tuple((client,) for client in request.clients), idle=())
