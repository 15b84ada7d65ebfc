# Made by scripts/protos.py from protos/fedgsp/v1/group.proto; do not edit.
"""Between the top server and a group manager: one group's part of a round, and what happens in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from fedgsp.messages.failure import Failure
from fedgsp.messages.model import ModelRef, TensorSpec
from fedgsp.messages.order import Described, Discriminated, Evaluated, OrderKey, OutgoingStep, Reveal, Trained
from fedgsp.messages.training import DiscriminatorSettings, TrainingSettings


class RelayMode(IntEnum):
    """How weights travel between clients on different nodes."""

    UNSPECIFIED = 0
    #: Directly between nodes where possible, otherwise through the group manager.
    AUTO = 1
    #: Only directly between nodes. Nodes that accept no connections cannot join.
    DIRECT = 2
    #: Only through the group manager.
    MANAGER = 3


class Results(IntEnum):
    """What happens to the models that members trained each on its own."""

    #: They are forgotten.
    UNSPECIFIED = 0
    #: Each becomes its client's own model and stays on the client's node.
    RETAINED = 1
    #: The manager holds them until they are forgotten.
    COLLECTED = 2
    #: They stay on their nodes until the run is over.
    KEPT = 3


@dataclass(frozen=True, slots=True)
class RunGroupRequest:
    """Asks a manager to run one group's part of a round."""

    run_id: str
    round: int
    #: Number of the group within the round.
    group: int
    #: Name of the in-group program, which decides what the members do: relay, parallel, alone, evaluate, ...
    program: str
    members: tuple[Member, ...]
    #: The model that the group starts from. Unset if the program needs none, or if every member has a start.
    start: ModelRef | None
    #: host:port of the top server, from which `start` and the parts without a node can be fetched.
    start_address: str
    relay: RelayMode
    #: Members train in a random order that is drawn from the seed. Otherwise they train in the order of `members`.
    shuffle: bool
    #: Unset for programs that do not train.
    training: TrainingSettings | None
    #: Seconds without progress after which a member's order counts as stalled.
    stall_timeout_s: float
    #: Largest model, in bytes, that the manager accepts from a node.
    max_model_bytes: int
    #: If there are any, `start` is their weighted mean. The manager computes it, adding the parts in this order.
    parts: tuple[Part, ...] = ()
    #: Models travel without their classifier heads.
    without_head: bool = False
    #: What clients reveal of their updates. Unset: nothing.
    reveal: Reveal | None = None
    results: Results = Results.UNSPECIFIED
    #: How the models of members that trained in parallel are combined. Empty for other programs.
    aggregation: str = ""
    #: Only for program `discriminate`.
    discrimination: Discrimination | None = None
    #: All clients of the group, connected or not, in the order of the plan. The relay order is drawn for all of them,
    #: so it does not depend on who is missing. Empty: the clients of `members`.
    planned: tuple[int, ...] = ()
    #: Number of managers that were lost while they ran this group.
    attempt: int = 0
    #: Hops that the relay completed under lost managers, in order.
    finished: tuple[FinishedHop, ...] = ()
    #: The tensors of the models that members may hand in.
    tensors: tuple[TensorSpec, ...] = ()
    #: A model is rejected if its update is longer than this factor times the median length. 0: no limit.
    most_update_ratio: float = 0.0
    #: Serial number of this call. It differs from those of all other calls of the run.
    serial: int = 0
    #: Lengths of updates of earlier rounds, from which the median for `most_update_ratio` is taken.
    update_lengths: tuple[float, ...] = ()
    #: Options of the aggregation, as text.
    aggregation_options: Mapping[str, str] = field(default_factory=dict)
    #: Options of the program, as text.
    program_options: Mapping[str, str] = field(default_factory=dict)
    #: What nodes do to a trained model before it leaves them, in this order.
    outgoing: tuple[OutgoingStep, ...] = ()
    #: Members get the start of the group from the manager, which fetches it once from the top server.
    hand_on_start: bool = False


@dataclass(frozen=True, slots=True)
class FinishedHop:
    """A completed hop of a relay: the member has trained, and its node may still hold the result."""

    member: Member | None
    #: The result.
    model: ModelRef | None
    #: Euclidean length of the member's update; 0 if the manager did not measure it.
    update_length: float = 0.0


