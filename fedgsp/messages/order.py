# Made by scripts/protos.py from protos/fedgsp/v1/order.proto; do not edit.
"""Between a node and a group manager: orders for clients, and reports on them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fedgsp.messages.failure import Failure
from fedgsp.messages.model import ModelRef, Source
from fedgsp.messages.training import DiscriminatorSettings, TrainingSettings


@dataclass(frozen=True, slots=True)
class OrderKey:
    """Identifies one order. A node answers an order only once; a report with an unknown key changes nothing."""

    round: int
    #: What is ordered: "train", "evaluate", ... A round may contain several tasks.
    task: str
    group: int
    #: Place of the order within the group, from 0.
    position: int
    #: Distinguishes orders for the same position: chains that were declared again, or exchanges of networks.
    attempt: int = 0
    #: The run's id.
    run: str = ""
    #: Serial number of the RunGroup call that needs this order. A round may ask a group the same of several models.
    serial: int = 0


@dataclass(frozen=True, slots=True)
class Order:
    """One piece of work for one client of a node."""

    key: OrderKey | None
    client: int
    work: Train | Evaluate | Describe | Initialise | SendUp | Release | Cancel | Discriminate | Recall | None


@dataclass(frozen=True, slots=True)
class Start:
    """The weights that an order starts from. The node tries the sources in their order and uses the first that
    delivers.
    """

    model_id: str
    sources: tuple[Source, ...]
    #: Other orders to this node start from the same weights, so the node keeps them until they are released.
    keep: bool = False
    #: The weights come without their classifier head: the node adds the head that it keeps for the client.
    without_head: bool = False
    #: Digest of the model. Empty while the model is only promised.
    digest: bytes = b""


@dataclass(frozen=True, slots=True)
class Train:
    """Trains a client's model and keeps the result on the node."""

    start: Start | None
    #: Id under which the node keeps the result.
    produces: str
    settings: TrainingSettings | None
    #: What the client reveals of its update. Unset: nothing.
    reveal: Reveal | None = None
    #: The result becomes the client's own model. The node keeps it, and the client's model before it.
    retain: bool = False
    #: Only the revealed update is used. The head and the personal model that the node keeps stay unchanged.
    trial: bool = False
    #: The node uploads the result to the manager before it reports, and then forgets it unless `retain` is set.
    bring: bool = False
    #: What the node does to the trained model before it leaves the node, in this order.
    outgoing: tuple[OutgoingStep, ...] = ()
    #: The training is not the client's training of the round: its result is kept beside it, such as a prior model. All
    #: else that the node keeps for the client stays unchanged.
    aside: bool = False
    #: The node evaluates the trained model on the client's training part and reports its accuracy.
    measure_accuracy: bool = False
    #: With `bring`: the ticket by which the node may upload the result.
    ticket: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True)
class OutgoingStep:
    """One step between the trained model and the model that leaves the node."""

    #: "head", "rounding", or the name of a step of an installed package.
    name: str
    #: An option that is not given has its default.
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Reveal:
    """What a client reveals of its update g = (w_start - w_after) / learning rate, over the trainable parameters."""

    #: "exact" (all of it), "layer:PREFIX" (tensors with this prefix) or "sketch:BYTES" (a random projection of this
    #: size).
    view: str
    #: The classifier head is left out.
    without_head: bool = False


@dataclass(frozen=True, slots=True)
class Evaluate:
    """Evaluates a model on one part of a client's data, compares it with a model that the node holds, or both."""

    start: Start | None
    #: Evaluate on the client's training part in place of its test part.
    training_part: bool = False
    #: Id of a model on this node to which `squared_distance` is measured. Empty: no comparison.
    compared_with: str = ""
    #: Settings for `personalised`, which may need training steps.
    settings: TrainingSettings | None = None
    #: Evaluate what the training algorithm makes of the model for this client.
    personalised: bool = False
    #: Compute `squared_distance` alone.
    only_compare: bool = False
    #: Evaluate on the client's validation part in place of its test part.
    validation_part: bool = False


@dataclass(frozen=True, slots=True)
class Describe:
    """Reports the class histogram of the client's training part."""


@dataclass(frozen=True, slots=True)
class Discriminate:
    """Trains networks that distinguish samples of this client from samples of other clients (FedCollab)."""

    #: The networks to start from. Unset: fresh networks, which are equal on every node.
    start: Start | None
    #: Id under which the node keeps the trained networks. Empty: the node only judges the start.
    produces: str
    #: One network for each of these clients, in this order. With shared networks: all clients, this one included.
    others: tuple[int, ...]
    settings: DiscriminatorSettings | None
    #: Before training, count how many samples of the validation part each network classifies correctly.
    judge: bool = False
    #: Number of the exchange of networks that this order belongs to, from 0. Each exchange draws new batches.
    exchange: int = 0


@dataclass(frozen=True, slots=True)
class Initialise:
    """Makes the initial model from a seed and keeps it on the node."""

    #: Id under which the node keeps the model.
    produces: str
    seed: int


@dataclass(frozen=True, slots=True)
class SendUp:
    """Uploads a model from the node to this manager."""

    model_id: str
    #: The model is of an earlier round: if the node does not hold it, it is lost, and the node does not wait for it.
    earlier: bool = False
    #: Identifies the manager's machine: a node on it may offer a pipe. Empty: offer none.
    machine: str = ""
    #: The ticket by which the node may upload the model.
    ticket: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True)
