"""How many items the lists of each message may have. A list without an entry may have `MOST_TEXT_BYTES` items."""

from google.protobuf.descriptor import Descriptor

from fedgsp.limits import counting
from fedgsp.messages import MOST_CLIENTS_OF_NODE, MOST_ECHO_BYTES
from fedgsp.v1 import (
    check_pb2,
    enrolment_pb2,
    group_pb2,
    grouping_pb2,
    hosting_pb2,
    membership_pb2,
    model_pb2,
    order_pb2,
)

#: Most tensors of a model. A header with more of them would not fit into its message.
MOST_TENSORS = 20_000
#: Most axes of all tensors of a model together.
MOST_AXES = 8 * MOST_TENSORS
#: Most clients of one group, or of a question to a grouping service.
MOST_MEMBERS = 1_000_000
#: Most groups in the question to a grouping service.
MOST_GROUPS = 100_000
#: Most classes of a task, and networks that one client discriminates with. A count takes at most seven bytes.
MOST_CLASSES = 500_000
#: A node has at most so many orders of one manager at once: one per client, and one that sends its model.
MOST_ORDERS = 2 * MOST_CLIENTS_OF_NODE
#: Bytes of weights, or of a matrix, are as many as fit into a message.
_ANY = 1 << 23


def _tensors(path: str) -> dict[str, int]:
    return {path: MOST_TENSORS, f"{path}.shape": MOST_AXES}


_HELLO = {
    "hello.clients": MOST_CLIENTS_OF_NODE,
    **_tensors("hello.tensors"),
    "hello.constants": MOST_TENSORS,
    "hello.constants.tensor.shape": MOST_AXES,
    "hello.features.shape": 32,
    "hello.task_options": 1_000,
    "hello.parts": 1_000,
    "hello.combine": 256,
    "hello.lacks": 32,
}
#: What a node answers, and what its group manager passes on.
_ANSWER = {
    "done.evaluated.metrics": 256,
    "done.evaluated.denominators": 256,
    "done.described.class_counts": MOST_CLASSES,
    "done.discriminated.correct": MOST_CLASSES,
}
#: Message -> path of a field -> most items, or most bytes of a text.
MOST: dict[Descriptor, dict[str, int]] = {
    membership_pb2.NodeMessage.DESCRIPTOR: _HELLO,
    check_pb2.CheckQuestion.DESCRIPTOR: {**_HELLO, "echo.payload": MOST_ECHO_BYTES},
    # Received by a node, which has called.
    check_pb2.CheckAnswer.DESCRIPTOR: {"about.versions": 100, "echo.payload": MOST_ECHO_BYTES},
    order_pb2.NodeReport.DESCRIPTOR: {
        **_ANSWER,
        "progress.orders": MOST_ORDERS,
        "done.recalled.model_ids": MOST_CLIENTS_OF_NODE,
    },
    # Received by a node, which has called.
    membership_pb2.TopServerMessage.DESCRIPTOR: {
        "welcome.training_options": 1_000,
        "revoked.enrolments": MOST_MEMBERS,
    },
    order_pb2.Order.DESCRIPTOR: {
        "discriminate.others": MOST_CLASSES,
        "release.model_ids": MOST_CLIENTS_OF_NODE,
        "recall.model_ids": MOST_CLIENTS_OF_NODE,
    },
    hosting_pb2.HostMessage.DESCRIPTOR: {},
    # Received by a worker, which has called.
    hosting_pb2.HostOrder.DESCRIPTOR: {"start.certificate": 20_000},
    model_pb2.FetchRequest.DESCRIPTOR: {},
    model_pb2.Chunk.DESCRIPTOR: {**_tensors("header.tensors"), "header.bases": 64, "data": _ANY},
    group_pb2.RunGroupRequest.DESCRIPTOR: {
        "members": MOST_MEMBERS,
        "parts": MOST_MEMBERS,
        "planned": MOST_MEMBERS,
        "finished": MOST_MEMBERS,
        **_tensors("tensors"),
        "discrimination.newcomers": MOST_MEMBERS,
        "update_lengths": MOST_MEMBERS,
    },
    # Received by the top server, which has called.
    group_pb2.GroupEvent.DESCRIPTOR: {
        **_ANSWER,
        "done.certificate": 100_000,  # with those between it and the CA
    },
    order_pb2.Release.DESCRIPTOR: {"model_ids": MOST_MEMBERS},
    enrolment_pb2.Revoked.DESCRIPTOR: {"enrolments": MOST_MEMBERS},
    enrolment_pb2.CertificateRequest.DESCRIPTOR: {"request": 4_000},
    grouping_pb2.AssignRequest.DESCRIPTOR: {
        "question.clients": MOST_MEMBERS,
        "question.sizes": MOST_MEMBERS,
        "question.newcomers": MOST_MEMBERS,
        "question.settled": MOST_GROUPS,
        "question.settled.clients": MOST_MEMBERS,
        "question.matrices": 100,
        "question.options": 1_000,
        "rows.data": _ANY,
    },
}


def check(message: bytes, kind: Descriptor) -> None:
    """Raise TooMuchError if a serialised message of a kind has more items, or longer texts, than the table allows."""
    counting.check(message, kind, MOST[kind])
