"""Who a process is: its role, and its name, as they stand in a certificate."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

#: What a name of a node may look like: it stands in certificates, records, logs and names of files.
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", re.ASCII)
NAME_RULE = "1 to 63 letters, digits, dots, dashes and underscores, the first one a letter or a digit"
#: A certificate holds this URI in its subjectAltName: fedgsp://node/hospital-a, fedgsp://top-server.
_URI = re.compile(r"fedgsp://([a-z-]+)(?:/(.+))?", re.ASCII)


class Role(StrEnum):
    """What a process is in a federation, and so what it may ask of others."""

    TOP_SERVER = "top-server"
    MANAGER = "manager"
    NODE = "node"
    GROUPING_SERVICE = "grouping-service"
    #: Reserved: a process that trains for a node.
    WORKER = "worker"
    #: Reserved: a person who looks after runs.
    OPERATOR = "operator"


@dataclass(frozen=True, slots=True)
class Identity:
    """A role, with the name of the node; other roles need no name."""

    role: Role
    name: str = ""

    @property
    def uri(self) -> str:
        """The URI that stands for it in a certificate."""
        return f"fedgsp://{self.role}" + (f"/{self.name}" if self.name else "")

    def __str__(self) -> str:
        return f"{self.role} {self.name}".strip()


def is_name(text: str) -> bool:
    """Whether a text can be the name of a node."""
    return NAME.fullmatch(text) is not None


def identity_in(uris: Iterable[str]) -> Identity | None:
    """The identity that the URIs of a certificate name; None if they name none, or more than one."""
    found = [identity for uri in uris if (identity := _read(uri)) is not None]
    return found[0] if len(found) == 1 else None


def _read(uri: str) -> Identity | None:
    parts = _URI.fullmatch(uri)
    if parts is None or parts[1] not in set(Role):
        return None
    role, name = Role(parts[1]), parts[2] or ""
    # A node has a name; the name of another role is optional.
    fits = is_name(name) if name or role is Role.NODE else True
    return Identity(role, name) if fits else None
