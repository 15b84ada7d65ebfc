"""What a training of a client leaves."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from fedgsp.messages import Failure, FailureCode
from fedgsp.tensors.weights import Weights, WeightsError, check_finite
from fedgsp_node.kept.personal_state import Arrays
from fedgsp_node.order_error import OrderError
from fedgsp_node.training.base import NoLoss


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


def check_trained(client: int, no_loss: NoLoss | None, *models: Weights | None) -> None:
    """Raises OrderError if the training of a client has made values of a model that are not finite."""
    try:
        for model in models:
            if model is not None:
                check_finite(model)
    except WeightsError as error:
        why, remedy = error.failure.detail, "lower --learning-rate"
        if no_loss is not None and no_loss.before is None:
            why = f"the loss of its first batch is {no_loss.loss}"
            remedy = (
                "look for such values in its samples, and for a division by zero in the task's loss(); if the losses"
                " of earlier rounds grew, lower --learning-rate"
            )
        elif no_loss is not None:
            why += f"; batch {no_loss.batch} has the loss {no_loss.loss}, and the one before {no_loss.before:.4g}"
            remedy = f"{remedy}, or look for samples of which the task's loss() makes no number"
        raise OrderError(
            Failure(FailureCode.DIVERGED, f"client {client}'s training diverged ({why}): {remedy}")
        ) from error
