"""Every client is alone."""

from __future__ import annotations

from fedgsp.parts import NoOptions
from top_server.grouping.request import GroupingRequest, Plan


def singletons(request: GroupingRequest, options: NoOptions) -> Plan:
    """One group for each client, whatever number of groups the request asks for."""
    return Plan(groups=tuple((client,) for client in request.clients), idle=())
