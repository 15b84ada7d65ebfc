"""A model as a stream of messages: sending it, and receiving it with all checks.

gRPC gets the messages as bytes (see `chunks`). Between processes of one machine, the bytes of the model pass through
shared memory, and messages only announce them (see `windows`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import TypeVar

from xxhash import xxh3_128

from fedgsp import chunks, windows
from fedgsp.encoding import BFLOAT16, ENCODINGS, Decoder, encoded, wire_bytes
from fedgsp.memory import room
from fedgsp.messages import FailureCode, ModelHeader, ModelRef, TensorSpec
from fedgsp.spill import Room, let_go
from fedgsp.weights import Finiteness, Weights, WeightsError, check_same_tensors, total_bytes
from fedgsp.windows import Window

logger = logging.getLogger(__name__)

CHUNK_BYTES = 512 * 1024
#: Longest pause between two chunks of a stream, in seconds.
CHUNK_TIMEOUT_S = 30.0
#: Largest number of tensors in a header; more would not fit into its message.
MAX_TENSORS = 20_000

T = TypeVar("T")
#: Waits for the receiver's message that it has read a slot of the window; False if the receiver refuses the window.
Receipt = Callable[[], Awaitable[bool]]
#: Sends this message.
SendReceipt = Callable[[bool], Awaitable[None]]


async def chunks_of(model_id: str, weights: Weights, receipt: Receipt | None = None) -> AsyncIterator[bytes]:
    """The messages that carry a model to one receiver: a header, then the weights in chunks.

    `receipt` is given if the receiver is on this machine. A large model is then offered through a window (shared
    memory), and its chunks say only which part of the window to read. Raises WeightsError if the receiver does not
    confirm that it reads the window.
    """
    encoding, ref = BFLOAT16 if weights.bfloat16 else "", ModelRef(model_id, weights.buffer.nbytes)
    window = windows.lend() if receipt is not None and ref.size >= windows.LEAST_BYTES else None
    yield chunks.header(ModelHeader(ref, weights.tensors, encoding, window.name if window else ""))
    hasher = xxh3_128()

    def stream() -> Iterator[memoryview]:
        for piece, chunk in encoded(weights, CHUNK_BYTES):
            if weights.known_digest is None:
                hasher.update(piece)
            yield chunk

    what = f"model {model_id!r}"
    if receipt is not None and window is not None and await _in_time(receipt(), what):
        async for message in _through(window, stream(), receipt, what):
            yield message
    else:
        if window is not None:
            windows.give_back(window)  # the receiver could not open it
        for chunk in stream():
            yield chunks.data(chunk)
    if weights.known_digest is None:
        weights.known_digest = hasher.digest()
    yield chunks.digest(weights.known_digest)


async def _through(window: Window, stream: Iterator[memoryview], receipt: Receipt, what: str) -> AsyncIterator[bytes]:
    """Copy a stream into a window, slot by slot as slots become free, and give the window back at the end.

    If the transfer ends early, the window is dropped, because the receiver may still read it.
    """
    unread = 0

    async def one_is_read() -> None:
        nonlocal unread
        if not await _in_time(receipt(), what):
            raise WeightsError(FailureCode.BAD_STREAM, f"{what}: its receiver refused a window that it had opened")
        unread -= 1

    number = filled = 0
    for chunk in stream:
        done = 0
        while done < len(chunk):
            if not filled and unread == windows.SLOTS:
                await one_is_read()
            part = chunk[done : done + windows.SLOT_BYTES - filled]
            window.slot(number)[filled : filled + len(part)] = part
            done += len(part)
            filled += len(part)
            if filled == windows.SLOT_BYTES:
                yield chunks.in_window(filled)
                number, unread, filled = number + 1, unread + 1, 0
    if filled:
        yield chunks.in_window(filled)
        unread += 1
    while unread:
        await one_is_read()
    windows.give_back(window)


async def received(
    messages: AsyncIterator[bytes],
    expected: tuple[TensorSpec, ...] | None,
    max_bytes: int,
    accept: Callable[[str], bool],
    header_timeout_s: float | None,
    send_receipt: SendReceipt,
    on_chunk: Callable[[], None] = lambda: None,
    make_room: Room = room,
) -> tuple[ModelRef, Weights]:
    """Receive a model; raises WeightsError for a model that is not as announced, not expected or not accepted."""
    stream = aiter(messages)
    header = await _next(stream, "a model", header_timeout_s)
    if not isinstance(header, ModelHeader):
        raise WeightsError(FailureCode.BAD_STREAM, "the stream does not begin with a header")
    ref = header.ref
    if ref is None or not accept(ref.id):
        raise WeightsError(FailureCode.BAD_STREAM, f"model {ref.id if ref else ''!r} was not asked for")
    what = f"model {ref.id!r}"
    _check_header(what, header, ref.size, expected, max_bytes)
    bfloat16 = header.encoding == BFLOAT16
    try:
        weights = Weights(header.tensors, make_room(ref.size), bfloat16=bfloat16)
    except (OSError, MemoryError):
        raise WeightsError(
            FailureCode.TOO_LONG, f"{what} has {ref.size} bytes, for which there is no memory"
        ) from None
    source = _Source(stream, what, send_receipt)
    if header.window:
        await source.open(header.window)
    finiteness, hasher, filled = Finiteness(weights), xxh3_128(), 0
    decoder, size = Decoder(weights.buffer, header.tensors, bfloat16), wire_bytes(header.tensors, bfloat16)
    while (part := await source.next()) is not None:
        end = filled + len(part)
        if end > size:
            raise WeightsError(FailureCode.TOO_LONG, f"{what}: more than the announced {size} bytes came")
        try:
            came = decoder.put(part)
        except ValueError as error:
            raise WeightsError(FailureCode.BAD_STREAM, f"{what}: {error}") from None
        hasher.update(came.data)  # while the bytes are in the processor's cache
        finiteness.filled_to(decoder.filled)
        let_go(came)
        filled = end
        on_chunk()
    if source.digest is None:
        raise WeightsError(FailureCode.CUT_SHORT, f"{what}: {filled} of {size} bytes came, and no digest")
    if filled < size:
        raise WeightsError(FailureCode.CUT_SHORT, f"{what}: {filled} of {size} bytes came")
    if source.digest != hasher.digest():
        raise WeightsError(FailureCode.WRONG_DIGEST, f"{what}: the bytes do not have the announced digest")
    finiteness.check()
    weights.known_digest = source.digest
    return ref, weights


class _Source:
    """The bytes after a header, from the messages or from a window, and their digest, if one came."""

    def __init__(self, stream: AsyncIterator[bytes], what: str, send_receipt: SendReceipt) -> None:
        self._stream = stream
        self._what = what
        self._send_receipt = send_receipt
        self._window: Window | None = None
        self._number = 0  # of the window's next slot
        self._slot: memoryview | None = None  # what is still to be read of the last one
        self.digest: bytes | None = None

    async def open(self, name: str) -> None:
        """Opens the offered window. If that fails, the bytes come in the messages instead."""
        try:
            self._window = windows.opened(name)
        except OSError as error:
            logger.info("%s: no window: %s", self._what, error)
        await _in_time(self._send_receipt(self._window is not None), self._what)

    async def next(self) -> memoryview | None:
        """The next bytes, to be read before the next call; None at the end."""
        if self._slot:
            piece, self._slot = (
                self._slot[:CHUNK_BYTES],
                self._slot[CHUNK_BYTES:],
            )  # pieces that fit into a cache
            return piece
        if self._slot is not None:
            self._slot = None
            await _in_time(self._send_receipt(True), self._what)
        match await _next(self._stream, self._what, CHUNK_TIMEOUT_S):
            case None:
                return None
            case chunks.Digest(value):
                self.digest = value
                return None
            case chunks.InWindow(size):
                self._slot = self._next_slot(size)
                return await self.next()
            case memoryview() as part if part:
                return part
        # A second header, or an empty chunk: empty chunks could come forever.
        raise WeightsError(FailureCode.BAD_STREAM, f"{self._what}: a chunk after the header holds no bytes")

    def _next_slot(self, size: int) -> memoryview:
        if self._window is None or not 0 < size <= windows.SLOT_BYTES:
            why = f"{size} bytes cannot be in a slot" if self._window else "no window is open"
            raise WeightsError(FailureCode.BAD_STREAM, f"{self._what}: {why}")
        slot = self._window.slot(self._number)[:size]
        self._number += 1
        return slot


def _check_header(
    what: str, header: ModelHeader, size: int, expected: tuple[TensorSpec, ...] | None, max_bytes: int
) -> None:
    """Raise WeightsError for a header that cannot be accepted, before memory is allocated for the model."""
    if expected is not None:
        check_same_tensors(header.tensors, expected, what)
    if len(header.tensors) > MAX_TENSORS:
        raise WeightsError(FailureCode.WRONG_SHAPES, f"{what} has {len(header.tensors)} tensors")
    if total_bytes(header.tensors) != size:
        found = total_bytes(header.tensors)
        raise WeightsError(FailureCode.WRONG_SHAPES, f"{what} announces {size} bytes, its tensors have {found}")
    if size > max_bytes:
        raise WeightsError(FailureCode.TOO_LONG, f"{what} has {size} bytes, at most {max_bytes} are taken")
    if header.encoding not in ENCODINGS:
        raise WeightsError(FailureCode.BAD_STREAM, f"{what} has the unknown encoding {header.encoding[:40]!r}")


async def _next(stream: AsyncIterator[bytes], what: str, timeout_s: float | None) -> chunks.Part | None:
    try:
        async with asyncio.timeout(timeout_s):
            message = await anext(stream, None)
        return None if message is None else chunks.read(message)
    except TimeoutError:
        raise WeightsError(FailureCode.STALLED, f"no chunk of {what} for {timeout_s:.0f} s") from None
    except ValueError as error:
        raise WeightsError(FailureCode.BAD_STREAM, f"{what}: {error}") from None


async def _in_time(answer: Awaitable[T], what: str) -> T:
    try:
        async with asyncio.timeout(CHUNK_TIMEOUT_S):
            return await answer
    except TimeoutError:
        raise WeightsError(FailureCode.STALLED, f"no receipt of {what} for {CHUNK_TIMEOUT_S:.0f} s") from None
