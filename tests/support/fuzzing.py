"""What a stranger may send: any message of a kind, near misses of good ones, and bytes that are none."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import Message
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from fedgsp.connections.handlers import Opening
from tests.support.callers import shown_by

M = TypeVar("M", bound=Message)

#: Examples of each fuzz test; FEDGSP_FUZZ=1000 python -m pytest tests/fuzz --hypothesis-profile=default draws others.
EXAMPLES = int(os.environ.get("FEDGSP_FUZZ", "0"))
#: Whatever is refused or answered is so within this time.
SOON_S = 5.0
#: A peer that has to be half-open is so for this time.
MOMENT_S = 0.1


def fuzzed(examples: int) -> settings:
    """Settings of a fuzz test with so many examples, unless the environment asks for more."""
    return settings(
        max_examples=EXAMPLES or examples,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
    )


# --- what is sent

STRINGS = (
    "",
    "x",
    "0",
    "../../x",
    "/x",
    "a\0b",
    "é\n",
    "x" * 10_000,
    "127.0.0.1:1",
    "[::]:0",
    "0.0.0.0:99999",
    "unix:1",
)
_NARROW = (0, 1, 2, 3, 7, 2**31 - 1, 2**31, 2**32 - 1)
_WIDE = (*_NARROW, 2**48 + 1, 2**53, 2**63 - 1, 2**63, 2**64 - 1)
_DOUBLES = (0.0, -1.0, 1.0, 0.1, 1e-300, 1e300, float("inf"), float("-inf"), float("nan"))


def _scalars(field: Any, words: Sequence[str]) -> st.SearchStrategy[Any]:
    kinds: dict[Any, st.SearchStrategy[Any]] = {
        field.TYPE_BOOL: st.booleans(),
        field.TYPE_STRING: st.sampled_from((*words, *STRINGS)) | st.text(max_size=8),
        field.TYPE_BYTES: st.binary(max_size=24) | st.just(bytes(10_000)),
        field.TYPE_DOUBLE: st.sampled_from(_DOUBLES) | st.floats(),
        field.TYPE_UINT32: st.sampled_from(_NARROW) | st.integers(0, 2**32 - 1),
        field.TYPE_UINT64: st.sampled_from(_WIDE) | st.integers(0, 2**64 - 1),
    }
    if field.type == field.TYPE_ENUM:
        return st.sampled_from([*(value.number for value in field.enum_type.values), 77, -1])
    return kinds[field.type]


def _field(field: Any, words: Sequence[str], depth: int) -> st.SearchStrategy[Any]:
    """What a message's constructor takes for a field."""
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
        return st.dictionaries(_field(key, words, depth), _field(value, words, depth), max_size=3)
    if field.message_type is not None:
        one: st.SearchStrategy[Any] = protos(field.message_type._concrete_class, words, depth - 1)
    else:
        one = _scalars(field, words)
    return st.lists(one, max_size=3) if field.is_repeated else one


def _later(field: Any, words: Sequence[str], depth: int) -> st.SearchStrategy[Any]:
    return st.deferred(lambda: _field(field, words, depth))


def protos(kind: type[M], words: Sequence[str] = (), depth: int = 3) -> st.SearchStrategy[M]:
    """Any messages of a kind, some of them with submessages down to a depth; strings are often one of `words`."""
    fields = [field for field in kind.DESCRIPTOR.fields if depth or field.message_type is None]
    optional = {field.name: _later(field, words, depth) for field in fields}
    return st.fixed_dictionaries({}, optional=optional).map(lambda chosen: kind(**chosen))


@st.composite
def near(draw: st.DrawFn, good: M, words: Sequence[str] = ()) -> M:
    """A good message with up to three of its fields, however deep, left out or given other values."""
    changed = type(good)()
    changed.CopyFrom(good)
    for _ in range(draw(st.integers(1, 3))):
        _change(draw, changed, words)
    return changed


def _change(draw: st.DrawFn, message: Message, words: Sequence[str]) -> None:
    if not message.DESCRIPTOR.fields:
        return
    field: Any = draw(st.sampled_from([*message.DESCRIPTOR.fields]))
    is_map = field.message_type is not None and field.message_type.GetOptions().map_entry
    inner: list[Message] = []
    if field.message_type is not None and not is_map:
        inner = list(getattr(message, field.name)) if field.is_repeated else []
        inner = [getattr(message, field.name)] if not field.is_repeated and message.HasField(field.name) else inner
    deeper: int = draw(st.integers(0, 3)) if inner else 0
    if deeper:
        _change(draw, draw(st.sampled_from(inner)), words)
        return
    if inner and field.is_repeated and draw(st.booleans()):
        getattr(message, field.name).append(inner[0])  # twice the same
        return
    message.ClearField(field.name)
    if draw(st.integers(0, 3)):
        message.MergeFrom(type(message)(**{field.name: draw(_field(field, words, 2))}))


@st.composite
def damaged(draw: st.DrawFn, good: bytes) -> bytes:
    """The bytes of a message with some flipped, cut off, doubled, or others altogether."""
    content = bytearray(good)
    how = draw(st.sampled_from(("flip", "cut", "double", "noise")))
    if how == "noise" or not content:
        return draw(st.binary(max_size=60))
    at = draw(st.integers(0, len(content) - 1))
    if how == "cut":
        return bytes(content[:at])
    if how == "double":
        return bytes(content[at:] + content)
    for _ in range(draw(st.integers(1, 4))):
        content[draw(st.integers(0, len(content) - 1))] ^= draw(st.integers(1, 255))
    return bytes(content)


