"""On how few samples a step of an order stands alone: what `least_batch_size` of a policy limits.

The last batch of an epoch has the samples that are left over, perhaps a single one. Steps on other samples are added
to its step, and hide it. It stands alone if the settings of the order leave less than half of the step before it,
compared with its own: then its gradient can be read from the result.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from fedgsp import schedules, shares
from fedgsp.errors import UserError
from fedgsp.messages import Discriminate, Evaluate, OptimizerSettings, Order, Train
from fedgsp.optimizers import AUTO, FRESH, RELAYED, SGD
from fedgsp.settings.fields import values_of
from fedgsp_node.policies.ordered import Ordered, ordered

#: A step stands alone if less than this share of the step before it is left.
LEAST_LEFT = 0.5
#: The same with the growth of the step size. The second step of a warm-up has twice the size of the first, and a usual
#: weight decay beside it is no reason to refuse.
LEAST_LEFT_GROWN = 0.49
#: Most ends of epochs that are looked at. Step sizes of built-in schedules grow less, the later it is.
MOST_ENDS = 1000


@dataclass(frozen=True, slots=True)
class Course:
    """The batches of a training on one client's data, and the steps that are taken with them."""

    samples: int
    batch_size: int
    #: Batches of all epochs.
    batches: int
    accumulate: int = 1
    #: Whether a short last batch is left out.
    drop_last: bool = False

    @property
    def left_over(self) -> int:
        """Samples of the short last batch of an epoch; 0 without one, and if it is the only batch."""
        return 0 if self.drop_last or self.samples <= self.batch_size else self.samples % self.batch_size

    @property
    def steps(self) -> int:
        """Number of steps."""
        return -(-self.batches // self.accumulate)

    def short(self) -> range:
        """The numbers, from 1, of the steps on a short batch without a full one beside it; none is the first step."""
        if not self.left_over:
            return range(0)
        in_epoch = self.samples // self.batch_size + 1
        if self.accumulate == 1:
            return range(in_epoch, self.batches + 1, in_epoch)
        # Several batches make one step, but for the last step, which takes what is left over.
        alone = self.batches % self.accumulate == 1 and self.batches % in_epoch == 0
        return range(self.steps, self.steps + 1) if alone else range(0)


def batches_of_epochs(samples: int, batch_size: int, epochs: int, drop_last: bool) -> int:
    """Number of batches in so many epochs."""
    whole = drop_last and samples > batch_size
    return epochs * (samples // batch_size if whole else -(-samples // batch_size))


class Least(NamedTuple):
    """The fewest samples on which an order takes a step of which the result tells, and whether it is a short step."""

    samples: int
    short: bool


def least_step(order: Order, samples: int | None, drop_last: bool = False) -> Least | None:
    """The smallest step of an order: on a full batch, or on fewer samples if it stands alone. None without a step.

    `samples` is the number of training samples of the client; None if the node does not host it.
    """
    work = order.work
    if isinstance(work, Discriminate):
        settings = work.settings
        return Least(min(settings.batch_size, settings.samples, _many(samples)), False) if settings else None
    if not isinstance(work, Train | Evaluate) or (isinstance(work, Evaluate) and not work.personalised):
        return None
    if work.settings is None:
        return None
    full = min(work.settings.batch_size, _many(samples))
    how = ordered(work.settings)
    if how is None or full < 1:
        return Least(full, False)  # the order fails later, by name
    trains = isinstance(work, Train)
    # Before an evaluation, each batch is a step of its own.
    parts = how.training.parts if trains else (lambda batch: (batch,))
    whole = Least(min(parts(full), default=full), False)
    if samples is None:
        return whole
    if trains:
        epochs = work.settings.local_epochs
        batches = batches_of_epochs(samples, full, epochs, drop_last)
        course = Course(samples, full, batches, max(1, how.asked.accumulate), drop_last)
    else:
        course = Course(samples, full, how.training.adapts(how.options), 1, drop_last)
    short = min(parts(course.left_over), default=whole.samples)
    if short < whole.samples and _stands_alone(course, how, work.settings.learning_rate, trains):
        return Least(short, True)
    return whole


def _many(samples: int | None) -> int:
    return 2**32 if samples is None else samples


def _stands_alone(course: Course, how: Ordered, rate: float, trains: bool) -> bool:
    """Whether a short step outweighs the step before it by the settings of the order."""
    short = course.short()
    if not short:
        return False
    if trains and (how.training.outweighs(how.options, course.steps) or not _as_defined(how)):
        return True
    return any(not enough for enough in _enough_left(course, how, rate, islice(short, MOST_ENDS), trains))


def _as_defined(how: Ordered) -> bool:
    """Whether a training that is defined by plain steps has them. Other steps are refused before a run begins."""
    asked = how.asked
    usual = OptimizerSettings(asked.name, asked.options, accumulate=asked.accumulate)
    plain = asked.name in (AUTO, SGD) and asked == usual and asked.accumulate <= 1
    return not how.training.plain or (plain and not any(values_of(how.own).values()))


def _enough_left(course: Course, how: Ordered, rate: float, short: Iterator[int], trains: bool) -> Iterator[bool]:
    """For each of these steps, whether enough is left of the step before it."""
    asked, optimizer = how.asked, how.optimizer
    state = (asked.state if trains else "") or FRESH
    pull = how.training.pull(how.options) if trains else 0.0
    for number in short:
        before, factor = _factors(asked, number, course.steps) if trains and asked.schedule else (1.0, 1.0)
        taken = shares.Taken(rate * factor, pull, number, state == FRESH, state == RELAYED)
        try:
            with optimizer.guard():
                left = optimizer.left(how.own, taken)
        except UserError:  # code of another package, which cannot tell
            left = 0.0
        yield left >= LEAST_LEFT and left * before / factor >= LEAST_LEFT_GROWN


def _factors(asked: OptimizerSettings, number: int, steps: int) -> tuple[float, float]:
    """The factors on the size of the step before, and of this step; 1 if the order fails later, by name."""
    try:
        plan = schedules.plan(asked.schedule, asked.schedule_options)
        return plan.factor(number - 2, steps), plan.factor(number - 1, steps)
    except UserError:
        return 1.0, 1.0
