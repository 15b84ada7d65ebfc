"""Optimisers: how a client turns gradients into steps.

The table is shared by the top server, which names an optimiser, and by nodes, which import its code and with it torch.
Options have the names and defaults of `torch.optim`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fedgsp import shares
from fedgsp.errors import ConfigError
from fedgsp.parts import Part, Parts
from fedgsp.settings.fields import setting
from fedgsp.tensors.relayed_state import STEP, StateEntries

#: The choice that leaves it to the task.
AUTO = "auto"
#: Plain SGD without options has a faster path of its own.
SGD = "sgd"
#: Where the optimiser of a training begins: without state, from the state that the client's last training has left on
#: the node, or from the state that came with the model.
FRESH, KEPT, RELAYED = "fresh", "kept", "relayed"
_HERE = "fedgsp_node.optimizers"


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimizer(Part):
    """The declaration of an optimiser.

    Its `code` is a function `(parameters, learning_rate, options) -> torch.optim.Optimizer`, called for each training
    with the list of all trainable parameters. Its `step()` is called without a closure, after each backward pass.
    """

    #: The entries of its state, by its options; None if there are others than `StateEntries` can say. Then the state
    #: cannot travel with the model.
    state: Callable[[Any], StateEntries | None] = lambda _: None
    #: How much of a step is left after the next one, by its options (`fedgsp.shares`). Policies of nodes ask.
    left: Callable[[Any, shares.Taken], float] = shares.plain
    #: The step sizes that its code takes, by its options and that of the order. Policies of nodes limit them.
    step_sizes: Callable[[Any, float], tuple[float, ...]] = lambda _options, rate: (rate,)


@dataclass(frozen=True, slots=True)
class _Decay:
    weight_decay: float = setting(0.0, "strength of the pull of all weights towards 0", least=0)


@dataclass(frozen=True, slots=True)
class SgdOptions(_Decay):
    """Options of optimiser `sgd`."""

    momentum: float = setting(0.0, "share of the last step that is taken again", least=0, below=1)
    dampening: float = setting(0.0, "share of a gradient that does not enter the momentum", least=0, most=1)
    nesterov: bool = setting(False, "Nesterov's momentum")

    def __post_init__(self) -> None:
        if self.nesterov and not (self.momentum and not self.dampening):
            raise ValueError("nesterov needs momentum, and no dampening")


def _beta(default: float, help: str) -> float:
    found: float = setting(default, help, least=0, below=1)
    return found


_FIRST, _SECOND = "share of the mean gradient that stays in each step", "share of the mean square that stays"
_EPS = "is added to the root of the mean square"


@dataclass(frozen=True, slots=True)
class AdamaxOptions(_Decay):
    """Options of optimiser `adamax`."""

    beta1: float = _beta(0.9, _FIRST)
    beta2: float = _beta(0.999, _SECOND)
    eps: float = setting(1e-8, _EPS, least=0)


@dataclass(frozen=True, slots=True)
class AdamOptions(AdamaxOptions):
    """Options of optimiser `adam`."""

    amsgrad: bool = setting(False, "divide by the largest mean square so far")


@dataclass(frozen=True, slots=True)
class AdamWOptions(AdamOptions):
    """Options of optimiser `adamw`."""

    weight_decay: float = setting(
        0.01, "share of all weights, times the step size, that each step takes away", least=0
    )


@dataclass(frozen=True, slots=True)
class RAdamOptions(AdamaxOptions):
    """Options of optimiser `radam`."""

    decoupled_weight_decay: bool = setting(False, "weight decay as in adamw")


@dataclass(frozen=True, slots=True)
class NAdamOptions(RAdamOptions):
    """Options of optimiser `nadam`."""

    momentum_decay: float = setting(0.004, "how fast the momentum grows to its final value", least=0)


@dataclass(frozen=True, slots=True)
class AdagradOptions(_Decay):
    """Options of optimiser `adagrad`."""

    lr_decay: float = setting(0.0, "how fast the step size falls from step to step", least=0)
    initial_accumulator_value: float = setting(0.0, "the sum of squares before the first step", least=0)
    eps: float = setting(1e-10, _EPS, least=0)


@dataclass(frozen=True, slots=True)
class AdadeltaOptions(_Decay):
    """Options of optimiser `adadelta`."""

    rho: float = setting(0.9, _SECOND, least=0, most=1)
    eps: float = setting(1e-6, _EPS, least=0)


@dataclass(frozen=True, slots=True)
class AdafactorOptions(_Decay):
    """Options of optimiser `adafactor`."""

    beta2_decay: float = setting(-0.8, "how the share of the mean square that stays grows", most=0)
    d: float = setting(1.0, "longest update, in root mean squares", least=1)


@dataclass(frozen=True, slots=True)
class RMSpropOptions(_Decay):
    """Options of optimiser `rmsprop`."""

    alpha: float = setting(0.99, _SECOND, least=0, most=1)
    eps: float = setting(1e-8, _EPS, least=0)
    momentum: float = setting(0.0, "share of the last step that is taken again", least=0)
    centered: bool = setting(False, "divide by the standard deviation in place of the mean square")


@dataclass(frozen=True, slots=True)
class ASGDOptions(_Decay):
    """Options of optimiser `asgd`."""

    lambd: float = setting(1e-4, "how fast the step size falls", least=0)
    alpha: float = setting(0.75, "power by which the step size falls", least=0)
    t0: float = setting(1e6, "step from which weights are averaged", least=0)


@dataclass(frozen=True, slots=True)
class RpropOptions:
    """Options of optimiser `rprop`."""

    eta_minus: float = setting(
        0.5, "factor on the step of a weight whose gradient has changed its sign", above=0, below=1
    )
    eta_plus: float = setting(1.2, "factor on the step of a weight whose gradient has kept its sign", above=1)
    least_step: float = setting(1e-6, "smallest step of a weight", least=0)
    most_step: float = setting(50.0, "largest step of a weight", above=0)


def _entries(*alike: str, numbers: tuple[str, ...] = (STEP,)) -> Callable[[Any], StateEntries]:
    return lambda _: StateEntries(alike, numbers)


def _of_sgd(options: SgdOptions) -> StateEntries:
    return StateEntries(("momentum_buffer",) if options.momentum else ())


def _of_adam(options: AdamOptions) -> StateEntries:
    return StateEntries(("exp_avg", "exp_avg_sq", *(("max_exp_avg_sq",) if options.amsgrad else ())), (STEP,))


def _of_rmsprop(options: RMSpropOptions) -> StateEntries:
    momentum, mean = ("momentum_buffer",) if options.momentum else (), ("grad_avg",) if options.centered else ()
    return StateEntries(("square_avg", *momentum, *mean), (STEP,))


OPTIMIZERS: Parts[Optimizer] = Parts(
    "optimizer",
    {
        AUTO: Optimizer(
            help="what the task's method optimizer() returns; plain SGD if it has none", code=f"{_HERE}:sgd"
        ),
        SGD: Optimizer(
            help="SGD, without momentum by default", code=f"{_HERE}:sgd", options=SgdOptions, state=_of_sgd
        ),
        "adam": Optimizer(
            help="Adam",
            code=f"{_HERE}:adam",
            options=AdamOptions,
            left=shares.adam,
            state=_of_adam,
        ),
        "adamw": Optimizer(
            help="Adam with decoupled weight decay",
            code=f"{_HERE}:adamw",
            options=AdamWOptions,
            left=shares.adamw,
            state=_of_adam,
        ),
        "nadam": Optimizer(
            help="Adam with Nesterov's momentum",
            code=f"{_HERE}:nadam",
            options=NAdamOptions,
            left=shares.nadam,
            state=_entries(
                "exp_avg",
                "exp_avg_sq",
                numbers=(STEP, "mu_product"),
            ),
        ),
        "radam": Optimizer(
            help="Adam with a rectified start",
            code=f"{_HERE}:radam",
            options=RAdamOptions,
            left=shares.radam,
            state=_entries("exp_avg", "exp_avg_sq"),
        ),
        "adamax": Optimizer(
            help="Adam with the maximum norm",
            code=f"{_HERE}:adamax",
            options=AdamaxOptions,
            left=shares.adamax,
            state=_entries("exp_avg", "exp_inf"),
        ),
        "adagrad": Optimizer(
            help="Adagrad",
            code=f"{_HERE}:adagrad",
            options=AdagradOptions,
            left=shares.adagrad,
            state=_entries("sum"),
        ),
        "adadelta": Optimizer(
            help="Adadelta",
            code=f"{_HERE}:adadelta",
            options=AdadeltaOptions,
            left=shares.adadelta,
            state=_entries("square_avg", "acc_delta"),
        ),
        "adafactor": Optimizer(
            help="Adafactor, whose mean squares have the size of a row and a column of each matrix",
            code=f"{_HERE}:adafactor",
            options=AdafactorOptions,
            left=shares.adafactor,
        ),
        "rmsprop": Optimizer(
            help="RMSprop",
            code=f"{_HERE}:rmsprop",
            options=RMSpropOptions,
            left=shares.rmsprop,
            state=_of_rmsprop,
        ),
        "asgd": Optimizer(
            help="SGD whose step size falls",
            code=f"{_HERE}:asgd",
            options=ASGDOptions,
            left=shares.averaged,
            state=_entries(
                "ax",
                numbers=(STEP, "eta", "mu"),
            ),
        ),
        "rprop": Optimizer(
            help="Rprop, for full batches",
            code=f"{_HERE}:rprop",
            options=RpropOptions,
            left=shares.rprop,
            step_sizes=lambda options, rate: (max(rate, options.least_step),),
            state=_entries("prev", "step_size"),
        ),
    },
    Optimizer,
)


def relayed_entries(name: str, given: Mapping[str, str]) -> StateEntries:
    """The entries of the state of an optimiser with these options. ConfigError if the state cannot travel."""
    part = OPTIMIZERS[name]
    with part.guard():
        entries = part.state(part.read(given))
    if entries is None:
        raise ConfigError(f"the state of {part} cannot travel with the model", "give --optimizer-state kept or fresh")
    return entries
