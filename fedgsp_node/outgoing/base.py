"""The protocol of outgoing steps: the function `Take`, and its input `Outgoing`."""

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from fedgsp.tensors.weights import Weights


@dataclass(frozen=True, slots=True)
class Outgoing:
    """The input of an outgoing step: a trained model before it leaves its node, and what the step may use."""

    client: int
    round: int
    #: The model as the step before left it. Only this step has it: the step may return `model.to_change()`, changed in
    #: place, or new weights.
    model: Weights
    #: The same tensors of the model that the training started from, if the step declares `needs_start`. The step must
    #: not change it.
    start: Weights | None
    #: Randomness that everybody may know: it follows from the run's seed, the step, the round and the client.
    rng: np.random.Generator
    #: 32 bytes that only this node can compute, if the step declares `repeatable=False`; otherwise empty. They follow
    #: from the node's secret and from all that the step is given, options included: if anything differs, they differ.
    secret: bytes


class Take(Protocol):
    """The protocol of an outgoing step: a pure function from a model to the model that is passed on.

    A node calls it in a thread, once for each training, unless the training failed. It calls one step after the other,
    while other clients may train. The same argument must give the same bits: all randomness comes from `rng` or
    `secret`. The result must have the tensors of `model` (fewer, if the step declares `selects`), and finite values.
    An exception fails the training order: the client takes no part in the round.

    After a failure, a client may be ordered to train again in the same round, from the same model or another one. Then
    all steps are taken again. If one step of the list is not repeatable, the node trains once for each round: it
    answers the second order with the result of the first, and takes no step again.
    """

    def __call__(self, outgoing: Outgoing, options: Any) -> Weights:
        """The model that is passed on; `options` is an object of the class that the step's declaration names."""
