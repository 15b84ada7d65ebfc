"""What a training of a client leaves."""

from dataclasses import dataclass

from fedgsp.weights import Weights
from fedgsp_node.personal_state import Arrays


@dataclass(frozen=True, slots=True)
class Learned:
    """The result of one client's training: whole model before and after, mean loss, seconds, local steps (FedNova)."""

    before: Weights
    after: Weights
    loss: float
    seconds: float
    steps: float
    #: The personal model that the client keeps, if the training algorithm has one.
    personal: Weights | None = None
    #: The state of its optimisers that the client keeps, if the run wants that.
    optimizer_state: Arrays | None = None
    #: Whether the client had no head, personal model or state to start from, although it keeps one.
    afresh: bool = False
    #: Whether the client keeps its head although the head also travels.
    keeps_head: bool = False
