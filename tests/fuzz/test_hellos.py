"""Hostile values in every field of a hello: each is refused with the name of its field, and changes nothing.

The fields come from the contract, so that a new field is tried without a change here.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from fedgsp import wire
from fedgsp.limits.counting import TooMuchError
from fedgsp.limits.items import check
from fedgsp.messages import (
    MOST_CLIENTS_OF_NODE,
    MOST_SAMPLES,
    Constant,
    Failure,
    FailureCode,
    Hello,
    HostedClient,
    InstalledPart,
    NodeMessage,
    TensorSpec,
)
from fedgsp.v1 import membership_pb2
from tests.support.callers import ANYBODY
from tests.support.hellos import hello, membership
from top_server.nodes.admission import MOST_CLIENTS

HELLO = membership_pb2.Hello.DESCRIPTOR
#: A hello with something in each of its fields.
FULL = hello(
    clients=(0,),
    task_options={"a": "1"},
    task_digest=bytes(32),
    parts=(InstalledPart("training", "mine", "package 1.0"),),
    features=TensorSpec("layer", "float32", (4,)),
    constants=(Constant(TensorSpec("fixed", "float32", (2,)), bytes(32)),),
    device="cpu",
    device_memory=1 << 30,
    torch="2.9",
    score="f1",
    combine={"f1": "samples"},
    lacks=("accuracy",),
    class_counts_failed=Failure(FailureCode.TASK_RAISED, "why"),
)
HIDDEN = ("", "\x1b[2J", "a\nb", "\u202ea", "a\x00", "x" * 3000)
#: Type of a field -> values that it can never have.
NEVER: dict[int, tuple[Any, ...]] = {
    FieldDescriptor.TYPE_STRING: HIDDEN[1:],
    FieldDescriptor.TYPE_BYTES: (bytes(1), bytes(31), bytes(33), bytes(100_000)),
    FieldDescriptor.TYPE_UINT32: (2**31, 2**32 - 1),
    FieldDescriptor.TYPE_UINT64: (2**63, 2**64 - 1),
    FieldDescriptor.TYPE_INT32: (-1, -(2**31), 2**31 - 1),
    FieldDescriptor.TYPE_INT64: (-1, -(2**63), 2**63 - 1),
    FieldDescriptor.TYPE_FLOAT: (math.nan, math.inf, -math.inf),
    FieldDescriptor.TYPE_DOUBLE: (math.nan, math.inf, -math.inf),
}
#: Type of a field -> values that may be refused or not, and harm nobody.
ODD: dict[int, tuple[Any, ...]] = {
    FieldDescriptor.TYPE_STRING: ("", "-", "..", "x" * 255),
    FieldDescriptor.TYPE_BYTES: (b"", bytes(32)),
    FieldDescriptor.TYPE_UINT32: (0, 1, 2**16),
    FieldDescriptor.TYPE_UINT64: (0, 1, MOST_SAMPLES, 2**48),
    FieldDescriptor.TYPE_ENUM: (0, 77, 2**31 - 1, -1),
    FieldDescriptor.TYPE_BOOL: (False, True),
    FieldDescriptor.TYPE_DOUBLE: (0.0, -1.0, 1e308),
}
#: Fields whose text is shown escaped and cut, because it explains a failure to people.
EXPLAINS = ("class_counts_failed.detail",)
#: Path of a field -> what a refusal calls it, unless that is the last part of the path without underscores.
CALLED = {
    "node": "name of the node",
    "clients.client": "client",
    "clients.name": "name of a client",
    "clients.train_samples": "samples",
    "clients.test_samples": "samples",
    "clients.validation_samples": "samples",
    "constants.digest": "digest of a constant",
    "constants.tensor.name": "name of a tensor",
    "constants.tensor.dtype": "dtype",
    "constants.tensor.shape": "shape",
    "features.name": "layer with its features",
    "num_classes": "classes",
    "parts.kind": "installed part",
    "parts.name": "installed part",
    "parts.package": "installed part",
    "peer_address": "address",
    "task_digest": "digest of its task",
    "task_options.key": "task option",
    "task_options.value": "task option",
    "tensors.name": "name of a tensor",
    "combine.key": "metric",
    "combine.value": "combines a metric",
    "training_flop": "operations",
    "device_memory": "memory",
}


def fields(of: Descriptor, path: str = "") -> Iterator[tuple[str, FieldDescriptor]]:
    """The fields of a message, and of the messages in it, with their paths."""
    for field in of.fields:
        here = f"{path}{field.name}"
        yield here, field
        if field.message_type is not None:
            yield from fields(field.message_type, f"{here}.")


FIELDS = dict(fields(HELLO))
SCALARS = [path for path, field in FIELDS.items() if field.message_type is None]


def put(message: Any, path: str, value: Any) -> None:
    """Gives a field this value; the first item of a list on the way is taken, and of a map the only one."""
    name, _, rest = path.partition(".")
    field = message.DESCRIPTOR.fields_by_name[name]
    part = getattr(message, name)
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        ((key, old),) = part.items()
        part.clear()
        part[value if rest == "key" else key] = value if rest == "value" else old
    elif rest:
        put(part[0] if field.is_repeated else part, rest, value)
    elif field.is_repeated:
        part[0] = value
    else:
        setattr(message, name, value)


def many(message: Any, path: str, count: int) -> None:
    """Repeats the first item of a list, or adds entries to a map."""
    name, _, rest = path.partition(".")
    field = message.DESCRIPTOR.fields_by_name[name]
    part = getattr(message, name)
    if rest:
        many(part[0] if field.is_repeated else part, rest, count)
    elif field.message_type is not None and field.message_type.GetOptions().map_entry:
        (value,) = part.values()
        part.update({f"key{number}": value for number in range(count)})
    else:
        part.extend([part[0]] * count)


async def said(message: Any) -> str | None:
    """What a node is told that says this; None if it is admitted. Nothing but a refusal may come of it."""
    members, recorder = membership()
    try:
        raw = membership_pb2.NodeMessage(hello=message).SerializeToString()
        check(raw, membership_pb2.NodeMessage.DESCRIPTOR)
        decoded = wire.decode(NodeMessage, membership_pb2.NodeMessage.FromString(raw)).kind
        assert isinstance(decoded, Hello)
        answer = await members.admit(decoded, ANYBODY)
    except TooMuchError as error:
        return str(error)
    if not isinstance(answer, Failure):
        return None
    assert not members.nodes
    assert not members.clients
    assert all(len(str(value)) < 1000 for event in recorder.events for value in event.values())
    return answer.detail


def full() -> Any:
    return wire.encode(FULL)


async def test_a_hello_with_all_fields_is_good() -> None:
    assert await said(full()) is None
    assert {field.name for field, _ in full().ListFields()} >= set(HELLO.fields_by_name) - {"own_optimizer"}


@pytest.mark.parametrize("path", [path for path in SCALARS if FIELDS[path].type in NEVER and path not in EXPLAINS])
async def test_a_value_that_cannot_be_is_refused_with_the_name_of_its_field(path: str) -> None:
    for value in NEVER[FIELDS[path].type]:
        message = full()
        put(message, path, value)
        told = await said(message)
        shown = repr(value)[:40]
        assert told is not None, f"{shown} was taken"
        called = CALLED.get(path, path.rpartition(".")[2].replace("_", " "))
        assert called in told or path in told, f"{shown}: {told}"


@pytest.mark.parametrize("path", SCALARS)
async def test_an_odd_value_harms_nobody(path: str) -> None:
    for value in (*ODD.get(FIELDS[path].type, ()), *(HIDDEN if path in EXPLAINS else ())):
        message = full()
        put(message, path, value)
        told = await said(message)
        assert told is None or told


@pytest.mark.parametrize("path", [path for path, field in FIELDS.items() if field.is_repeated])
async def test_a_list_with_too_many_items_is_refused(path: str) -> None:
    message = full()
    many(message, path, 200_000 if FIELDS[path].message_type is None else 25_000)
    assert await said(message) is not None


def test_the_samples_of_all_clients_of_a_run_fit_into_64_bits() -> None:
    assert MOST_SAMPLES * MOST_CLIENTS < 2**63
    assert MOST_SAMPLES * MOST_CLIENTS_OF_NODE < 2**63


async def test_a_client_has_at_most_so_many_samples() -> None:
    for samples, fits in ((MOST_SAMPLES, True), (MOST_SAMPLES + 1, False)):
        told = await said(wire.encode(dataclasses.replace(FULL, clients=(HostedClient(0, samples, 5),))))
        assert (told is None) is fits
