from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.message import DecodeError
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from fedgsp import wire
from fedgsp.messages import (
    Described,
    Done,
    Failure,
    FailureCode,
    GroupEvent,
    MemberDone,
    ModelHeader,
    NodeReport,
    Order,
    OrderKey,
    RelayMode,
    Release,
    RunGroupRequest,
    Source,
    SourceKind,
    TopServerMessage,
    Train,
    Trained,
)
from fedgsp.v1 import (
    failure_pb2,
    group_pb2,
    membership_pb2,
    model_pb2,
    order_pb2,
)
from fedgsp.wire import MODULES
from tests.support.values import KINDS, values_of

few = settings(deadline=None, max_examples=20, suppress_health_check=[HealthCheck.too_slow])


def proto_of(name: str) -> Any:
    return next(getattr(module, name) for module in MODULES if hasattr(module, name))


@pytest.mark.parametrize("name", sorted(KINDS))
@few
@given(data=st.data())
def test_what_is_said_is_what_is_heard(name: str, data: st.DataObject) -> None:
    value = data.draw(values_of(KINDS[name]))
    sent = wire.encode(value).SerializeToString()
    assert wire.decode(KINDS[name], proto_of(name).FromString(sent)) == value


def decoded(name: str, sent: bytes) -> Any:
    """The value of any bytes, or None for those that gRPC itself would refuse."""
    try:
        proto = proto_of(name).FromString(sent)
    except DecodeError:
        return None
    return wire.decode(KINDS[name], proto)


@pytest.mark.parametrize("name", sorted(KINDS))
@few
@given(sent=st.binary(max_size=60))
@example(sent=b"")
def test_any_bytes_are_refused_or_become_a_value(name: str, sent: bytes) -> None:
    value = decoded(name, sent)
    assert value is None or type(value) is KINDS[name]


@pytest.mark.parametrize("name", ["Hello", "NodeReport", "Order", "RunGroupRequest", "GroupEvent", "ModelHeader"])
@few
@given(data=st.data())
def test_damaged_bytes_are_refused_or_become_a_value_that_can_be_sent_on(name: str, data: st.DataObject) -> None:
    sent = bytearray(wire.encode(data.draw(values_of(KINDS[name]))).SerializeToString(deterministic=True))
    for _ in range(data.draw(st.integers(1, 4))):
        if sent:
            sent[data.draw(st.integers(0, len(sent) - 1))] = data.draw(st.integers(0, 255))
    value = decoded(name, bytes(sent[: data.draw(st.integers(0, len(sent)))]))
    if value is not None:
        assert repr(decoded(name, wire.encode(value).SerializeToString())) == repr(value)  # repr: NaN equals NaN


def test_an_unset_oneof_is_none() -> None:
    assert wire.decode(NodeReport, order_pb2.NodeReport()) == NodeReport(None)
    assert wire.decode(Done, order_pb2.Done()) == Done(None, None)
    assert wire.decode(Order, order_pb2.Order(client=3)) == Order(None, 3, None)
    assert wire.decode(TopServerMessage, membership_pb2.TopServerMessage()) == TopServerMessage(None)
    assert wire.encode(GroupEvent(None)) == group_pb2.GroupEvent()


def test_an_unset_submessage_is_none_and_an_empty_one_is_not() -> None:
    assert wire.decode(Train, order_pb2.Train()) == Train(None, "", None)
    assert wire.decode(ModelHeader, model_pb2.ModelHeader(ref=model_pb2.ModelRef())).ref is not None


def test_the_kind_of_a_value_chooses_its_place_in_a_oneof() -> None:
    proto = wire.encode(MemberDone(1, 2, Described((3, 4))))
    assert proto.WhichOneof("result") == "described"
    assert wire.encode(GroupEvent(Failure(FailureCode.STALLED, ""))).WhichOneof("kind") == "failed"


@pytest.mark.parametrize("number", [-1, 6, 99, 2**31 - 1])
def test_an_enum_number_of_a_later_version_is_unspecified(number: int) -> None:
    failure = failure_pb2.Failure(code=number, detail="new")  # type: ignore[arg-type]
    assert wire.decode(Failure, failure) == Failure(FailureCode.UNSPECIFIED, "new")
    source = model_pb2.Source(kind=number)  # type: ignore[arg-type]
    assert wire.decode(Source, source) == Source(SourceKind.UNSPECIFIED, "")
    request = group_pb2.RunGroupRequest(relay=number)  # type: ignore[arg-type]
    assert wire.decode(RunGroupRequest, request).relay is RelayMode.UNSPECIFIED


def test_fields_of_a_later_version_are_ignored() -> None:
    unknown_field = bytes([15 << 3 | 0, 7])
    sent = wire.encode(OrderKey(1, "train", 2, 3)).SerializeToString() + unknown_field
    assert wire.decode(OrderKey, order_pb2.OrderKey.FromString(sent)) == OrderKey(1, "train", 2, 3)


def test_decoded_values_are_plain_and_can_be_keys() -> None:
    value = wire.decode(Release, order_pb2.Release(model_ids=["a", "b"]))
    assert type(value.model_ids) is tuple
    key = wire.decode(OrderKey, wire.encode(OrderKey(1, "train", 2, 3)))
    assert {key: 1}[OrderKey(1, "train", 2, 3)] == 1


@pytest.mark.parametrize("client", [-1, 2**64])
def test_numbers_that_the_wire_cannot_carry_are_not_cut(client: int) -> None:
    with pytest.raises(ValueError, match="out of range"):
        wire.encode(Order(None, client, None))


def test_a_diverged_loss_is_carried_as_it_is() -> None:
    loss = wire.decode(Trained, wire.encode(Trained(None, loss=float("nan")))).loss
    assert loss != loss
