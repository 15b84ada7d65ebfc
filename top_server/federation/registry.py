"""Which nodes belong to a federation, which clients belong to them, by task, and who may watch its runs.

Pure: values in, values out.
"""

import dataclasses
import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Self

from fedgsp.errors import ConfigError, valid
from fedgsp.files import parse_json
from fedgsp.identity import ENROLMENT, NAME_RULE, is_name
from fedgsp.options import parse_clients

_ASK = "ask the owner of the top server, who invites nodes, for a new one"
#: A revoked enrolment is kept for so long after its last certificate has ended, in seconds.
_KEPT_S = 86_400


class State(StrEnum):
    """How far a node is."""

    INVITED = "invited"
    ENROLLED = "enrolled"
    REVOKED = "revoked"


class NotAllowedError(Exception):
    """A node asks for what it may not have. The text is for the node."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A node of the federation. Times are in seconds since 1970."""

    #: Task -> its clients, as people write them: 4-7,9.
    clients: Mapping[str, str]
    #: The hosts by which other nodes dial it; they stand in its certificate.
    hosts: tuple[str, ...]
    #: How long each of its certificates is good, in seconds.
    certificate_s: int
    #: The URI that stands in all certificates of the present invitation.
    enrolment: str
    state: State
    #: When the invitation ends.
    invited_until: float
    #: The fingerprint of the key for which the invitation was used; empty before.
    key: str = ""

    def ids(self, task: str) -> frozenset[int]:
        """Its clients of a task."""
        text = self.clients.get(task)
        return frozenset(parse_clients(text)) if text else frozenset()

    def claims(self, now: float) -> bool:
        """Whether its clients are taken: nobody else can have them."""
        return self.state is State.ENROLLED or (self.state is State.INVITED and now < self.invited_until)


@dataclass(frozen=True, slots=True)
class Operator:
    """A person or a program that may watch the runs of the federation."""

    #: The URI that stands in the certificate.
    enrolment: str
    #: When the certificate ends, in seconds since 1970.
    until: float


