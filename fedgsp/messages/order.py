"""Between a node and a group manager."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fedgsp.messages.failure import Failure
from fedgsp.messages.model import ModelRef, Source


@dataclass(frozen=True, slots=True)
class OrderKey:
    """Names one piece of work."""

    round: int
    task: str
    group: int
    position: int
    attempt: int = 0
    run: str = ""
    serial: int = 0


@dataclass(frozen=True, slots=True)
class Start:
    """Where the weights of an order come from: the first source that delivers."""

    model_id: str
    sources: tuple[Source, ...]
    keep: bool = False
    without_head: bool = False


@dataclass(frozen=True, slots=True)
class TrainingSettings:
    """How a client trains; learning rate per step, seed is the run's root seed.

    With bfloat16, the models that are made are rounded to that.
    """

    algorithm: str
    local_epochs: int
    batch_size: int
    learning_rate: float
    seed: int
    options: Mapping[str, str] = field(default_factory=dict)
    bfloat16: bool = False


@dataclass(frozen=True, slots=True)
class Reveal:
    """What a client shows of its update: "exact", "layer:PREFIX" or "sketch:BYTES"."""

    view: str
    without_head: bool = False


@dataclass(frozen=True, slots=True)
class Train:
    """Train from `start`, keep the result as `produces`.

    A retained result is the client's own model; a trial leaves the client's head as it was. To bring the result is to
    upload it before the report, and to keep it no longer unless it is retained.
    """

    start: Start | None
    produces: str
    settings: TrainingSettings | None
    reveal: Reveal | None = None
    retain: bool = False
    trial: bool = False
    bring: bool = False


@dataclass(frozen=True, slots=True)
class Evaluate:
    """Evaluate a model on the client's test part, or on its training part; compare it with one that the node holds.

    Personalised: evaluate what the training algorithm makes of the model for this client.
    """

    start: Start | None
    training_part: bool = False
    compared_with: str = ""
    settings: TrainingSettings | None = None
    personalised: bool = False
    only_compare: bool = False


@dataclass(frozen=True, slots=True)
class Describe:
    """Report the class histogram of the training part."""


@dataclass(frozen=True, slots=True)
class DiscriminatorSettings:
    """How client discriminators train: samples of each client, and SGD steps between two exchanges."""

    samples: int
    steps: int
    batch_size: int
    learning_rate: float
    seed: int
    shared: bool = False
    feature_scale: float = 1.0


@dataclass(frozen=True, slots=True)
class Discriminate:
    """Train networks that tell this client's samples from those of `others`; fresh ones without a start.

    Every exchange draws batches of its own.
    """

    start: Start | None
    produces: str
    others: tuple[int, ...]
    settings: DiscriminatorSettings | None
    judge: bool = False
    exchange: int = 0


@dataclass(frozen=True, slots=True)
class Initialise:
    """Make fresh weights from a seed."""

    produces: str
    seed: int


@dataclass(frozen=True, slots=True)
class SendUp:
    """Upload a model to the manager, whose machine is named; one of an earlier round is there, or lost."""

    model_id: str
    earlier: bool = False
    machine: str = ""


@dataclass(frozen=True, slots=True)
class Release:
    """Forget these models; `own` ones are clients' own, which are wanted no more, nor the ones before."""

    model_ids: tuple[str, ...]
    own: bool = False


@dataclass(frozen=True, slots=True)
class Cancel:
    """Give up the order of this key."""


@dataclass(frozen=True, slots=True)
class Recall:
    """Say which of a group's models, whose ids begin with `prefix`, the node still holds; it forgets all others."""

    prefix: str
    model_ids: tuple[str, ...]


Work = Train | Evaluate | Describe | Discriminate | Initialise | SendUp | Release | Recall | Cancel


@dataclass(frozen=True, slots=True)
class Order:
    """One piece of work for one client of a node."""

    key: OrderKey | None
    client: int
    work: Work | None


@dataclass(frozen=True, slots=True)
class Attached:
    """A node is ready to take the orders of the manager of that name."""

    run_id: str
    node: str
    manager: str = ""


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
    """A training order is done: samples of the client, mean loss, seconds of training, bytes fetched, local steps.

    Whether the client `keeps` a head or a personal model to itself, and began that `afresh`.
    """

    ref: ModelRef | None
    samples: int = 0
    loss: float = 0.0
    seconds: float = 0.0
    source: Source | None = None
    bytes: int = 0
    update: ModelRef | None = None
    steps: float = 0.0
    keeps: bool = False
    afresh: bool = False


@dataclass(frozen=True, slots=True)
class Evaluated:
    """Counts on one part of a client's data; `loss_sum` is the mean loss times the samples.

    `afresh` if the client should have used a head or a personal model of its own, and had none.
    """

    correct: int
    samples: int
    loss_sum: float
    source: Source | None = None
    bytes: int = 0
    metrics: Mapping[str, float] = field(default_factory=dict)
    squared_distance: float = 0.0
    afresh: bool = False


@dataclass(frozen=True, slots=True)
class Described:
    """A class histogram, raw counts."""

    class_counts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Discriminated:
    """Networks after some steps; of `samples` of the validation part each start had `correct` right."""

    ref: ModelRef | None
    correct: tuple[int, ...] = ()
    samples: int = 0
    source: Source | None = None
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class Recalled:
    """Models that the node still holds."""

    model_ids: tuple[str, ...]


Result = Trained | Evaluated | Described | Discriminated


@dataclass(frozen=True, slots=True)
class Done:
    """An order is done; orders such as Release have no result."""

    key: OrderKey | None
    result: Result | Recalled | None


@dataclass(frozen=True, slots=True)
class Failed:
    """An order is not done, and why."""

    key: OrderKey | None
    failure: Failure | None


@dataclass(frozen=True, slots=True)
class NodeReport:
    """From a node to a manager."""

    kind: Attached | Progress | Done | Failed | None
