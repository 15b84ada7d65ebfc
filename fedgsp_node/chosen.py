"""What an order chooses: a training with its code and options, and how its steps are taken."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fedgsp.errors import UserError
from fedgsp.messages import Failure, FailureCode, TrainingSettings
from fedgsp.task import Task
from fedgsp.trainings import TRAININGS, Training
from fedgsp_node.kept.kept_tensors import arrays_of
from fedgsp_node.kept.personal_state import TENSORS, Arrays
from fedgsp_node.optimizers import Stepping, stepping
from fedgsp_node.order_error import OrderError, failing
from fedgsp_node.training.base import Algorithm, LocalWork, Result
from fedgsp_node.training.control import StoppedError
from fedgsp_node.users_code import T


@dataclass(frozen=True, slots=True)
class Chosen:
    """The training of an order: its declaration, code and options."""

    training: Training
    algorithm: Algorithm
    options: Any

    def run(self, step: Callable[[LocalWork], T], work: LocalWork) -> T:
        """Runs a function of the algorithm; an exception of outside code names its package."""
        with self.training.guard(StoppedError):
            return step(work)

    def train(self, work: LocalWork) -> Result:
        """Trains; TypeError, with the package of outside code, if the algorithm returns no loss and steps."""

        def checked(work: LocalWork) -> Result:
            found: Any = self.algorithm.train(work)
            try:
                loss, steps = found
                return Result(float(loss), float(steps))
            except (TypeError, ValueError, RuntimeError):  # the last for a tensor of several numbers
                what = f"it returned {type(found).__name__}, not a Result: the mean loss and the number of steps"
                raise TypeError(what) from None

        return self.run(checked, work)

    def left(self, work: LocalWork) -> dict[str, Arrays]:
        """What a training has left for the client's next one, by purpose; exceptions as those of the training."""

        def checked(work: LocalWork) -> Arrays:
            return arrays_of(work.kept, self.training.keeps_tensors)

        arrays = self.run(checked, work)
        return {TENSORS: arrays} if self.training.keeps_tensors else {}


def chosen(settings: TrainingSettings) -> Chosen:
    """The training of an order; raises OrderError for numbers or names that cannot be."""
    if not settings.batch_size or not settings.local_epochs:
        raise OrderError(
            Failure(
                FailureCode.BAD_ORDER,
                f"{settings.local_epochs} local epochs in batches of {settings.batch_size}: both count from 1",
            )
        )
    with failing(FailureCode.BAD_ORDER, UserError):
        training = TRAININGS[settings.algorithm]
        return Chosen(training, training.load(), training.read(settings.options))


def chosen_stepping(settings: TrainingSettings, task: Task) -> Stepping:
    """How the steps of an order are taken; raises OrderError for options that cannot be."""
    with failing(FailureCode.BAD_ORDER, UserError):
        return stepping(settings.optimizer, task)
