"""What a run adds to the model of the task: tensors of its training, and the state of its optimiser."""

from fedgsp.messages import Additions, TensorSpec
from fedgsp.optimizers import relayed_entries
from fedgsp.tensors.relayed_state import PREFIX, state_tensors
from fedgsp.trainings import added


def added_tensors(
    additions: Additions | None, model: tuple[TensorSpec, ...], features: TensorSpec | None
) -> tuple[TensorSpec, ...]:
    """The tensors that are added to a model with these tensors, whose features these are.

    Without features, a training adds none. Raises ConfigError for an unknown name or option, and for an optimiser
    whose state cannot travel.
    """
    if additions is None:
        return ()
    own = added(additions.training, additions.training_options, features, model) if additions.training else ()
    if not additions.optimizer:
        return own
    return (*own, *state_tensors(relayed_entries(additions.optimizer, additions.optimizer_options), (*model, *own)))


def clash(model: tuple[TensorSpec, ...], additions: tuple[TensorSpec, ...]) -> str:
    """The name of a tensor of the model that an addition has too, or that stands for a state; empty if none does."""
    taken = {spec.name for spec in additions}
    state = any(spec.name.startswith(PREFIX) for spec in additions)
    return next((s.name for s in model if s.name in taken or (state and s.name.startswith(PREFIX))), "")
