"""How a client takes its steps: the optimisers of torch with the options of FedGSP, and the plan of an order."""

import contextlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from fedgsp import schedules
from fedgsp.errors import ConfigError, TaskError
from fedgsp.messages import OptimizerSettings
from fedgsp.optimizers import AUTO, OPTIMIZERS, SGD, Optimizer, SgdOptions
from fedgsp.options import suggestion
from fedgsp.settings.fields import values_of
from fedgsp.task import Task, overrides
from fedgsp_node.kept.optimizer_state import parameters_of
from fedgsp_node.training.factored import large

#: Makes an optimiser of trainable parameters and a step size.
Make = Callable[[list[torch.nn.Parameter], float], torch.optim.Optimizer]
#: Of a step that shows whether an optimiser changes parameters at all: large enough for bfloat16.
_TRIED_RATE = 0.01


def _like(
    kind: type[torch.optim.Optimizer], pairs: dict[str, tuple[str, str]] | None = None, fused: bool = False
) -> Callable[[list[torch.nn.Parameter], float, Any], torch.optim.Optimizer]:
    """An optimiser of torch; `pairs` are its arguments that take two options, such as betas.

    With a large parameter it is torch's fused one, if `fused` allows it: last bits may differ from the usual one.
    """

    def make(parameters: list[torch.nn.Parameter], learning_rate: float, options: Any) -> torch.optim.Optimizer:
        given = values_of(options)
        for name, two in (pairs or {}).items():
            given[name] = tuple(given.pop(option) for option in two)
        if fused and any(map(large, parameters)):
            # One pass over memory, without temporary tensors of the size of a parameter.
            given["fused"] = True
        return kind(parameters, lr=learning_rate, **given)  # type: ignore[call-arg]

    return make


_BETAS = {"betas": ("beta1", "beta2")}
# torch's fused SGD takes memory that nobody has filled as momentum when its first gradient is infinite (float16), and
# it raises when a parameter gets its first gradient later than another one.
sgd = _like(torch.optim.SGD)
adam = _like(torch.optim.Adam, _BETAS, fused=True)
adamw = _like(torch.optim.AdamW, _BETAS, fused=True)
nadam = _like(torch.optim.NAdam, _BETAS)
radam = _like(torch.optim.RAdam, _BETAS)
adamax = _like(torch.optim.Adamax, _BETAS)
adagrad = _like(torch.optim.Adagrad)
adadelta = _like(torch.optim.Adadelta)
adafactor = _like(torch.optim.Adafactor)
rmsprop = _like(torch.optim.RMSprop)
asgd = _like(torch.optim.ASGD)
rprop = _like(torch.optim.Rprop, {"etas": ("eta_minus", "eta_plus"), "step_sizes": ("least_step", "most_step")})


_PRECISIONS = {"": None, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, slots=True)
class Stepping:
    """How the steps of a training are taken. With the defaults: plain SGD with a constant step size."""

    #: None: SGD.
    make: Make | None = None
    #: Of SGD; they also say how much each gradient counts in an update (FedNova).
    sgd: SgdOptions = field(default_factory=SgdOptions)
    schedule: schedules.Plan | None = None
    #: A longer gradient is shortened to this length; 0: none is.
    clip_norm: float = 0.0
    #: Batches whose mean gradient makes one step.
    accumulate: int = 1
    #: Dtype in which the model and the loss are computed; None: that of the weights.
    precision: torch.dtype | None = None

    @property
    def plain(self) -> bool:
        """Whether each step only adds the gradient of one batch, times the step size."""
        usual = not self.clip_norm and self.accumulate == 1 and self.precision is None
        return usual and self.make is None and self.sgd == SgdOptions()

    def autocast(self, device: torch.device) -> contextlib.AbstractContextManager[Any]:
        """Inside the context, models and losses on this device are computed in `precision`.

        Every model that a training computes needs it: results of two precisions differ even for equal models.
        """
        return torch.autocast(device.type, self.precision) if self.precision is not None else contextlib.nullcontext()

    def optimizer(self, parameters: list[torch.nn.Parameter], learning_rate: float) -> torch.optim.Optimizer:
        """A fresh optimiser of these parameters. TaskError if the task's own optimizer() returns something else."""
        return self.make(parameters, learning_rate) if self.make else sgd(parameters, learning_rate, self.sgd)


