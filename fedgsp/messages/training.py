# Made by scripts/protos.py from protos/fedgsp/v1/training.proto; do not edit.
"""How clients train."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class TrainingSettings:
    """How a client trains."""

    #: Name of the local training algorithm.
    algorithm: str
    local_epochs: int
    #: Samples per step.
    batch_size: int
    #: Step size of this round.
    learning_rate: float
    #: Root seed of the run.
    seed: int
    #: Options of the algorithm; an option that is not given has its default.
    options: Mapping[str, str] = field(default_factory=dict)
    #: Managers round every model that they make to bfloat16. Nodes do so by the outgoing step "rounding".
    bfloat16: bool = False
    #: Unset: the optimiser of the task, or plain SGD if it has none.
    optimizer: OptimizerSettings | None = None


@dataclass(frozen=True, slots=True)
class OptimizerSettings:
    """How a client turns gradients into steps."""

    #: Name of the optimiser.
    name: str
    #: Its options; an option that is not given has its default.
    options: Mapping[str, str] = field(default_factory=dict)
    #: How the step size changes from step to step of a training. Empty: it stays the same.
    schedule: str = ""
    schedule_options: Mapping[str, str] = field(default_factory=dict)
    #: A gradient that is longer is shortened to this length. 0: no gradient is.
    clip_norm: float = 0.0
    #: Batches whose mean gradient makes one step. 0 stands for 1.
    accumulate: int = 0
    #: Dtype in which the model and the loss are computed: "bfloat16" or "float16". Empty: that of the weights.
    precision: str = ""
    #: Where the optimiser begins. Empty: without state. "kept": from the state that the client's last training left on
    #: the node. "relayed": from the state that came with the model, and which leaves with the trained model.
    state: str = ""


@dataclass(frozen=True, slots=True)
class DiscriminatorSettings:
    """How discriminators are trained."""

    #: Samples of each client's training part to train on. The remaining samples are the validation part.
    samples: int
    #: SGD steps between two exchanges.
    steps: int
    #: Samples per step.
    batch_size: int
    #: Step size.
    learning_rate: float
    #: Root seed of the run.
    seed: int
    #: One network with an output per client, in place of one network per pair of clients.
    shared: bool = False
    #: Features are multiplied by this factor; labels are not.
    feature_scale: float = 1.0
    #: Which samples are trained on: 0 for a first draw, 1 for a draw from the samples that the first one has left.
    fold: int = 0
