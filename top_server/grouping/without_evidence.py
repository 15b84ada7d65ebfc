"""Groupings without evidence about the clients: those that the user lists, all together, each alone, at random."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from fedgsp import seeds
from fedgsp.errors import ConfigError
from fedgsp.parts import NoOptions
from fedgsp.settings.fields import setting
from top_server.grouping.request import GroupingRequest, Plan
from top_server.grouping.round_size import MODE_HELP, MODES, hand_out, shape_for

_FORM = "ids with commas between them and / between groups, for example 0,1/2"


class KnownGroups(tuple[tuple[int, ...], ...]):
    """Disjoint groups of client ids."""

    @classmethod
    def parse(cls, text: str) -> KnownGroups:
        """Reads groups from a text such as 0,1/2 (clients 0 and 1 together, client 2 alone); raises ConfigError."""
        groups = cls(tuple(_ids(part)) for part in text.split("/")) if text else cls()
        named = [client for group in groups for client in group]
        if twice := {client for client in named if named.count(client) > 1}:
            raise ConfigError(f"grouping fixed: option groups names client {min(twice)} twice", f"write {_FORM}")
        return groups

    @property
    def clients(self) -> set[int]:
        """The clients in these groups."""
        return {client for group in self for client in group}


@dataclass(frozen=True, slots=True)
class FixedOptions:
    """Options of grouping `fixed`."""

    groups: KnownGroups = setting(KnownGroups(), "the groups, written 0,1/2; all other clients are alone")


def fixed(request: GroupingRequest, options: FixedOptions) -> Plan:
    """The groups of option `groups`. A client that the option does not name is alone; absent clients are left out."""
    present, named = set(request.clients), options.groups.clients
    found = [tuple(sorted(present & set(group))) for group in options.groups]
    found += [(client,) for client in request.clients if client not in named]
    return Plan(tuple(group for group in found if group), idle=())


def single_group(request: GroupingRequest, options: NoOptions) -> Plan:
    """One group of all clients, whatever number of groups the request asks for."""
    return Plan(groups=(request.clients,), idle=())


def singletons(request: GroupingRequest, options: NoOptions) -> Plan:
    """One group for each client, whatever number of groups the request asks for."""
    return Plan(groups=tuple((client,) for client in request.clients), idle=())


@dataclass(frozen=True, slots=True)
class RandomOptions:
    """Options of grouping `random`."""

    mode: str = setting("exact", MODE_HELP, choices=MODES)


def random_groups(request: GroupingRequest, options: RandomOptions) -> Plan:
    """Random groups (uniform) with the same sizes as the groups of ICG."""
    rng = seeds.stream(request.seed, "random-groups", request.round)
    count, members = shape_for(len(request.clients), request.groups, options.mode)
    taking_part, rest = np.split(rng.permutation(len(request.clients)), [count * members])
    groups = taking_part.reshape(count, members).tolist()
    if options.mode == "all":
        hand_out(groups, rest.tolist(), rng)
    return Plan.from_rows(groups, request)


def _ids(text: str) -> list[int]:
    if not re.fullmatch(r"\s*[0-9]+\s*(,\s*[0-9]+\s*)*", text, re.ASCII):
        raise ConfigError(f"grouping fixed: option groups has {text.strip()!r}", f"write {_FORM}")
    return [int(part) for part in text.split(",")]
