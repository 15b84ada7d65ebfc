# Made by scripts/protos.py from protos/fedgsp/v1/failure.proto; do not edit.
"""Expected failures: why an order, a model or a node was refused."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from fedgsp.messages.failure_text import FailureText


class FailureCode(IntEnum):
    """The kind of a failure. Numbers of one decade belong together."""

    #: None of the other codes; the detail says more.
    UNSPECIFIED = 0
    #: A process could not be reached, or its connection broke.
    UNREACHABLE = 1
    #: The node is no longer attached to the group manager, or never attached.
    NODE_LOST = 2
    #: An order, or a stream of weights, made no progress for too long.
    STALLED = 3
    #: The order was cancelled.
    CANCELLED = 4
    #: The node does not host this client.
    UNKNOWN_CLIENT = 10
    #: The order is unknown, incomplete, or contradicts itself.
    BAD_ORDER = 11
    #: The policy of the node forbids it.
    POLICY = 12
    #: The process does not hold this model and will not get it.
    NO_SUCH_MODEL = 20
    #: The stream ended before all bytes of the model.
    CUT_SHORT = 21
    #: The model has more bytes than announced, or than allowed.
    TOO_LONG = 22
    #: The bytes do not have the announced digest.
    WRONG_DIGEST = 23
    #: Names, dtypes or shapes of the tensors are not the expected ones.
    WRONG_SHAPES = 24
    #: A tensor contains NaN or infinity, or the state of an optimiser has values below 0 where it cannot have any.
    NOT_FINITE = 25
    #: The messages of a stream of weights break the protocol.
    BAD_STREAM = 26
    #: The update is much longer than the updates of other clients; see `--update-norm-limit`.
    LONG_UPDATE = 27
    #: The process has no memory, or no disk, for a model that it receives or for what it keeps. Nothing is wrong with
    #: the model or its sender.
    NO_ROOM = 28
    #: The user's task raised an exception or returned something invalid.
    TASK_RAISED = 30
    #: A training made weights that are NaN or infinite. The node says so itself, and sends no model.
    DIVERGED = 31
    #: The node speaks another version of the protocol.
    WRONG_PROTOCOL = 40
    #: The node's task, its options, classes or tensors differ from those of the run.
    WRONG_TASK = 41
    #: Another node already hosts one of the clients.
    CLIENT_TAKEN = 42
    #: Another node already has this name.
    NAME_TAKEN = 43
    #: The run is over.
    RUN_OVER = 44
    #: The node hosts no client.
    NO_CLIENTS = 45
    #: The address for peers is invalid, or is missing in a run with `--relay direct`.
    CANNOT_BE_DIALLED = 46
    #: The run, or the node, would have more clients or nodes than allowed.
    TOO_MANY = 47
    #: The node lacks a part that the run needs, or has another version of it.
    MISSING_PART = 49
    #: The caller is not who it says it is, or may not do this.
    NOT_ALLOWED = 50
    #: Two nodes report different digests of one model, and nothing says which of them is right.
    DISPUTED = 51
    #: The receipt of a result is missing, or is not that of the node and the order.
    BAD_RECEIPT = 52
    #: The certificate of the caller has expired. The caller may come back with a new one.
    CERTIFICATE_EXPIRED = 53
    #: The run is being stopped, and may be resumed.
    RUN_STOPPED = 60


@dataclass(frozen=True, slots=True)
class Failure(FailureText):
    """An expected failure. Processes exchange it as a value; it is not an exception."""

    code: FailureCode
    #: An explanation for people. It may quote another process, so it is cut to `MAX_DETAIL` characters.
    detail: str
