"""What a training of a client leaves."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from fedgsp.messages import Failure, FailureCode
from fedgsp.weights import Weights, WeightsError, check_finite
from fedgsp_node.order_error import OrderError
from fedgsp_node.personal_state import Arrays


@dataclass(frozen=True, slots=True)
class Learned:
    """The result of one client's training: whole model before and after, mean loss, seconds, local steps (FedNova)."""

    before: Weights
    after: Weights
    loss: float
    seconds: float
    steps: float
    #: What the client keeps beside its head, by purpose: its personal model, the state of its optimisers, and tensors
    #: of the training. None of it travels.
    keeps: Mapping[str, Arrays] = field(default_factory=dict)
    #: Whether the client had no head, personal model or state to start from, although it keeps one.
    afresh: bool = False
    #: Whether the client keeps its head although the head also travels.
    keeps_head: bool = False


def check_trained(client: int, *models: Weights | None) -> None:
    """Raises OrderError if the training of a client has made values of a model that are not finite."""
    try:
        for model in models:
            if model is not None:
                check_finite(model)
    except WeightsError as error:
        raise OrderError(
            Failure(
                FailureCode.DIVERGED,
                f"client {client}'s training diverged ({error.failure.detail}): lower --learning-rate",
            )
        ) from error