@dataclass(frozen=True, slots=True)
class Registry:
    """All nodes and operators of a federation. Every change gives another registry.

    Invariant: of the entries that claim clients, no two have the same client of the same task.
    """

    #: Name -> node.
    nodes: Mapping[str, Entry] = field(default_factory=dict)
    #: Enrolment -> when its last certificate has certainly ended.
    revoked: Mapping[str, float] = field(default_factory=dict)
    #: Name -> operator with a certificate that was not revoked.
    operators: Mapping[str, Operator] = field(default_factory=dict)

    def invited(self, name: str, entry: Entry, now: float) -> Self:
        """With an invitation of a node, which replaces an older invitation; raises ConfigError."""
        ConfigError.require(is_name(name), f"{name[:100]!r} cannot be the name of a node", f"write {NAME_RULE}")
        found = self.nodes.get(name)
        ConfigError.require(
            found is None or found.state is not State.ENROLLED,
            f"{name} is enrolled",
            f"give it other clients with `top-server assign {name}`, or revoke it first",
        )
        registry = self if found is None else self._leaving(found, now)
        return registry._with(name, entry, now)

    def assigned(self, name: str, task: str, clients: str, now: float) -> Self:
        """With other clients of a task for a node; raises ConfigError."""
        found = self._known(name)
        return self._with(name, dataclasses.replace(found, clients={**found.clients, task: clients}), now)

    def enrolled(self, name: str, enrolment: str, key: str, now: float) -> Self:
        """With a node that uses its invitation for a key; raises NotAllowedError.

        The node may repeat this for the same key: it may have lost the answer.
        """
        found = self.nodes.get(name)
        if found is None or found.state is State.REVOKED:
            raise NotAllowedError(f"this invitation was revoked, or is not known here: {_ASK}")
        valid(
            found.enrolment == enrolment,
            f"a newer invitation of this node has replaced this one: use the newer token, or {_ASK}",
            NotAllowedError,
        )
        valid(
            found.state is not State.ENROLLED or found.key == key,
            "this invitation was used already: if not by you, tell the owner of the top server",
            NotAllowedError,
        )
        valid(now < found.invited_until, f"this invitation has expired: {_ASK}", NotAllowedError)
        return self._with(name, dataclasses.replace(found, state=State.ENROLLED, key=key), now)

    def without(self, name: str, now: float) -> Self:
        """With a node that is revoked; raises ConfigError."""
        found = self._known(name)
        registry = self._leaving(found, now)
        nodes = {**registry.nodes, name: dataclasses.replace(found, state=State.REVOKED)}
        return dataclasses.replace(registry, nodes=nodes)

    def watched_by(self, name: str, operator: Operator, now: float) -> Self:
        """With a new certificate of an operator. One of the same name that is still good raises ConfigError."""
        ConfigError.require(is_name(name), f"{name[:100]!r} cannot be the name of an operator", f"write {NAME_RULE}")
        found = self.operators.get(name)
        ConfigError.require(
            found is None or found.until <= now,
            f"operator {name} has a certificate that is still good",
            f"revoke it first with `top-server revoke {name} --operator`, or give another name",
        )
        return dataclasses.replace(self, operators={**self.operators, name: operator})

    def without_operator(self, name: str, now: float) -> Self:
        """With an operator whose certificate is revoked; raises ConfigError."""
        found = self.operators.get(name)
        if found is None:
            known = ", ".join(sorted(self.operators)) or "none"
            raise ConfigError(f"there is no operator {name[:100]!r}", f"known: {known}")
        operators = {other: one for other, one in self.operators.items() if other != name}
        return dataclasses.replace(self._without(found.enrolment, found.until, now), operators=operators)

    def member(self, name: str, enrolment: str) -> Entry | None:
        """The node of this name, if it is enrolled and this is its present enrolment."""
        found = self.nodes.get(name)
        good = found is not None and found.state is State.ENROLLED and found.enrolment == enrolment != ""
        return found if good else None

    def _known(self, name: str) -> Entry:
        found = self.nodes.get(name)
        if found is None or found.state is State.REVOKED:
            raise ConfigError(
                f"no node {name[:100]!r} is invited or enrolled", f"known: {', '.join(sorted(self.nodes)) or 'none'}"
            )
        return found

    def _with(self, name: str, entry: Entry, now: float) -> Self:
        for task in entry.clients:
            for other, theirs in self.nodes.items():
                both = entry.ids(task) & theirs.ids(task) if other != name and theirs.claims(now) else ()
                if both:
                    raise ConfigError(
                        f"client {min(both)} of task {task} belongs to {other}",
                        f"give {name} other --clients, or revoke {other} first",
                    )
        return dataclasses.replace(self, nodes={**self.nodes, name: entry})

    def _leaving(self, entry: Entry, now: float) -> Self:
        return self._without(entry.enrolment, max(now, entry.invited_until) + entry.certificate_s, now)

    def _without(self, enrolment: str, ended: float, now: float) -> Self:
        """With a revoked enrolment, whose last certificate has certainly `ended` by then."""
        kept = {one: until for one, until in self.revoked.items() if now < until}
        return dataclasses.replace(self, revoked={**kept, enrolment: max(now, ended) + _KEPT_S})


EMPTY = Registry(*(MappingProxyType({}) for _ in range(3)))


def new_enrolment() -> str:
    """The URI of a new enrolment."""
    return f"{ENROLMENT}{uuid.uuid4()}"


def dump(registry: Registry) -> str:
    """The registry as JSON, for `parse` and for people."""
    nodes = {name: dataclasses.asdict(entry) for name, entry in sorted(registry.nodes.items())}
    operators = {name: dataclasses.asdict(one) for name, one in sorted(registry.operators.items())}
    document = {"nodes": nodes, "revoked": dict(registry.revoked), "operators": operators}
    return json.dumps(document, indent=1) + "\n"


def parse(text: str) -> Registry:
    """The inverse of `dump`; raises ValueError."""
    try:
        document: dict[str, Any] = parse_json(text)
        nodes = {str(name): _entry(name, one) for name, one in document["nodes"].items()}
        revoked = {str(enrolment): float(ended) for enrolment, ended in document["revoked"].items()}
        operators = {str(name): _operator(name, one) for name, one in document.get("operators", {}).items()}
    except (AttributeError, KeyError, TypeError, ConfigError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from None
    return Registry(nodes, revoked, operators)


def _operator(name: str, one: Mapping[str, Any]) -> Operator:
    valid(is_name(name), f"{name[:100]!r} is no name")
    return Operator(enrolment=str(one["enrolment"]), until=float(one["until"]))


def _entry(name: str, one: Mapping[str, Any]) -> Entry:
    valid(is_name(name), f"{name[:100]!r} is no name")
    entry = Entry(
        clients={str(task): str(clients) for task, clients in one["clients"].items()},
        hosts=tuple(map(str, one["hosts"])),
        certificate_s=int(one["certificate_s"]),
        enrolment=str(one["enrolment"]),
        state=State(one["state"]),
        invited_until=float(one["invited_until"]),
        key=str(one.get("key", "")),
    )
    for task in entry.clients:
        entry.ids(task)
    return entry
