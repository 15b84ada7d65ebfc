"""Who a process is: its role, and its name, as they stand in a certificate."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Self

from fedgsp.messages import SourceKind

#: What a name of a node may look like: it stands in certificates, records, logs and names of files.
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", re.ASCII)
NAME_RULE = "1 to 63 letters, digits, dots, dashes and underscores, the first one a letter or a digit"
#: A certificate holds this URI in its subjectAltName: fedgsp://node/hospital-a, fedgsp://top-server.
SCHEME = "fedgsp://"
#: A certificate that a top server issued also has one of these, by which all certificates of one invitation are known.
ENROLMENT = "urn:uuid:"
_URI = re.compile(SCHEME + r"([a-z-]+)(?:/(.+))?", re.ASCII)


class Role(StrEnum):
    """What a process is in a federation, and so what it may ask of others."""

    TOP_SERVER = "top-server"
    MANAGER = "manager"
    NODE = "node"
    #: A node that has an invitation and no certificate of its own yet.
    INVITED = "invited"
    GROUPING_SERVICE = "grouping-service"
    #: A process that a run has started and given a certificate: in that run it is the node of its name.
    WORKER = "worker"
    #: A person or a monitoring system that watches runs.
    OPERATOR = "operator"


@dataclass(frozen=True, slots=True)
class Identity:
    """A role, with the name of the node, or of the invited node; other roles need no name."""

    role: Role
    name: str = ""

    @property
    def uri(self) -> str:
        """The URI that stands for it in a certificate."""
        return f"fedgsp://{self.role}" + (f"/{self.name}" if self.name else "")

    def __str__(self) -> str:
        return f"{self.role} {self.name}".strip()

    @classmethod
    def of(cls, uri: str) -> Self:
        """The inverse of `uri`; raises ValueError."""
        parts = _URI.fullmatch(uri)
        if parts is None or parts[1] not in set(Role):
            raise ValueError(f"{uri[:100]!r} names no process of a federation")
        role, name = Role(parts[1]), parts[2] or ""
        # A node has a name; the name of another role is optional.
        if not (is_name(name) if name or role in _NAMED else True):
            raise ValueError(f"{uri[:100]!r} names no process: a name has {NAME_RULE}")
        return cls(role, name)

    def speaks_for(self, other: Identity) -> bool:
        """Whether a process with this certificate may act as `other`.

        Group managers beside the top server, and local nodes of a run whose CA is kept elsewhere, run with its
        certificate. A worker is the node of its name; the top server decides in which run.
        """
        is_node = self.role is Role.WORKER and other == Identity(Role.NODE, self.name)
        return self == other or is_node or self.role is Role.TOP_SERVER


_NAMED = (Role.NODE, Role.INVITED, Role.WORKER)
#: The top server of a run.
TOP_SERVER = Identity(Role.TOP_SERVER)


def node(name: str) -> Identity:
    """The node of this name."""
    return Identity(Role.NODE, name)


def invited(name: str) -> Identity:
    """The node that is invited under this name."""
    return Identity(Role.INVITED, name)


def worker(name: str) -> Identity:
    """The worker of this name."""
    return Identity(Role.WORKER, name)


def may_replace(name: str, newer: Identity | None, older: Identity | None, same_process: bool) -> bool:
    """Whether a connection of node `name` takes the place of an older one that has not ended, as far as is known.

    Both were proven to be of these identities; None without TLS. The top server and the group managers keep to this
    one rule. A node that lost its network comes back before its old connection is known as lost: that is the same
    process. Another process needs a certificate of the node. Without one, nobody knows which of the two processes is
    the node, and the one that is there has what the run has given to it: so the other is refused. If the process that
    was there has ended, so has its connection, and this question does not arise.
    """
    return newer == older and (same_process or newer in (node(name), worker(name)))


def manager(name: str) -> Identity:
    """The group manager of this name."""
    return Identity(Role.MANAGER, name)


#: Role of a server that may have been placed on any machine -> the role in its certificate.
_PLACED = {Role.NODE: Role.WORKER, Role.MANAGER: Role.MANAGER}


def host_of_placed(server: Identity) -> str:
    """The host name that a server's certificate has in place of hosts if it was placed; empty if none is placed.

    The CA does not know where it will run when it makes the certificate. A process that dials it looks for this name.
    """
    return f"{server.name.lower()}.{_PLACED[server.role]}.fedgsp.invalid" if server.role in _PLACED else ""


#: Kind of a source -> the process that serves it, by its name. Other sources are on the reading node itself.
HOLDERS: dict[SourceKind, Callable[[str], Identity]] = {
    SourceKind.NODE: node,
    SourceKind.MANAGER: manager,
    SourceKind.TOP_SERVER: lambda _: TOP_SERVER,
}


def is_name(text: str) -> bool:
    """Whether a text can be the name of a node."""
    return NAME.fullmatch(text) is not None


def identity_in(uris: Iterable[str]) -> Identity | None:
    """The identity that the URIs of a certificate name; None if they name none, or more than one."""
    try:
        return Identity.of(*(uri for uri in uris if uri.startswith(SCHEME)))
    except (TypeError, ValueError):
        return None


def enrolment_in(uris: Iterable[str]) -> str:
    """The enrolment to which a certificate with these URIs belongs; empty if none, or more than one, is named."""
    named = [uri for uri in uris if uri.startswith(ENROLMENT)]
    return named[0] if len(named) == 1 else ""
