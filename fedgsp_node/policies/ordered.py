"""The training and the optimiser that the settings of an order choose, with their options."""

from typing import Any, NamedTuple

from fedgsp.errors import UserError
from fedgsp.messages import OptimizerSettings, TrainingSettings
from fedgsp.optimizers import AUTO, OPTIMIZERS, Optimizer
from fedgsp.trainings import TRAININGS, Training


class Ordered(NamedTuple):
    """What the settings of an order choose."""

    training: Training
    #: Of the training.
    options: Any
    #: As the order says it.
    asked: OptimizerSettings
    optimizer: Optimizer
    #: Options of the optimiser.
    own: Any


def ordered(settings: TrainingSettings) -> Ordered | None:
    """None for names and options that no part has: such an order fails later, by name."""
    asked = settings.optimizer or OptimizerSettings(AUTO)
    try:
        training, optimizer = TRAININGS[settings.algorithm], OPTIMIZERS[asked.name]
        with training.guard(), optimizer.guard():
            return Ordered(training, training.read(settings.options), asked, optimizer, optimizer.read(asked.options))
    except UserError:
        return None
