"""Turns the values of `fedgsp.messages` into protobuf messages and back, by their common names."""

from __future__ import annotations

import dataclasses
from enum import IntEnum
from types import ModuleType
from typing import Any, TypeVar

from google.protobuf.message import Message

from fedgsp import messages
from fedgsp.v1 import failure_pb2, group_pb2, membership_pb2, model_pb2, order_pb2

T = TypeVar("T")

_MODULES: tuple[ModuleType, ...] = (failure_pb2, model_pb2, membership_pb2, order_pb2, group_pb2)
_VALUES: dict[str, Any] = {name: kind for name, kind in vars(messages).items() if dataclasses.is_dataclass(kind)}
_ENUMS: dict[str, type[IntEnum]] = {
    kind.__name__: kind for kind in (messages.FailureCode, messages.SourceKind, messages.RelayMode, messages.Results)
}
_PROTOS: dict[str, type[Message]] = {
    name: getattr(module, name) for name in _VALUES for module in _MODULES if hasattr(module, name)
}


def encode(value: Any) -> Any:
    """The protobuf message of a value."""
    proto = _PROTOS[type(value).__name__]()
    by_name = proto.DESCRIPTOR.fields_by_name
    for name in value.__dataclass_fields__:
        item = getattr(value, name)
        if item is None:
            continue
        oneof = proto.DESCRIPTOR.oneofs_by_name.get(name)
        if oneof is not None:
            kind = next(f.name for f in oneof.fields if f.message_type and f.message_type.name == type(item).__name__)
            getattr(proto, kind).CopyFrom(encode(item))
            continue
        field = by_name[name]
        if _is_map(field):
            getattr(proto, name).update(item)
        elif field.is_repeated:
            getattr(proto, name).extend(encode(x) for x in item) if field.message_type else getattr(
                proto, name
            ).extend(item)
        elif field.message_type:
            getattr(proto, name).CopyFrom(encode(item))
        else:
            setattr(proto, name, item)
    return proto


def decode(kind: type[T], proto: Any) -> T:
    """The value of a protobuf message; unset submessages and oneofs are None, unknown enum numbers UNSPECIFIED."""
    values: dict[str, Any] = {}
    by_name = proto.DESCRIPTOR.fields_by_name
    for name in kind.__dataclass_fields__:  # type: ignore[attr-defined]
        if name in proto.DESCRIPTOR.oneofs_by_name:
            chosen = proto.WhichOneof(name)
            values[name] = _decode_any(getattr(proto, chosen)) if chosen else None
            continue
        field = by_name[name]
        item = getattr(proto, name)
        if _is_map(field):
            values[name] = dict(item)
        elif field.is_repeated:
            values[name] = tuple(_decode_any(x) for x in item) if field.message_type else tuple(item)
        elif field.message_type:
            values[name] = _decode_any(item) if proto.HasField(name) else None
        elif field.enum_type:
            enum = _ENUMS[field.enum_type.name]
            values[name] = enum(item) if item in enum.__members__.values() else enum(0)
        else:
            values[name] = item
    return kind(**values)


def _decode_any(proto: Message) -> Any:
    return decode(_VALUES[proto.DESCRIPTOR.name], proto)


def _is_map(field: Any) -> bool:
    return bool(field.message_type and field.message_type.GetOptions().map_entry)
