"""All step sizes of an order, which a policy limits."""

from fedgsp.errors import UserError
from fedgsp.messages import DiscriminatorSettings, TrainingSettings
from fedgsp_node.policies.ordered import ordered


def step_sizes(settings: TrainingSettings | DiscriminatorSettings) -> tuple[float, ...]:
    """Every step size that the settings name, as the declarations of training and optimiser say.

    Factors of schedules are at most 1.
    """
    rate = settings.learning_rate
    if isinstance(settings, DiscriminatorSettings):
        # Gradients grow with the features too.
        return rate, rate * max(1.0, settings.feature_scale)
    how = ordered(settings)
    if how is None:
        return (rate,)
    try:
        with how.training.guard(), how.optimizer.guard():
            found = how.training.step_sizes(how.options, rate)
            return rate, *(size for one in found for size in how.optimizer.step_sizes(how.own, one))
    except UserError:
        return (rate,)  # code of another package, which cannot tell
