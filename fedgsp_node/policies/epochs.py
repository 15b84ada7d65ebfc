"""How much an order trains on a client's data: one measure for every kind of work that trains."""

from fedgsp.errors import UserError
from fedgsp.messages import Discriminate, DiscriminatorSettings, Evaluate, Train, TrainingSettings, Work
from fedgsp.trainings import TRAININGS


def epochs(work: Work | None, samples: int | None) -> int:
    """Passes over the client's training samples, rounded up; 0 if the work trains nothing.

    Steps are converted by their batches. `samples` is None for a client that the node does not host.
    """
    match work:
        case Train(settings=TrainingSettings() as settings):
            return settings.local_epochs * _declared(settings)[0]
        case Evaluate(settings=TrainingSettings() as settings, personalised=True, only_compare=False):
            return _passes(_declared(settings)[1], settings.batch_size, samples)
        case Discriminate(settings=DiscriminatorSettings() as settings) if work.produces:
            return _passes(settings.steps, settings.batch_size, samples)
    return 0


def is_training(work: Work | None) -> bool:
    """Whether the work trains a model of the run, also if only to evaluate it; networks that tell clients apart do not
    count.
    """
    return isinstance(work, Train) or (isinstance(work, Evaluate) and epochs(work, None) > 0)


def _declared(settings: TrainingSettings) -> tuple[int, int]:
    """Passes in each local epoch, and steps before an evaluation, as the declaration of the training says."""
    try:
        training = TRAININGS[settings.algorithm]
        with training.guard():
            options = training.read(settings.options)
            return training.passes(options), training.adapts(options)
    except UserError:
        return 1, 0  # the order fails later, by name


def _passes(steps: int, batch_size: int, samples: int | None) -> int:
    """Epochs that have so many steps, rounded up."""
    count = max(1, samples or 1)
    return -(-steps * max(1, min(batch_size, count)) // count)
