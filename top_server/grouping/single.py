"""All clients are in one group."""

from __future__ import annotations

from fedgsp.parts import NoOptions
from top_server.grouping.request import GroupingRequest, Plan


def single_group(request: GroupingRequest, options: NoOptions) -> Plan:
    """One group of all clients, whatever number of groups the request asks for."""
    return Plan(groups=(request.clients,), idle=())
