"""Converts values of `fedgsp.messages` to protobuf messages and back. Classes and fields have the same names."""

import dataclasses
import importlib
import operator
import pkgutil
from collections.abc import Callable, Sequence
from functools import cache
from types import ModuleType
from typing import Any, TypeAlias, TypeVar

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from fedgsp import messages, v1

T = TypeVar("T")
#: Two functions of one field: the first puts a value into a protobuf message, the second takes it from there.
Codec: TypeAlias = tuple[Callable[[Any, Any], None], Callable[[Any], Any]]

#: The generated modules of the contract.
MODULES: tuple[ModuleType, ...] = tuple(
    importlib.import_module(module.name)
    for module in pkgutil.iter_modules(v1.__path__, "fedgsp.v1.")
    if module.name.endswith("_pb2")
)


def encode(value: Any) -> Any:
    """The protobuf message of a value."""
    return _filled(_proto_of(value.__class__)(), value)


def decode(kind: type[T], proto: Any) -> T:
    """The value of a protobuf message. Unset submessages and oneofs become None, unknown enum numbers UNSPECIFIED."""
    known: Any = kind
    return kind(*[take(proto) for _, (_, take) in _codecs(known)])


def _filled(proto: Any, value: Any) -> Any:
    for name, (put, _) in _codecs(value.__class__):
        item = getattr(value, name)
        if item is not None:
            put(proto, item)
    return proto


def _fill_part(part: Any, value: Any) -> None:
    part.SetInParent()  # so that an empty message counts as set
    _filled(part, value)


@cache
def _proto_of(kind: Any) -> Any:
    return next(getattr(module, kind.__name__) for module in MODULES if hasattr(module, kind.__name__))


@cache
def _codecs(kind: Any) -> tuple[tuple[str, Codec], ...]:
    """Name and codec of every field of a class, in the order of its constructor."""
    return tuple((one.name, _codec(_proto_of(kind).DESCRIPTOR, one.name)) for one in dataclasses.fields(kind))


def _codec(descriptor: Descriptor, name: str) -> Codec:
    oneof, get = descriptor.oneofs_by_name.get(name), operator.attrgetter(name)
    if oneof is not None:
        return _oneof(name, oneof.fields)
    field = descriptor.fields_by_name[name]
    if field.message_type and field.message_type.GetOptions().map_entry:
        return lambda proto, item: get(proto).update(item), lambda proto: dict(get(proto))
    if field.message_type and field.is_repeated:
        kind = _kind_of(field)
        return (
            lambda proto, item: get(proto).extend([encode(one) for one in item]),
            lambda proto: tuple([decode(kind, one) for one in get(proto)]),
        )
    if field.message_type:
        kind = _kind_of(field)
        return (
            lambda proto, item: _fill_part(get(proto), item),
            lambda proto: decode(kind, get(proto)) if proto.HasField(name) else None,
        )
    if field.is_repeated:
        return lambda proto, item: get(proto).extend(item), lambda proto: tuple(get(proto))
    if field.enum_type:
        members = {int(member): member for member in getattr(messages, field.enum_type.name)}
        return lambda proto, item: setattr(proto, name, item), lambda proto: members.get(get(proto), members[0])
    return lambda proto, item: setattr(proto, name, item), get


def _oneof(name: str, fields: Sequence[FieldDescriptor]) -> Codec:
    kinds = {field.name: _kind_of(field) for field in fields}
    names = {kind: name for name, kind in kinds.items()}

    def take(proto: Any) -> Any:
        chosen = proto.WhichOneof(name)
        return decode(kinds[chosen], getattr(proto, chosen)) if chosen else None

    return lambda proto, item: _fill_part(getattr(proto, names[type(item)]), item), take


def _kind_of(field: Any) -> Any:
    return getattr(messages, field.message_type.name)
