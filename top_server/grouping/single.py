"""Everybody in one group."""

from __future__ import annotations

from top_server.grouping.options import no_options
from top_server.grouping.request import GroupingRequest, Plan


def single_group(request: GroupingRequest) -> Plan:
    """One group of all clients, whatever number of groups was asked for; no options."""
    no_options("single", request.options)
    return Plan(groups=(request.clients,), idle=())
