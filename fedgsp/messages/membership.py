# Made by scripts/protos.py from protos/fedgsp/v1/membership.proto; do not edit.
"""Between a node and the top server: joining a run, attaching to managers, leaving."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fedgsp.messages.enrolment import Revoked
from fedgsp.messages.failure import Failure
from fedgsp.messages.model import TensorSpec


@dataclass(frozen=True, slots=True)
class NodeMessage:
    """A message from a node to the top server."""

    kind: Hello | None


@dataclass(frozen=True, slots=True)
class Hello:
    """The first message of a node: who it is, and what it hosts."""

    #: Version of the protocol that the node speaks; see `PROTOCOL`.
    protocol: int
    #: Name of the node, unique within the run.
    node: str
    #: The task as the node was given it: a built-in name, or module:attribute.
    task: str
    #: Number of classes of the task; class histograms have this length.
    num_classes: int
    clients: tuple[HostedClient, ...]
    #: The tensors of the model that the node's task makes.
    tensors: tuple[TensorSpec, ...]
    #: host:port at which peers can fetch models from this node. Empty: the node accepts no connections.
    peer_address: str = ""
    #: Floating-point operations to train on one sample; 0 if unknown.
    training_flop: int = 0
    #: Task options that all nodes of a run must have alike, defaults included.
    task_options: Mapping[str, str] = field(default_factory=dict)
    #: SHA-256 of the source file of the task's class. Empty: the class has no source file.
    task_digest: bytes = b""
    #: The parts of packages beside FedGSP that the node could run.
    parts: tuple[InstalledPart, ...] = ()
    #: The features that a training may add tensors for: name of the layer that returns them, dtype, number of
    #: channels. Unset: the task names no such layer.
    features: TensorSpec | None = None
    #: The task has an optimiser of its own.
    own_optimizer: bool = False
    #: The tensors of the model that do not travel. A node that has any introduces itself twice: without digests, and
    #: with them once the top server has asked for them.
    constants: tuple[Constant, ...] = ()
    #: Where the node trains, such as "cpu" or "cuda:0 (NVIDIA H100)".
    device: str = ""
    #: Bytes of memory of the device; 0 if unknown.
    device_memory: int = 0
    #: Version of torch.
    torch: str = ""
    #: What rates a model: a metric of the task, accuracy or loss; after a minus sign if smaller values are better.
    #: Empty: accuracy.
    score: str = ""
    #: Metric of the task -> how the values of several clients become one; see `fedgsp.scoring`. Other metrics are
    #: averaged, weighted by test samples.
    combine: Mapping[str, str] = field(default_factory=dict)
    #: What the task lacks, and some schemes need: names of `fedgsp.scoring.LACKS`.
    lacks: tuple[str, ...] = ()
    #: The error by which the task has no class counts. Unset: it has them, or it simply has none.
    class_counts_failed: Failure | None = None


@dataclass(frozen=True, slots=True)
class Constant:
    """A tensor of the model that does not travel, because training does not change it."""

    tensor: TensorSpec | None
    #: BLAKE3 digest of its values (256 bits), as made from the seed of MakeConstants. Empty in the first Hello.
    digest: bytes = b""


@dataclass(frozen=True, slots=True)
class InstalledPart:
    """A part, such as a training, that an installed package adds."""

    #: Kind of the part, such as training.
    kind: str
    name: str
    #: The package and its version, with a space between.
    package: str


@dataclass(frozen=True, slots=True)
class HostedClient:
    """A client that a node hosts, with its numbers of samples."""

    client: int
    train_samples: int
    test_samples: int
    #: What people call the client, such as the name of a hospital. Empty: it has a number alone.
    name: str = ""
    #: Samples that choose the best model and the end of a run. 0: the client has none.
    validation_samples: int = 0


@dataclass(frozen=True, slots=True)
class TopServerMessage:
    """A message from the top server to a node. The first one is a Welcome or a refusal."""

    kind: Welcome | Failure | AttachTo | Leave | Revoked | MakeConstants | None


@dataclass(frozen=True, slots=True)
class MakeConstants:
    """Asks a node for the digests of its constants. The node makes a model from the seed and keeps its constants."""

    #: The seed of the run's initial model.
    seed: int


@dataclass(frozen=True, slots=True)
class Welcome:
    """The node is now part of the run."""

    run_id: str
    #: What the run adds to the model of the task. Unset: nothing.
    additions: Additions | None = None
    #: The key by which the node checks the tickets of those who fetch models from it.
    key: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True)
class Additions:
    """What adds tensors to the model of the task. They travel with the model. Options that are not given have
    defaults.
    """

    #: The training that adds tensors. Empty: none does.
    training: str = ""
    training_options: Mapping[str, str] = field(default_factory=dict)
    #: The optimiser whose state travels with the model. Empty: no state does.
    optimizer: str = ""
    optimizer_options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AttachTo:
    """Asks the node to connect to a group manager and to take its orders until the manager closes the stream."""

    #: Name of the manager.
    manager: str
    #: host:port. A wildcard host stands for the host by which the node reached the top server.
    address: str
    #: The ticket by which the manager lets the node attach.
    ticket: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True)
class Leave:
    """Ends the node's part in the run."""

    #: Whether the run played all its rounds; otherwise it was stopped.
    finished: bool
    reason: str
    #: The run may be resumed: the node keeps its models and tries for a while to join again.
    resumable: bool = False
