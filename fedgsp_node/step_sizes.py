"""All step sizes of an order, which a policy limits."""

from fedgsp.errors import UserError
from fedgsp.messages import DiscriminatorSettings, TrainingSettings
from fedgsp.optimizers import AUTO, OPTIMIZERS
from fedgsp.trainings import TRAININGS


def step_sizes(settings: TrainingSettings | DiscriminatorSettings) -> tuple[float, ...]:
    """Every step size that the settings name, as the declarations of training and optimiser say.

    Factors of schedules are at most 1.
    """
    rate = settings.learning_rate
    if isinstance(settings, DiscriminatorSettings):
        # Gradients grow with the features too.
        return rate, rate * max(1.0, settings.feature_scale)
    try:
        training, optimizer = TRAININGS[settings.algorithm], OPTIMIZERS[_name(settings)]
        with training.guard(), optimizer.guard():
            given = settings.optimizer.options if settings.optimizer is not None else {}
            own = optimizer.read(given)
            found = training.step_sizes(training.read(settings.options), rate)
            return rate, *(size for one in found for size in optimizer.step_sizes(own, one))
    except UserError:
        return (rate,)  # the order fails later, by name


def _name(settings: TrainingSettings) -> str:
    return settings.optimizer.name if settings.optimizer is not None else AUTO