def said(kind: type[Message], goods: Sequence[Message], words: Sequence[str] = ()) -> st.SearchStrategy[bytes]:
    """One message as it travels: good, nearly so, any of its kind, or damaged."""
    good = st.sampled_from(goods)
    return st.one_of(
        good.map(_bytes),
        good.flatmap(lambda message: near(message, words)).map(_bytes),
        good.flatmap(lambda message: near(message, words)).map(_bytes),
        protos(kind, words).map(_bytes),
        good.flatmap(lambda message: damaged(_bytes(message))),
    )


def _bytes(message: Message) -> bytes:
    return message.SerializeToString()


#: What a peer does once it has said all: ends its half, goes away, or says nothing more.
ENDINGS = st.sampled_from(("end", "cancel", "silence"))


# --- calls with bytes


async def say(call: Any, messages: Iterable[bytes], ending: str) -> Any:
    """Says this in a call, unless it is over before, and then the end or nothing more; returns the call."""
    with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
        for message in messages:
            await call.write(message)
        if ending == "end":
            await call.done_writing()
    return call


REFUSALS = (
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.ABORTED,
)


def check_refusal(error: grpc.aio.AioRpcError) -> None:
    """Whoever is refused must hear why; a bug of ours says something else."""
    if "Internal error from Core" in (error.details() or ""):
        return  # so our own end says that it spoke to a closed ear
    assert error.code() in REFUSALS, error.details()
    assert error.details()


async def _no_answer(_: bytes) -> None:
    pass


async def heard(
    call: AsyncIterable[Any],
    seconds: float,
    hear: Callable[[bytes], Awaitable[None]] = _no_answer,
    first_s: float | None = None,
) -> tuple[list[bytes], grpc.StatusCode | None]:
    """What a call answers within this time, and its status if it ended; it is cancelled if not.

    With `first_s`, the time counts from the first answer, for which the call has `first_s` seconds.
    """
    found: list[bytes] = []
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(first_s or seconds) as limit:
            async for answer in call:
                if first_s is not None and not found:
                    limit.reschedule(loop.time() + seconds)
                found.append(answer)
                await hear(answer)
            return found, grpc.StatusCode.OK
    except grpc.aio.AioRpcError as error:
        check_refusal(error)
        return found, error.code()
    except TimeoutError:
        return found, None
    finally:
        call.cancel()  # type: ignore[attr-defined]


def speaking(path: str, messages: Iterable[bytes], ending: str = "silence") -> Callable[[grpc.aio.Server], None]:
    """A server whose method answers every call with these bytes, whatever it is asked; it can be a manager."""
    service, method = path.strip("/").split("/")
    kept = list(messages)

    async def answer(requests: Any, context: grpc.aio.ServicerContext) -> AsyncIterator[bytes | Opening]:
        yield shown_by()
        for message in kept:
            yield message
        if ending == "cancel":
            await context.abort(grpc.StatusCode.UNAVAILABLE, "gone")
        if ending == "silence":
            await asyncio.Event().wait()

    handler = grpc.method_handlers_generic_handler(service, {method: grpc.stream_stream_rpc_method_handler(answer)})
    return lambda server: server.add_generic_rpc_handlers((handler,))


# --- what is left behind


class _Errors(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.records: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        # gRPC itself says so when it cannot read an answer, when an event is for the loop of an earlier test, and when
        # it forgot a task of its own.
        text = record.getMessage()
        forgot = text.startswith("Task was destroyed") and "grpc/aio/_call.py" in text
        if text != "Exception deserializing message!" and "PollerCompletionQueue" not in text and not forgot:
            self.records.append(logging.Formatter().format(record))


@contextmanager
def _errors() -> Iterator[list[str]]:
    handler = _Errors()
    logging.getLogger().addHandler(handler)
    try:
        yield handler.records
    finally:
        logging.getLogger().removeHandler(handler)


@asynccontextmanager
async def unharmed() -> AsyncIterator[None]:
    """Within, nothing is logged as an error, and no task that begins outlives the block."""
    before = asyncio.all_tasks()
    with _errors() as errors:
        yield
        await until(lambda: not _left(before), lambda: f"tasks left: {_left(before)}")
        gc.collect(0)  # a task whose exception nobody looked at says so when it goes
    assert not errors, "\n".join(errors)


def _left(before: set[asyncio.Task[Any]]) -> list[asyncio.Task[Any]]:
    """Tasks that began since. gRPC itself sometimes forgets those of a call to a peer which was never reached."""
    return [task for task in asyncio.all_tasks() - before if not _of_grpc(task.get_coro())]


def _of_grpc(coroutine: Any) -> bool:
    writing = getattr(getattr(coroutine, "cr_await", None), "__name__", "") == "_write"
    return writing or getattr(coroutine, "__name__", "") == "_handle_status_once_received"


async def until(condition: Callable[[], bool], what: Callable[[], str] = lambda: "it did not come to that") -> None:
    """Waits for a condition that comes true by itself, soon."""
    deadline = asyncio.get_running_loop().time() + SOON_S
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, what()
        await asyncio.sleep(0.002)


async def soon(call: Awaitable[Any]) -> Any:
    """The result of what may not take long."""
    return await asyncio.wait_for(call, SOON_S)


def path(kind: str, method: str) -> str:
    """The name of a method on the wire."""
    return f"/fedgsp.v1.{kind}/{method}"
