"""Counts the items of a serialised message before protobuf makes objects of them.

Two bytes are enough for an empty submessage. Decoded, it takes a hundred times as much memory, and a microsecond of
the event loop. The count walks only over fields that may hold many items or long texts, and ends at the first limit.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError

#: Most bytes of one text or byte string, unless a table says otherwise.
MOST_TEXT_BYTES = 10_000
#: Most fields of one message that are neither items of a list nor within one: what protobuf ignores counts too.
MOST_OTHER_FIELDS = 1_000
#: Most fields for each submessage of a list, those of its own submessages included.
MOST_FIELDS_PER_ITEM = 32

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_FIXED = {_FIXED64: 8, _FIXED32: 4}
_NOT_LAST = bytes(range(0x80, 0x100))  # bytes of a varint before its last one
#: The size of an item of a packed list; all other numbers are varints.
_SIZES = {FieldDescriptor.TYPE_DOUBLE: 8, FieldDescriptor.TYPE_FLOAT: 4}


class TooMuchError(ValueError):
    """A message holds more than it may."""


@dataclass(frozen=True, slots=True)
class _Field:
    path: str
    most: int  # items of this field in the whole message; 0: not repeated
    most_bytes: int  # of one text or byte string; 0: neither
    item_bytes: int  # of a packed list of numbers: 0 for varints
    packed: bool
    inner: "Plan | None"  # of a submessage


#: Number of a field -> its limits.
Plan = dict[int, _Field]


def check(message: bytes, kind: Descriptor, most: Mapping[str, int]) -> None:
    """Raise TooMuchError if a serialised message of a kind has more items or longer texts than it may.

    `most` maps the path of a field, such as "hello.clients", to the most items, or to the most bytes of a text. Items
    of a list within a list are counted together. A list without an entry may have `MOST_TEXT_BYTES` items.
    Raises DecodeError for bytes that are no message.
    """
    plan = _plan(kind, tuple(sorted(most.items())))
    _Walk(message).over(0, len(message), plan)


class _Walk:
    def __init__(self, message: bytes) -> None:
        self._message = message
        self._left = MOST_OTHER_FIELDS
        self._items: Counter[str] = Counter()

    def over(self, at: int, end: int, plan: Plan) -> None:
        message = self._message
        while at < end:
            self._left -= 1
            if self._left < 0:
                raise TooMuchError("it has too many fields")
            tag, at = self._varint(at, end)
            field, wire_type = plan.get(tag >> 3), tag & 7
            start = at
            if wire_type == _BYTES:
                length, start = self._varint(at, end)
                at = start + length
            elif wire_type == _VARINT:
                _, at = self._varint(at, end)
            elif wire_type in _FIXED:
                at += _FIXED[wire_type]
            else:
                raise DecodeError("a field has an unknown type")
            if at > end:
                raise DecodeError("a field is longer than its message")
            if field is None:
                continue
            if field.most:
                self._count(field, _items(message, start, at, field) if field.packed and wire_type == _BYTES else 1)
            if field.most_bytes and at - start > field.most_bytes:
                raise TooMuchError(f"{field.path} has more than {field.most_bytes:,} bytes")
            if field.inner and wire_type == _BYTES:
                self.over(start, at, field.inner)

    def _count(self, field: _Field, items: int) -> None:
        self._items[field.path] += items
        if self._items[field.path] > field.most:
            raise TooMuchError(f"{field.path} has more than {field.most:,} items")
        if not field.packed:
            self._left += MOST_FIELDS_PER_ITEM * items

    def _varint(self, at: int, end: int) -> tuple[int, int]:
        """The number that begins at a place, and the place after it."""
        message, number, shift = self._message, 0, 0
        while at < end and shift < 70:
            byte = message[at]
            at += 1
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                return number, at
            shift += 7
        raise DecodeError("a number does not end")


def _items(message: bytes, start: int, end: int, field: _Field) -> int:
    if field.item_bytes:
        return (end - start) // field.item_bytes
    return len(message[start:end].translate(None, _NOT_LAST))


@cache
def _plan(kind: Descriptor, most: tuple[tuple[str, int], ...], above: str = "") -> Plan:
    """The limits of all fields of a kind that need any."""
    limits, plan = dict(most), {}
    for field in kind.fields:
        path = f"{above}{field.name}"
        text = field.type in (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES)
        inner = _plan(field.message_type, most, f"{path}.") if field.message_type else None
        limit = limits.get(path, MOST_TEXT_BYTES)
        if field.is_repeated or text or inner:
            plan[field.number] = _Field(
                path,
                limit if field.is_repeated else 0,
                (MOST_TEXT_BYTES if field.is_repeated else limit) if text else 0,
                _SIZES.get(field.type, 0),
                field.is_packed,
                inner,
            )
    return plan
