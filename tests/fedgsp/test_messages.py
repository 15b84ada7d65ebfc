from __future__ import annotations

import dataclasses
import types
import typing
from typing import Any

import pytest
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FileDescriptor

from fedgsp import messages
from fedgsp.messages import Failure, FailureCode
from fedgsp.v1 import grouping_pb2
from fedgsp.wire import MODULES
from tests.support.values import KINDS

#: Every file of the contract, so that a new one is tested too. All of grouping.proto is used as protobuf messages.
FILES: list[FileDescriptor] = [module.DESCRIPTOR for module in MODULES if module is not grouping_pb2]
MESSAGES: dict[str, Descriptor] = {name: kind for file in FILES for name, kind in file.message_types_by_name.items()}
ENUMS: dict[str, EnumDescriptor] = {name: kind for file in FILES for name, kind in file.enum_types_by_name.items()}
#: Messages that do not leave the servicers and client wrappers.
WIRE_ONLY = {
    "Certificate",
    "CertificateRequest",
    "Chunk",
    "FetchRequest",
    "ForgetResponse",
    "Receipt",
    "RevokeResponse",
}


def test_every_message_of_the_contract_has_a_value_and_the_other_way_round() -> None:
    assert set(MESSAGES) - WIRE_ONLY == set(KINDS)


@pytest.mark.parametrize("name", sorted(KINDS))
def test_a_value_has_the_fields_of_its_message(name: str) -> None:
    descriptor = MESSAGES[name]
    fields = {field.name for field in descriptor.fields if field.containing_oneof is None}
    assert {field.name for field in dataclasses.fields(KINDS[name])} == fields | set(descriptor.oneofs_by_name)


@pytest.mark.parametrize("name", sorted(name for name in KINDS if MESSAGES[name].oneofs))
def test_a_oneof_holds_the_kinds_of_its_message(name: str) -> None:
    hints = typing.get_type_hints(KINDS[name])
    for oneof in MESSAGES[name].oneofs:
        kinds = {field.message_type.name for field in oneof.fields if field.message_type is not None}
        assert len(kinds) == len(oneof.fields), "a value's kind must say which field it is"
        allowed = typing.get_args(hints[oneof.name])
        assert {kind.__name__ for kind in allowed if kind is not types.NoneType} == kinds
        assert types.NoneType in allowed


@pytest.mark.parametrize("name", sorted(name for name in KINDS))
def test_a_submessage_may_be_unset(name: str) -> None:
    hints = typing.get_type_hints(KINDS[name])
    for field in MESSAGES[name].fields:
        if field.message_type and not field.is_repeated and field.containing_oneof is None:
            assert types.NoneType in typing.get_args(hints[field.name]), field.name


@pytest.mark.parametrize("name", sorted(ENUMS))
def test_enum_numbers_are_those_of_the_contract(name: str) -> None:
    kind: Any = getattr(messages, name)
    prefix = "".join(f"_{c}" if c.isupper() else c.upper() for c in kind.__name__).lstrip("_") + "_"
    numbers = {value.name: value.number for value in ENUMS[kind.__name__].values}
    assert {prefix + member.name: int(member) for member in kind} == numbers


def test_no_text_shows_a_ticket_or_a_key() -> None:
    """Values come into logs and tracebacks."""
    secret = {
        (name, field.name)
        for name, kind in KINDS.items()
        for field in dataclasses.fields(kind)
        if field.type == "bytes" and (field.name == "ticket" or field.name.endswith("key"))
    } | {("StartManager", "certificate")}
    assert len(secret) >= 7
    hidden = {
        (name, field.name) for name, kind in KINDS.items() for field in dataclasses.fields(kind) if not field.repr
    }
    assert hidden == secret
    assert "sesame" not in repr(messages.StartManager("m0", b"sesame", b"sesame"))


def test_an_order_and_an_answer_are_what_their_names_say() -> None:
    assert {*typing.get_args(messages.Work), types.NoneType} == _kinds(messages.Order, "work")
    assert {*typing.get_args(messages.Result), types.NoneType} == _kinds(messages.MemberDone, "result")


def _kinds(message: type, oneof: str) -> set[Any]:
    return set(typing.get_args(typing.get_type_hints(message)[oneof]))


def test_a_forgotten_field_is_an_error() -> None:
    make: Any = messages.Failed
    with pytest.raises(TypeError, match="failure"):
        make(None)


def test_a_field_that_may_be_omitted_is_empty() -> None:
    assert messages.TensorSpec("w", "<f4", (2,)) == messages.TensorSpec("w", "<f4", (2,), trainable=True, head=False)
    hello = messages.Hello(messages.PROTOCOL, "n1", "task", 2, (), ())
    assert (hello.peer_address, hello.training_flop, hello.task_options, hello.task_digest) == ("", 0, {}, b"")


@pytest.mark.parametrize("name", sorted(KINDS))
def test_values_cannot_change(name: str) -> None:
    kind: Any = KINDS[name]
    assert kind.__dataclass_params__.frozen
    assert "__slots__" in vars(kind)


def test_a_long_detail_is_cut() -> None:
    detail = Failure(FailureCode.BAD_ORDER, "x" * (messages.MAX_DETAIL + 1)).detail
    assert detail == "x" * messages.MAX_DETAIL + "..."


def test_a_failure_reads_as_a_sentence() -> None:
    assert str(Failure(FailureCode.NO_SUCH_MODEL, "it was released")) == "no such model: it was released"
