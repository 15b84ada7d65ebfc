"""What processes say to each other, as plain values.

Each class has the name and the fields of a message in `protos/fedgsp/v1`; `fedgsp.wire` turns one into the other,
so that only servicers and client wrappers see generated code. A oneof is one field that holds any of its kinds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum

PROTOCOL = 1


class FailureCode(IntEnum):
    """Why something was refused or did not work; numbers as in `failure.proto`."""

    UNSPECIFIED = 0
    UNREACHABLE = 1
    NODE_LOST = 2
    STALLED = 3
    CANCELLED = 4
    UNKNOWN_CLIENT = 10
    BAD_ORDER = 11
    NO_SUCH_MODEL = 20
    CUT_SHORT = 21
    TOO_LONG = 22
    WRONG_DIGEST = 23
    WRONG_SHAPES = 24
    NOT_FINITE = 25
    BAD_STREAM = 26
    TASK_RAISED = 30
    WRONG_PROTOCOL = 40
    WRONG_TASK = 41
    CLIENT_TAKEN = 42
    NAME_TAKEN = 43
    RUN_OVER = 44
    NO_CLIENTS = 45
    CANNOT_BE_DIALLED = 46


class SourceKind(IntEnum):
    """Who holds a model."""

    UNSPECIFIED = 0
    LOCAL = 1
    NODE = 2
    MANAGER = 3
    TOP_SERVER = 4


class RelayMode(IntEnum):
    """How weights travel between clients: straight where possible, only straight, or by way of the manager."""

    UNSPECIFIED = 0
    AUTO = 1
    DIRECT = 2
    MANAGER = 3


@dataclass(frozen=True, slots=True)
class Failure:
    """An expected failure: a value, not an exception."""

    code: FailureCode
    detail: str

    def __str__(self) -> str:
        return f"{self.code.name.lower().replace('_', ' ')}: {self.detail}"


@dataclass(frozen=True, slots=True)
class ModelRef:
    """Stands for weights; size in bytes and sha256 digest are empty while the model is only promised."""

    id: str
    size: int = 0
    digest: bytes = b""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Name, numpy dtype and shape of one tensor of a model."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    trainable: bool = True


@dataclass(frozen=True, slots=True)
class Source:
    """Somebody who holds a model, or will."""

    kind: SourceKind
    name: str
    address: str = ""


@dataclass(frozen=True, slots=True)
class ModelHeader:
    """What precedes the bytes of a model."""

    ref: ModelRef | None
    tensors: tuple[TensorSpec, ...]


# --- node <-> top server


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


@dataclass(frozen=True, slots=True)
class TopServerMessage:
    """From the top server to a node."""

    kind: Welcome | Failure | AttachTo | Leave | None


# --- node <-> group manager


@dataclass(frozen=True, slots=True)
class OrderKey:
    """Names one piece of work within a run."""

    round: int
    task: str
    group: int
    position: int
    attempt: int = 0


@dataclass(frozen=True, slots=True)
class Start:
    """Where the weights of an order come from: the first source that delivers."""

    model_id: str
    sources: tuple[Source, ...]
    keep: bool = False


@dataclass(frozen=True, slots=True)
class TrainingSettings:
    """How a client trains; learning rate per step, seed is the run's root seed."""

    algorithm: str
    local_epochs: int
    batch_size: int
    learning_rate: float
    seed: int
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Train:
    """Train from `start`, keep the result as `produces`."""

    start: Start | None
    produces: str
    settings: TrainingSettings | None


@dataclass(frozen=True, slots=True)
class Evaluate:
    """Evaluate a model on the client's test part."""

    start: Start | None


@dataclass(frozen=True, slots=True)
class Describe:
    """Report the class histogram of the training part."""


@dataclass(frozen=True, slots=True)
class Initialise:
    """Make fresh weights from a seed."""

    produces: str
    seed: int


@dataclass(frozen=True, slots=True)
class SendUp:
    """Upload a model to the manager."""

    model_id: str


@dataclass(frozen=True, slots=True)
class Release:
    """Forget these models."""

    model_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Cancel:
    """Give up the order of this key."""


Work = Train | Evaluate | Describe | Initialise | SendUp | Release | Cancel


@dataclass(frozen=True, slots=True)
class Order:
    """One piece of work for one client of a node."""

    key: OrderKey | None
    client: int
    work: Work | None


@dataclass(frozen=True, slots=True)
class Attached:
    """A node is ready to take a manager's orders."""

    run_id: str
    node: str


@dataclass(frozen=True, slots=True)
class OrderProgress:
    """A counter that grows while an order moves."""

    key: OrderKey | None
    mark: int


@dataclass(frozen=True, slots=True)
class Progress:
    """Counters of all orders that moved."""

    orders: tuple[OrderProgress, ...]


@dataclass(frozen=True, slots=True)
class Trained:
    """A training order is done: samples of the client, mean loss, seconds of training, bytes fetched."""

    ref: ModelRef | None
    samples: int = 0
    loss: float = 0.0
    seconds: float = 0.0
    source: Source | None = None
    bytes: int = 0
    tensors: tuple[TensorSpec, ...] = ()


@dataclass(frozen=True, slots=True)
class Evaluated:
    """Counts on a client's test part; `loss_sum` is the mean loss times the samples."""

    correct: int
    samples: int
    loss_sum: float
    source: Source | None = None
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class Described:
    """A class histogram, raw counts."""

    class_counts: tuple[int, ...]


Result = Trained | Evaluated | Described


@dataclass(frozen=True, slots=True)
class Done:
    """An order is done; orders such as Release have no result."""

    key: OrderKey | None
    result: Result | None


@dataclass(frozen=True, slots=True)
class Failed:
    """An order is not done, and why."""

    key: OrderKey | None
    failure: Failure | None


@dataclass(frozen=True, slots=True)
class NodeReport:
    """From a node to a manager."""

    kind: Attached | Progress | Done | Failed | None


# --- top server <-> group manager


@dataclass(frozen=True, slots=True)
class Member:
    """A client of a group and the node that hosts it."""

    client: int
    node: str
    peer_address: str = ""
    samples: int = 0


@dataclass(frozen=True, slots=True)
class RunGroupRequest:
    """One group's part of a round. `program` names what its members do."""

    run_id: str
    round: int
    group: int
    program: str
    members: tuple[Member, ...]
    start: ModelRef | None
    start_address: str
    relay: RelayMode
    shuffle: bool
    training: TrainingSettings | None
    stall_timeout_s: float
    max_model_bytes: int


@dataclass(frozen=True, slots=True)
class MemberDone:
    """A member finished its order."""

    client: int
    position: int
    result: Result | None


@dataclass(frozen=True, slots=True)
class MemberSkipped:
    """A member took no part, and why."""

    client: int
    failure: Failure | None


@dataclass(frozen=True, slots=True)
class Rerouted:
    """Weights, or the chain, went another way than declared."""

    client: int
    reason: str


@dataclass(frozen=True, slots=True)
class GroupResult:
    """A group is done: its model as held by the manager (no id if none), and the weight bytes that moved for it."""

    ref: ModelRef | None
    samples: int
    bytes_direct: int
    bytes_relayed: int


@dataclass(frozen=True, slots=True)
class GroupEvent:
    """From a manager to the top server while a group runs; the last one is a result or a failure."""

    kind: MemberDone | MemberSkipped | Rerouted | GroupResult | Failure | None
