"""Between a node and the top server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fedgsp.messages.failure import Failure
from fedgsp.messages.model import TensorSpec

PROTOCOL = 10
#: Largest client id: as an int64, ids stand in arrays.
MOST_CLIENT = 2**63 - 1
#: A hello has about 12 bytes per client, and gRPC takes a message of 4 MiB; decoding it holds up everybody else.
MOST_CLIENTS_OF_NODE = 100_000
#: Samples that one client, or one class of its, may be said to have: sums over clients stay far below 64 bits.
MOST_SAMPLES = 1 << 48
#: Of a SHA-256.
TASK_DIGEST_BYTES = 32


@dataclass(frozen=True, slots=True)
class HostedClient:
    """A client that a node hosts, with its numbers of samples."""

    client: int
    train_samples: int
    test_samples: int


@dataclass(frozen=True, slots=True)
class Hello:
    """A node introduces itself."""

    protocol: int
    node: str
    task: str
    num_classes: int
    clients: tuple[HostedClient, ...]
    tensors: tuple[TensorSpec, ...]
    peer_address: str = ""
    training_flop: int = 0
    #: Those that all nodes of a run must have alike, defaults included.
    task_options: Mapping[str, str] = field(default_factory=dict)
    #: SHA-256 of the source file of the task's class; empty: there is none.
    task_digest: bytes = b""


@dataclass(frozen=True, slots=True)
class NodeMessage:
    """From a node to the top server."""

    kind: Hello | None


@dataclass(frozen=True, slots=True)
class Welcome:
    """The node is part of the run."""

    run_id: str


@dataclass(frozen=True, slots=True)
class AttachTo:
    """Dial this manager and take its orders."""

    manager: str
    address: str


@dataclass(frozen=True, slots=True)
class Leave:
    """The run is over for this node."""

    finished: bool
    reason: str
    #: The run may be gone on with: the node keeps what it has for a while, and tries to join again.
    resumable: bool = False


@dataclass(frozen=True, slots=True)
class TopServerMessage:
    """From the top server to a node."""

    kind: Welcome | Failure | AttachTo | Leave | None
