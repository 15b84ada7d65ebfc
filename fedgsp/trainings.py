"""Local trainings: how a client trains on its data.

The table is shared by the top server, which names a training, and by nodes, which import its code and with it torch.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fedgsp.errors import ConfigError
from fedgsp.messages import TensorSpec
from fedgsp.optimizers import AUTO, SGD
from fedgsp.parts import NoOptions, Part, Parts
from fedgsp.scoring import ONE_OUTPUT
from fedgsp.settings.fields import setting

#: Per-FedAvg halves batches of at least so many samples; it leaves out smaller batches.
SMALLEST_BATCH = 4
#: FedFusion's share of the global features; its server smooths it.
GAMMA = "fusion_gamma"
#: Before the number of a tensor of the model: FedFusion's copy of it as it was received.
PREVIOUS = "fusion_previous_"
_HERE = "fedgsp_node.training"


@dataclass(frozen=True, slots=True, kw_only=True)
class Training(Part):
    """The declaration of a training; its `code` is a `fedgsp_node.training.base.Algorithm`."""

    #: Whether each client keeps the classifier head that it trained last, and is evaluated with it, although the head
    #: also travels with the model (HCCT-P as in its authors' release).
    keeps_head: bool = False
    #: Whether each client keeps a personal model on its node, and is evaluated with it.
    keeps_personal: bool = False
    #: Whether each client keeps tensors of the training's own on its node, from one of its trainings to the next
    #: (`LocalWork.kept`), such as the control variate of SCAFFOLD. They do not travel, and no evaluation uses them.
    keeps_tensors: bool = False
    #: The tensors that the training adds to the model of the task, and which travel with it: a function of the
    #: options, the features (`Hello.features`) and the tensors of the model. Its code adds them (`Algorithm.extend`).
    #: None: no tensors.
    adds: Callable[[Any, TensorSpec, tuple[TensorSpec, ...]], tuple[TensorSpec, ...]] | None = None
    #: Raises ConfigError for options that do not go with a learning rate and a batch size.
    check: Callable[[Any, float, int], None] = lambda _options, _rate, _batch: None
    #: Whether its formulas are those of plain SGD, so that no other steps can take their place.
    plain: bool = False
    #: How often its code passes over the data in each local epoch, by its options. Policies of nodes limit it.
    passes: Callable[[Any], int] = lambda _: 1
    #: The steps that its code takes before a model is evaluated (`Algorithm.adapt`), by its options; limited likewise.
    adapts: Callable[[Any], int] = lambda _: 0
    #: All sizes of steps along a gradient that its code takes, by its options and the step size of the order. Policies
    #: of nodes limit each of them.
    step_sizes: Callable[[Any, float], tuple[float, ...]] = lambda _options, rate: (rate,)
    #: Strength of a pull towards a fixed model, by its options. It shrinks what earlier steps have added.
    pull: Callable[[Any], float] = lambda _: 0.0
    #: The samples of each step that its code takes with a batch of so many samples; none if it leaves the batch out.
    parts: Callable[[int], tuple[int, ...]] = lambda samples: (samples,)
    #: Whether, by its options, a step on few samples outweighs the steps before it: the last of so many steps.
    outweighs: Callable[[Any, int], bool] = lambda _options, _steps: False


@dataclass(frozen=True, slots=True)
class FedProxOptions:
    """Options of training `fedprox`."""

    mu: float = setting(0.1, "strength of the pull towards the start model", least=0)


@dataclass(frozen=True, slots=True)
class FedMMDOptions:
    """Options of training `fedmmd`."""

    strength: float = setting(0.1, "strength of the discrepancy between the two models", name="lambda", least=0)
    of: str = setting(
        "logits",
        "what is compared: the models' outputs, or the inputs of the last dense layer",
        choices=("logits", "features"),
    )


@dataclass(frozen=True, slots=True)
class FedFusionOptions:
    """Options of training `fedfusion`."""

    operator: str = setting(
        "conv",
        "how global and local features become one: a 1x1 convolution, a weight per channel, or a single weight",
        choices=("conv", "multi", "single"),
    )
    evaluation: str = setting(
        "own",
        "what features are fused with in an evaluation: with themselves, or with those of the model that the trainers"
        " had received, which then travels too",
        choices=("own", "previous"),
    )


@dataclass(frozen=True, slots=True)
class FinetuneOptions:
    """Options of training `finetune`."""

    steps: int = setting(2, "steps on the client's own data before a model is evaluated", least=1)


@dataclass(frozen=True, slots=True)
class PerFedAvgOptions:
    """Options of training `per-fedavg`."""

    steps: int = setting(1, "steps on the client's own data before a model is evaluated", least=1)


@dataclass(frozen=True, slots=True)
class DittoOptions:
    """Options of training `ditto`."""

    pull: float = setting(1.0, "strength of the pull towards the shared model", name="lambda", least=0)


@dataclass(frozen=True, slots=True)
class PfedmeOptions:
    """Options of training `pfedme`."""

    pull: float = setting(1.0, "strength of the pull towards the shared model", name="lambda", least=0)
    personal_steps: int = setting(5, "steps of the personal model in each batch", least=1)
    personal_rate: float = setting(0.1, "step size of the personal model", least=0)


def _fusion(options: FedFusionOptions, features: TensorSpec, model: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...]:
    previous = enumerate(model if options.evaluation == "previous" else ())
    copies = tuple(
        TensorSpec(f"{PREVIOUS}{number}", spec.dtype, spec.shape, trainable=False) for number, spec in previous
    )
    (channels,), dtype = features.shape, features.dtype
    if options.operator == "conv":
        weight = TensorSpec("fusion_weight", dtype, (channels, 2 * channels))
        return weight, TensorSpec("fusion_bias", dtype, (channels,)), *copies
    return TensorSpec(GAMMA, dtype, (channels if options.operator == "multi" else 1,)), *copies


def _check_pull(training: str, rate: float, strength: float) -> None:
    if (pull := rate * strength) >= 2:
        raise ConfigError(
            f"the step size times the pull of training {training} is {pull:g}: from 2 on, training diverges",
            "lower --learning-rate, or mu, lambda or personal_rate of --training-option",
        )


def _mmd_outweighs(options: FedMMDOptions, steps: int) -> bool:
    """Whether the discrepancy of a batch may outweigh the steps before it; the first step of a training has none."""
    return options.strength > 1 or (options.strength > 0 and steps == 2)


def _halves(samples: int) -> tuple[int, ...]:
    return (samples // 2, samples - samples // 2) if samples >= SMALLEST_BATCH else ()


def _check_per_fedavg(_options: PerFedAvgOptions, _learning_rate: float, batch_size: int) -> None:
    ConfigError.require(
        batch_size >= SMALLEST_BATCH,
        f"--batch-size is {batch_size}, and training per-fedavg leaves out batches below {SMALLEST_BATCH}",
        "give a larger one",
    )


TRAININGS: Parts[Training] = Parts(
    "training",
    {
        "sgd": Training(help="plain SGD", code=f"{_HERE}.sgd:SGD", options=NoOptions),
        "own-head": Training(
            help="plain SGD; each client is evaluated with the head that it trained last",
            code=f"{_HERE}.sgd:SGD",
            keeps_head=True,
        ),
        "fedprox": Training(
            help="SGD with a pull towards the start model, from which the client trains",
            code=f"{_HERE}.fedprox:FEDPROX",
            options=FedProxOptions,
            check=lambda options, rate, _: _check_pull("fedprox", rate, options.mu),
            pull=lambda options: options.mu,
        ),
        "fedmmd": Training(
            help="SGD that keeps the outputs near those of the start model",
            code=f"{_HERE}.fedmmd:FEDMMD",
            options=FedMMDOptions,
            needs_of_task=lambda options: (ONE_OUTPUT,) if options.of == "logits" else (),
            outweighs=_mmd_outweighs,
        ),
        "fedfusion": Training(
            help="SGD on a model that fuses its features with those of the start model",
            code=f"{_HERE}.fedfusion:FEDFUSION",
            options=FedFusionOptions,
            adds=_fusion,
        ),
        "finetune": Training(
            help="SGD; a model is evaluated after some steps on the client's own data",
            code=f"{_HERE}.finetune:FINETUNE",
            options=FinetuneOptions,
            adapts=lambda options: options.steps,
        ),
        "per-fedavg": Training(
            help="towards a model from which one step on the client's own data leads to a good model",
            code=f"{_HERE}.per_fedavg:PER_FEDAVG",
            options=PerFedAvgOptions,
            check=_check_per_fedavg,
            parts=_halves,
            plain=True,
            needs={"optimizer": (AUTO, SGD)},
            adapts=lambda options: options.steps,
        ),
        "pfedme": Training(
            help="a personal model near the shared model, which moves towards the personal models",
            code=f"{_HERE}.pfedme:PFEDME",
            options=PfedmeOptions,
            keeps_personal=True,
            check=lambda options, rate, _: _check_pull("pfedme", max(rate, options.personal_rate), options.pull),
            plain=True,
            needs={"optimizer": (AUTO, SGD)},
            passes=lambda options: options.personal_steps,
            # The shared model moves by the learning rate times the pull. No pull shrinks steps: personal models begin
            # anew with each batch, at the shared model.
            step_sizes=lambda options, rate: (rate, options.personal_rate, rate * options.pull),
        ),
        "ditto": Training(
            help="SGD, and beside it a personal model with a pull towards the shared model",
            code=f"{_HERE}.ditto:DITTO",
            options=DittoOptions,
            keeps_personal=True,
            check=lambda options, rate, _: _check_pull("ditto", rate, options.pull),
            pull=lambda options: options.pull,
            passes=lambda _: 2,
        ),
    },
    Training,
)


def added(
    training: str, given: Mapping[str, str], features: TensorSpec | None, model: tuple[TensorSpec, ...] = ()
) -> tuple[TensorSpec, ...]:
    """The tensors that a training with these options adds to a model with these features and tensors.

    Without features, it adds none.
    """
    part = TRAININGS[training]
    if part.adds is None or features is None:
        return ()
    with part.guard():
        return part.adds(part.read(given), features, model)
