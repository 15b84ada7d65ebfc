# Made by scripts/protos.py from protos/fedgsp/v1/check.proto; do not edit.
"""Between a node and the top server: what `fedgsp-node check` asks before the first round. The node joins no run by
it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fedgsp.messages.failure import Failure
from fedgsp.messages.membership import Hello
from fedgsp.messages.order import Train


@dataclass(frozen=True, slots=True)
class CheckQuestion:
    """A question of a node. Each of them has one answer, in the order of the questions."""

    kind: AskAbout | Echo | Hello | None


@dataclass(frozen=True, slots=True)
class CheckAnswer:
    """An answer of the top server."""

    kind: About | Echo | Failure | WouldTake | None


@dataclass(frozen=True, slots=True)
class AskAbout:
    """Asks about the top server itself."""

    #: Version of the protocol that the node speaks.
    protocol: int


@dataclass(frozen=True, slots=True)
class Echo:
    """Bytes that come back as they are, to measure the round trip and the rate."""

    payload: bytes


@dataclass(frozen=True, slots=True)
class About:
    """What a top server says of itself. It says nothing of the run."""

    #: Version of the protocol that the top server speaks.
    protocol: int
    #: Versions by name: fedgsp, python, grpcio, protobuf.
    versions: Mapping[str, str]
    #: The clock of the top server when it answered, in seconds since 1970-01-01 UTC.
    clock: float
    #: host:port where group managers are dialled: that of a manager, or before the first round a port at which the top
    #: server listens in place of a manager while the call is open. A wildcard host stands for the host by which the
    #: node reached the top server. Empty: no port is free.
    manager_address: str = ""
    #: The ports at which group managers may listen, such as 7100-7199. Empty: any port.
    manager_ports: str = ""
    #: As in Welcome: shows that the top server knows the key of this user's processes. Empty with TLS.
    proof: bytes = b""


@dataclass(frozen=True, slots=True)
class WouldTake:
    """The node could join now. What differs from the first node of the run is no obstacle, but may be a mistake."""

    #: The source file of the task differs from that of the first node.
    other_task_file: bool
    #: The version of torch differs from that of the first node.
    other_torch: bool
    #: The trainings that the run will order, as far as they are known: settings, steps before a model leaves its node,
    #: and what clients reveal of their updates. Empty: not known.
    trainings: tuple[Train, ...] = ()
    #: Kinds of work that the run asks for beside them, as the policy of a node names them, such as "describe".
    work: tuple[str, ...] = ()
