"""How much of a step is left after the next one, by the settings of an order; policies of nodes ask for it.

Each step adds a gradient to the model. Weight decay, a pull towards a fixed model and some options of optimisers
shrink what earlier steps have added, compared with what the next step adds. If little is left, the last step of a
training stands alone in its result. The functions take the options of an optimiser and a `Taken`; 1 says that as much
is left of a step as the next one adds, 0 or less that nothing is.
"""

import math
from typing import Any, NamedTuple

#: An optimiser that divides by the size of gradients takes longer steps than its step size says. The size is that of
#: the gradients, of which this is a usual one, or the number that is added to it (`eps`), if that is chosen larger.
USUAL_GRADIENT, SMALL = 0.01, 1e-6
#: RAdam divides from the first step on for which this measure is above 5, and takes plain steps before.
_RECTIFIED = 5.0


class Taken(NamedTuple):
    """A step of a training, as its order and its number say."""

    #: With the factor of the schedule.
    rate: float
    #: Strength of a pull towards a fixed model, which the training adds to the gradient.
    pull: float = 0.0
    #: From 1.
    number: int = 2
    #: Whether the optimiser of the training begins without state; otherwise whether its state came with the model.
    fresh: bool = True
    relayed: bool = False


def plain(options: Any, step: Taken) -> float:
    """For steps that add the gradient times the step size, with or without momentum."""
    decay = step.pull + getattr(options, "weight_decay", 0.0)
    # Nesterov's momentum takes a gradient, and with it what decays, once more in the same step.
    ahead = 1 + options.momentum if getattr(options, "nesterov", False) else 1.0
    return 1 - ahead * step.rate * decay


def averaged(options: Any, step: Taken) -> float:
    """For ASGD, whose `lambd` is a weight decay too. A state says how long the first step is, so it must be fresh."""
    return 1 - step.rate * (step.pull + options.weight_decay + options.lambd) if step.fresh else 0.0


def adam(options: Any, step: Taken, decoupled: bool = False) -> float:
    """For Adam and others that divide by the root of a mean square, of which `beta2` stays from step to step."""
    return min(_scaled(options, step, options.eps, decoupled), _remembered(options.beta2, step))


def adamw(options: Any, step: Taken) -> float:
    """For AdamW."""
    return adam(options, step, decoupled=True)


def nadam(options: Any, step: Taken) -> float:
    """For NAdam, whose relayed state says by what steps are divided."""
    return 0.0 if step.relayed else adam(options, step, options.decoupled_weight_decay)


def radam(options: Any, step: Taken) -> float:
    """For RAdam, which begins to divide by gradients at one step: this step may be longer than all before.

    With a state, each step may be this one.
    """
    jumps = step.number == first_rectified(options.beta2) if step.fresh else options.beta2 > 2 / 3
    return 0.0 if jumps else adam(options, step, options.decoupled_weight_decay)


def first_rectified(beta2: float) -> int:
    """The first step that RAdam divides by gradients; 0 if it divides none."""
    most = 2 / (1 - beta2) - 1
    for number in range(1, 100):  # it is step 6 for a `beta2` near 1, and later for a smaller one
        if most - 2 * number * beta2**number / (1 - beta2**number) > _RECTIFIED:
            return number
    return 0


def adamax(options: Any, step: Taken) -> float:
    """For Adamax, which divides by the largest gradient, of which `beta2` stays."""
    return min(_scaled(options, step, options.eps), _remembered(options.beta2**2, step))


def adagrad(options: Any, step: Taken) -> float:
    """For Adagrad, which divides by the root of a sum."""
    return _scaled(options, step, max(options.eps, math.sqrt(options.initial_accumulator_value)))


def adadelta(options: Any, step: Taken) -> float:
    """For Adadelta: its steps are at most as long as plain ones."""
    return min(plain(options, step), _remembered(options.rho, step))


def adafactor(options: Any, step: Taken) -> float:
    """For Adafactor: of its mean squares, 1 - t^beta2_decay stays at step t; with 0 it has none."""
    stays = 1 - 2.0**options.beta2_decay if options.beta2_decay else 1.0
    return min(_scaled(options, step, 0.0, decoupled=True), _remembered(stays, step))


def rmsprop(options: Any, step: Taken) -> float:
    """For RMSprop, which divides by the root of a mean square, of which `alpha` stays."""
    return min(_scaled(options, step, options.eps), _remembered(options.alpha, step))


def rprop(options: Any, step: Taken) -> float:
    """For Rprop, whose steps grow by `eta_plus`. A relayed state says which weights the first step leaves out."""
    return 0.0 if step.relayed else min(1 / options.eta_plus, 1 - step.rate * step.pull / USUAL_GRADIENT)


def _scaled(options: Any, step: Taken, added: float, decoupled: bool = False) -> float:
    """After weight decay and pulls, if gradients are divided by their size plus `added`."""
    size = added if added > SMALL else USUAL_GRADIENT
    divided, whole = (0.0, options.weight_decay) if decoupled else (options.weight_decay, 0.0)
    return 1 - step.rate * (whole + (divided + step.pull) / size)


def _remembered(stays: float, step: Taken) -> float:
    """After a step divides by the root of mean squares of which the share `stays` is that of the step before.

    A state with a huge mean square makes the first steps short. A fresh one does not.
    """
    return 1.0 if step.fresh else math.sqrt(stays)