class Release:
    """Forgets models that the node, or the manager, holds."""

    model_ids: tuple[str, ...]
    #: The ids name clients' own models. The node forgets them, and also the clients' models before them.
    own: bool = False


@dataclass(frozen=True, slots=True)
class Recall:
    """Asks which models of a group the node still holds, after the manager that ordered them was lost.

    The node forgets all other models of the group.
    """

    #: Ids of the group's models begin with this.
    prefix: str
    #: The models to keep and to report.
    model_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Cancel:
    """Cancels the order with the same key."""


@dataclass(frozen=True, slots=True)
class NodeReport:
    """A report from a node to a group manager. The first one is Attached."""

    kind: Attached | Progress | Done | Failed | Fetched | None


@dataclass(frozen=True, slots=True)
class Attached:
    """The node is ready to take orders."""

    run_id: str
    #: Name of the node.
    node: str
    #: Name of the manager that the node wants to serve. Another process, at the same address meanwhile, refuses it.
    manager: str = ""


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress counters of the open orders of a node. The node sends them once per second while anything moves."""

    orders: tuple[OrderProgress, ...]


@dataclass(frozen=True, slots=True)
class OrderProgress:
    """Progress of one open order."""

    key: OrderKey | None
    #: Grows while the order, or work that it waits for on the node, makes progress: batches trained, chunks moved.
    mark: int
    #: Seconds of processor time that trainings and outgoing steps have used since the node started.
    computed_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Fetched:
    """The node has fetched the start of a training from another node. It needs the model there no more."""

    key: OrderKey | None
    #: Digest of what came.
    digest: bytes


@dataclass(frozen=True, slots=True)
class Done:
    """An order is done."""

    key: OrderKey | None
    #: Unset for orders without a result, such as Release.
    result: Trained | Evaluated | Described | Discriminated | Recalled | None
    #: With TLS, if the order made a model: the node's signature of the order and the result; see
    #: `fedgsp.security.receipts`.
    receipt: bytes = b""


@dataclass(frozen=True, slots=True)
class Recalled:
    """The models of a Recall that the node still holds."""

    model_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Trained:
    """Result of Train, and of Initialise."""

    #: The new model.
    ref: ModelRef | None
    #: Samples in the client's training part.
    samples: int = 0
    #: Mean training loss over the samples seen.
    loss: float = 0.0
    #: Duration of the training in seconds, without transfers and waiting.
    seconds: float = 0.0
    #: The source that delivered the start weights.
    source: Source | None = None
    #: Bytes fetched for this order.
    bytes: int = 0
    #: The revealed view of the update, held by the node. Unset if the order asked for none.
    update: ModelRef | None = None
    #: Normaliser of the update (FedNova, Wang et al. 2020); for plain SGD the number of local steps.
    steps: float = 0.0
    #: The node keeps a part of the result for the client and does not share it: a head, or a personal model.
    keeps: bool = False
    #: Only with `keeps`: the node had no such part before and began it anew.
    afresh: bool = False
    #: Accuracy of the trained model on the client's training part, at least that of a guess. 0 unless asked for.
    train_accuracy: float = 0.0
    #: The start, as it came to the node.
    start: ModelRef | None = None


@dataclass(frozen=True, slots=True)
class Evaluated:
    """Result of Evaluate."""

    #: Labels that the model predicts correctly.
    correct: int
    #: Samples evaluated.
    samples: int
    #: Sum of the losses of all samples: mean loss times `samples`.
    loss_sum: float
    #: The source that delivered the model.
    source: Source | None = None
    #: Bytes fetched for this order.
    bytes: int = 0
    #: Further metrics of the task; of a metric that is a ratio, its numerator.
    metrics: Mapping[str, float] = field(default_factory=dict)
    #: Squared Euclidean distance to the model `compared_with`, over the trainable tensors of both; 0 without one.
    squared_distance: float = 0.0
    #: The run keeps a head, a personal model or the state of an optimiser for the client, and the node had none.
    afresh: bool = False
    #: Labels behind `correct`; with a class per sample as many as samples. 0: no accuracy, or all labels are ignored.
    judged: int = 0
    #: The denominators of the metrics that are ratios.
    denominators: Mapping[str, float] = field(default_factory=dict)
    #: The error by which the metrics of the task are missing. Unset: there was none.
    metrics_failed: Failure | None = None


@dataclass(frozen=True, slots=True)
class Described:
    """Result of Describe."""

    #: Number of training samples of each class.
    class_counts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Discriminated:
    """Result of Discriminate."""

    #: The trained networks. Unset if the order only judged.
    ref: ModelRef | None
    #: For each network: how many of `samples` it classified correctly before training. Empty if not judged.
    correct: tuple[int, ...] = ()
    #: Samples in the validation part.
    samples: int = 0
    #: The source that delivered the start. Unset for fresh networks.
    source: Source | None = None
    #: Bytes fetched for this order.
    bytes: int = 0
    #: The start, as it came to the node.
    start: ModelRef | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """An order failed."""

    key: OrderKey | None
    failure: Failure | None
