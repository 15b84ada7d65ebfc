"""A model as a stream of messages: from its holder, and, with all checks, to whoever wants it.

gRPC is given the bytes of the messages: see `chunks`. Between processes of one machine the model's bytes go through
memory that both see, and messages only say that they are there: see `windows`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

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
#: Longest silence inside a stream of chunks.
CHUNK_TIMEOUT_S = 30.0
#: Tensors a header may name; more do not fit its message anyway.
MAX_TENSORS = 20_000

#: Waits until the receiver has said that it took what was in a window; whether it could.
Receipt = Callable[[], Awaitable[bool]]
#: Says so.
SendReceipt = Callable[[bool], Awaitable[None]]


async def chunks_of(model_id: str, weights: Weights, receipt: Receipt | None = None) -> AsyncIterator[bytes]:
    """The messages of a model. With `receipt` its receiver is on this machine, and may be offered a window."""
    encoding, ref = BFLOAT16 if weights.bfloat16 else "", ModelRef(model_id, weights.buffer.nbytes)
    window = windows.lend() if receipt is not None and ref.size >= windows.LEAST_BYTES else None
    yield chunks.header(ModelHeader(ref, weights.tensors, encoding, window.name if window else ""))
    hasher = xxh3_128()

    def stream(chunk_bytes: int) -> Iterator[memoryview]:
        for piece, chunk in encoded(weights, chunk_bytes):
            if weights.known_digest is None:
                hasher.update(piece)
            yield chunk

    if receipt is not None and window is not None and await receipt():
        async for message in _through(window, stream(windows.SLOT_BYTES), receipt):
            yield message
    else:
        for chunk in stream(CHUNK_BYTES):
            yield chunks.data(chunk)
    if weights.known_digest is None:
        weights.known_digest = hasher.digest()
    yield chunks.digest(weights.known_digest)


async def _through(window: Window, stream: Iterator[memoryview], receipt: Receipt) -> AsyncIterator[bytes]:
    """Puts what a stream holds into a window, slot by slot as they are free, and gives the window back."""
    unread = 0
    for number, chunk in enumerate(stream):
        if unread == windows.SLOTS:
            await receipt()
            unread -= 1
        window.slot(number)[: len(chunk)] = chunk
        yield chunks.in_window(len(chunk))
        unread += 1
    for _ in range(unread):
        await receipt()
    windows.give_back(window)  # which is dropped if this ends before: somebody may still read it


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
    """The model that a stream holds; raises WeightsError for any that is not as announced, expected or accepted."""
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
        hasher.update(came.data)  # while it is in the cache
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
    """The bytes that follow a header, from the messages or from a window, and then their digest, if one came."""

    def __init__(self, stream: AsyncIterator[bytes], what: str, send_receipt: SendReceipt) -> None:
        self._stream = stream
        self._what = what
        self._send_receipt = send_receipt
        self._window: Window | None = None
        self._number = 0  # of the window's next slot
        self._unread = False  # whether the last bytes are still there to be read
        self.digest: bytes | None = None

    async def open(self, name: str) -> None:
        """Opens the window that was offered; if that cannot be, the bytes will travel."""
        try:
            self._window = windows.opened(name)
        except OSError as error:
            logger.info("%s: no window: %s", self._what, error)
        await self._send_receipt(self._window is not None)

    async def next(self) -> memoryview | None:
        """The next bytes, to be read before the next call; None at the end."""
        if self._unread:
            self._unread = False
            await self._send_receipt(True)
        part = await _next(self._stream, self._what, CHUNK_TIMEOUT_S)
        match part:
            case None:
                return None
            case chunks.Digest(value):
                self.digest = value
                return None
            case chunks.InWindow(size) if self._window is not None and 0 < size <= windows.SLOT_BYTES:
                self._unread = True
                self._number += 1
                return self._window.slot(self._number - 1)[:size]
            case memoryview() if part:
                return part
        # A second header; or nothing, which could go on forever; or what is in no window.
        raise WeightsError(FailureCode.BAD_STREAM, f"{self._what}: a chunk after the header holds no bytes")


def _check_header(
    what: str, header: ModelHeader, size: int, expected: tuple[TensorSpec, ...] | None, max_bytes: int
) -> None:
    """Before a byte is allocated."""
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