@dataclass(frozen=True, slots=True)
class Discrimination:
    """How long discriminators are trained. They measure how far apart the members' data are (FedCollab)."""

    settings: DiscriminatorSettings | None
    #: Largest number of exchanges of networks.
    exchanges: int
    #: Exchanges between two judgements.
    judge_every: int
    #: A pair of clients stops after this many judgements without improvement.
    patience: int
    #: Only pairs that contain one of these clients are trained. Empty: all pairs.
    newcomers: tuple[int, ...] = ()
    #: Name of the estimate that makes distances from judgements.
    estimate: str = ""


@dataclass(frozen=True, slots=True)
class Part:
    """One model of a weighted mean."""

    ref: ModelRef | None
    #: Name of the node that holds the model. Empty: the top server holds it.
    node: str = ""
    #: Weight in the mean, relative to the other parts.
    weight: float = 0.0
    #: The client whose model it is. Only meaningful if a node holds it.
    client: int = 0


@dataclass(frozen=True, slots=True)
class Member:
    """A client of a group, and the node that hosts it."""

    client: int
    #: Name of the node.
    node: str
    #: host:port at which other nodes can fetch models from this node. Empty: the node accepts no connections.
    peer_address: str = ""
    #: Training samples of the client.
    samples: int = 0
    #: The member's own start model, in place of the group's.
    start: Part | None = None
    #: Weight of the member's result in the group's mean, relative to the other members.
    weight: float = 0.0
    #: Number of clients of the node, and of their training and test samples: what the node may have to do in a round.
    node_clients: int = 0
    node_samples: int = 0
    #: With TLS: SHA-256 of the certificate with which the node joined.
    certificate_digest: bytes = b""


@dataclass(frozen=True, slots=True)
class GroupEvent:
    """Tells the top server what happened in a running group. The last event is a GroupResult or a Failure."""

    kind: MemberDone | MemberSkipped | Rerouted | GroupResult | Failure | PartLost | NetworksLeft | Served | None


@dataclass(frozen=True, slots=True)
class Served:
    """The manager gave a model to a process."""

    model_id: str
    #: Who the process is by its ticket, and by its certificate. Empty: it showed none.
    reader: str
    proven: str = ""
    #: Size of the model in bytes.
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class PartLost:
    """The model of a client was not available. The group's start is the mean of the other parts."""

    client: int
    failure: Failure | None


@dataclass(frozen=True, slots=True)
class NetworksLeft:
    """Progress of discriminators: how many pairs of clients are still trained."""

    #: Exchanges completed.
    exchanges: int
    #: Networks that are still trained, or will be.
    left: int
    #: All networks: one per pair of clients in each fold.
    networks: int


@dataclass(frozen=True, slots=True)
class MemberDone:
    """A member completed its order."""

    client: int
    #: Place of the order within the group, from 0.
    position: int
    result: Trained | Evaluated | Described | Discriminated | None
    #: Euclidean length of the member's update; 0 if the manager did not measure it.
    update_length: float = 0.0
    #: The order that the result answers. Unset if no order was needed.
    key: OrderKey | None = None
    #: The receipt of the node for it.
    receipt: bytes = b""
    #: Digest of the revealed update that the receipt covers, also if the update did not come to the manager.
    update_digest: bytes = b""
    #: The certificate of the node, and those between it and the CA, in PEM, if it is not the one of `Member`: the node
    #: may have renewed its certificate.
    certificate: bytes = b""
    #: Relay: seconds from the end of the hop before, or the begin of the relay, until the result was reported.
    turn_s: float = 0.0


@dataclass(frozen=True, slots=True)
class MemberSkipped:
    """A member took no part, and why."""

    client: int
    failure: Failure | None


@dataclass(frozen=True, slots=True)
class Rerouted:
    """Weights, or the chain of a relay, took another way than declared."""

    client: int
    #: An explanation for people.
    reason: str


@dataclass(frozen=True, slots=True)
class GroupResult:
    """The group is done."""

    #: The group's model, held by the manager. The id is empty for programs that make no model.
    ref: ModelRef | None
    #: Training samples behind the model.
    samples: int
    #: Bytes of weights that moved directly between nodes.
    bytes_direct: int
    #: Bytes of weights that moved through the manager.
    bytes_relayed: int
    #: Bytes that travelled over connections for these weights, after coding. Nothing travels through a pipe.
    bytes_travelled: int = 0