def has_own(task: Task) -> bool:
    """Whether a task has an optimiser of its own."""
    return overrides(task, "optimizer")


def _needs_closure(optimizer: torch.optim.Optimizer) -> bool:
    return any(
        one.default is one.empty and one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)
        for one in inspect.signature(optimizer.step).parameters.values()
    )


def _fault(
    found: torch.optim.Optimizer,
    make: Callable[[list[torch.nn.Parameter], float], Any],
    given: list[torch.nn.Parameter],
) -> str | None:
    """Why an optimiser that `make` has made trains none of the `given` parameters, in words; None if it trains any."""
    stepped, known = list(parameters_of(found)), {id(parameter) for parameter in given}
    if any(id(parameter) in known for parameter in stepped) or _changes_some(make, given):
        return None
    if not stepped:
        return "steps no parameter"
    return f"steps a parameter of shape {tuple(stepped[0].shape)} that is not the model's"


def _changes_some(make: Callable[[list[torch.nn.Parameter], float], Any], given: list[torch.nn.Parameter]) -> bool:
    """Whether a step changes a parameter: an optimiser may step copies (in float32), or others may step for it."""
    copies = [torch.nn.Parameter(parameter.detach().clone()) for parameter in given]
    tried = make(copies, _TRIED_RATE)
    for copy in copies:
        copy.grad = torch.ones_like(copy)
    tried.step()
    return not all(map(torch.equal, copies, given))


def own(task: Task) -> Make:
    """The optimiser of a task that has one."""

    def make(parameters: list[torch.nn.Parameter], learning_rate: float) -> torch.optim.Optimizer:
        found: Any = task.optimizer(parameters, learning_rate)
        if not isinstance(found, torch.optim.Optimizer):
            raise TaskError(
                f"the task's optimizer() returned {type(found).__name__}",
                "return a torch.optim.Optimizer, or remove it",
            )
        if _needs_closure(found):
            raise TaskError(
                f"the task's optimizer() returned {type(found).__name__}, which computes several gradients in a step",
                "return an optimiser whose step() needs no closure",
            )
        if fault := _fault(found, task.optimizer, parameters):
            raise TaskError(
                f"the task's optimizer() returned {type(found).__name__}, which {fault}",
                "give the optimiser the parameters that optimizer() gets",
            )
        return found

    return make


def stepping(settings: OptimizerSettings | None, task: Task) -> Stepping:
    """What an order says about the steps; raises ConfigError for an unknown name or a wrong option."""
    settings = settings or OptimizerSettings(AUTO)
    if not 0 <= settings.clip_norm < float("inf"):
        raise ConfigError(f"gradients cannot be shortened to {settings.clip_norm}", "give a length of at least 0")
    if settings.precision not in _PRECISIONS:
        raise ConfigError(f"there is no precision {settings.precision!r}", suggestion(settings.precision, _PRECISIONS))
    part = OPTIMIZERS[settings.name]
    options = part.read(settings.options)
    make: Make | None = None
    if settings.name == AUTO:
        make = own(task) if has_own(task) else None
    elif settings.name != SGD:
        make = partial(_guarded, part, options)
    return Stepping(
        make,
        options if isinstance(options, SgdOptions) else SgdOptions(),
        schedules.plan(settings.schedule, settings.schedule_options) if settings.schedule else None,
        settings.clip_norm,
        max(1, settings.accumulate),
        _PRECISIONS[settings.precision],
    )


def _guarded(
    part: Optimizer, options: Any, parameters: list[torch.nn.Parameter], learning_rate: float
) -> torch.optim.Optimizer:
    with part.guard():
        code = part.load()
        found: torch.optim.Optimizer = code(parameters, learning_rate, options)
        if not isinstance(found, torch.optim.Optimizer):
            raise TypeError(f"its code returned {type(found).__name__}, not a torch.optim.Optimizer")
        if fault := _fault(found, lambda given, rate: code(given, rate, options), parameters):
            raise TypeError(f"its code returned {type(found).__name__}, which {fault}")
        return found
