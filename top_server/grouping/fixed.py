"""Groups that are known beforehand."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from fedgsp.errors import ConfigError
from top_server.grouping.options import Options
from top_server.grouping.request import GroupingRequest, Plan

if TYPE_CHECKING:
    from collections.abc import Mapping

_FORM = "ids with commas between them and / between groups, for example 0,1/2"


def fixed_groups(given: Mapping[str, str]) -> list[list[int]]:
    """The groups that are known; ConfigError for what cannot be."""
    written = Options("fixed", given, ("groups",)).text("groups", "")
    groups = [_ids(part) for part in written.split("/")] if written else []
    named = [client for group in groups for client in group]
    if twice := {client for client in named if named.count(client) > 1}:
        raise ConfigError(f"grouping fixed: option groups names client {min(twice)} twice", f"write {_FORM}")
    return groups


def fixed_clients(given: Mapping[str, str]) -> set[int]:
    """The clients of these groups."""
    return {client for group in fixed_groups(given) for client in group}


def fixed(request: GroupingRequest) -> Plan:
    """The groups of option `groups`, written 0,1/2; clients that it does not name are alone, absent ones left out."""
    groups = fixed_groups(request.options)
    named = fixed_clients(request.options)
    present = set(request.clients)
    found = [tuple(sorted(present & set(group))) for group in groups]
    found += [(client,) for client in request.clients if client not in named]
    return Plan(tuple(group for group in found if group), idle=())


def _ids(text: str) -> list[int]:
    if not re.fullmatch(r"\s*[0-9]+\s*(,\s*[0-9]+\s*)*", text, re.ASCII):
        raise ConfigError(f"grouping fixed: option groups has {text.strip()!r}", f"write {_FORM}")
    return [int(part) for part in text.split(",")]
