"""A model as a stream of messages: sending it, and receiving it with all checks.

gRPC gets the messages as bytes (see `chunks`). Between processes of one machine, the bytes of the model pass through
shared memory, and messages only announce them (see `windows`).
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import TypeVar

from blake3 import blake3

from fedgsp import chunks, windows
from fedgsp.encoding import BFLOAT16, ENCODINGS, Decoder, encoded, wire_bytes
from fedgsp.limits.conversions import LARGE_BYTES
from fedgsp.limits.items import MOST_TENSORS
from fedgsp.memory import room
from fedgsp.messages import FailureCode, ModelHeader, ModelRef, TensorSpec
from fedgsp.pacing import Pace, Receipt
from fedgsp.relayed_state import check_state
from fedgsp.spill import Room, let_go, reserve
from fedgsp.weights import Finiteness, Weights, WeightsError, check_same_tensors, require, total_bytes
from fedgsp.windows import Window

logger = logging.getLogger(__name__)

CHUNK_BYTES = 512 * 1024
#: Longest pause between two chunks of a stream, in seconds.
CHUNK_TIMEOUT_S = 30.0
#: Largest number of tensors in a header; more would not fit into its message.
MAX_TENSORS = MOST_TENSORS

T = TypeVar("T")
#: Sends this message.
SendReceipt = Callable[[bool], Awaitable[None]]


async def chunks_of(model_id: str, weights: Weights, pace: Pace, here: bool) -> AsyncIterator[bytes]:
    """The messages that carry a model to one receiver: a header, then the weights in chunks, at its `pace`.

    If the receiver is `here`, on this machine, a large model is offered through a window (shared memory), and its
    chunks say only which part of the window to read. Raises WeightsError if the receiver does not confirm a chunk.
    """
    encoding, ref = BFLOAT16 if weights.bfloat16 else "", ModelRef(model_id, weights.buffer.nbytes)
    window = windows.lend() if here and ref.size >= windows.LEAST_BYTES else None
    yield chunks.header(ModelHeader(ref, weights.tensors, encoding, window.name if window else "", paced=True))
    # Beside the stream, in another thread: a model that was just made is sent while its digest is computed anyway.
    digest = None if weights.known_digest else asyncio.create_task(asyncio.to_thread(lambda: weights.digest))
    stream, what = encoded(weights, CHUNK_BYTES), f"model {model_id!r}"
    if window is not None and await _in_time(pace.receipt(), what):
        async for message in _through(window, stream, pace.receipt, what):
            yield message
    else:
        if window is not None:
            windows.give_back(window)  # the receiver could not open it
        for block in stream:
            while block:
                part, block = block[: pace.chunk_bytes], block[pace.chunk_bytes :]
                await pace.turn(len(part))
                yield chunks.data(part)
    yield chunks.digest(await digest if digest is not None else weights.digest)


async def _through(window: Window, stream: Iterator[memoryview], receipt: Receipt, what: str) -> AsyncIterator[bytes]:
    """Copy a stream into a window, slot by slot as slots become free, and give the window back at the end.

    If the transfer ends early, the window is dropped, because the receiver may still read it.
    """
    unread = 0

    async def one_is_read() -> None:
        nonlocal unread
        require(
            await _in_time(receipt(), what),
            FailureCode.BAD_STREAM,
            f"{what}: its receiver refused a window that it had opened",
        )
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
    finiteness, hasher, filled = Finiteness(weights), blake3(), 0
    decoder, size = Decoder(weights.buffer, header.tensors, bfloat16), wire_bytes(header.tensors, bfloat16)
    async for part in _content(stream, header, what, send_receipt):
        if isinstance(part, chunks.Digest):
            weights.known_digest = part.value
            continue
        end = filled + len(part)
        if end > size:
            raise WeightsError(FailureCode.TOO_LONG, f"{what}: more than the announced {size} bytes came")
        try:
            reserve(weights.buffer, decoder.filled + 2 * len(part))  # a byte that came fills at most two
            came = decoder.put(part)
        except ValueError as error:
            raise WeightsError(FailureCode.BAD_STREAM, f"{what}: {error}") from None
        except OSError as error:  # the sender is not to blame
            raise WeightsError(FailureCode.STALLED, f"{what}: no disk for its bytes: {error.strerror}") from None
        hasher.update(came.data)  # while the bytes are in the processor's cache
        finiteness.filled_to(decoder.filled)
        let_go(came)
        filled = end
        on_chunk()
    came_so_far = f"{what}: {filled} of {size} bytes came"
    require(weights.known_digest is not None, FailureCode.CUT_SHORT, f"{came_so_far}, and no digest")
    require(filled == size, FailureCode.CUT_SHORT, came_so_far)
    require(
        weights.known_digest == hasher.digest(),
        FailureCode.WRONG_DIGEST,
        f"{what}: the bytes do not have the announced digest",
    )
    finiteness.check()
    check_state(weights)
    return ref, weights


async def _content(
    stream: AsyncIterator[bytes], header: ModelHeader, what: str, send_receipt: SendReceipt
) -> AsyncIterator[memoryview | chunks.Digest]:
    """What follows a header: bytes, to be read before the next are asked for, and in the end their digest, if it came.

    The bytes come through the window that the header offers. If there is none, or it cannot be opened, they come in
    the messages, and each message is confirmed if the sender is paced.
    """
    window, number = None, 0
    if header.window:
        try:
            window = windows.opened(header.window)
        except OSError as error:
            logger.info("%s: no window: %s", what, error)
        await _in_time(send_receipt(window is not None), what)
    while (part := await _next(stream, what, CHUNK_TIMEOUT_S)) is not None:
        match part:
            case chunks.InWindow(size):
                if window is None or not 0 < size <= windows.SLOT_BYTES:
                    why = f"{size} bytes cannot be in a slot" if window else "no window is open"
                    raise WeightsError(FailureCode.BAD_STREAM, f"{what}: {why}")
                for start in range(0, size, CHUNK_BYTES):  # pieces that fit into a cache
                    yield window.slot(number)[start : min(size, start + CHUNK_BYTES)]
                number += 1
                await _in_time(send_receipt(True), what)
            case memoryview() if part:
                yield part
                if header.paced:
                    await _in_time(send_receipt(True), what)
            case chunks.Digest():
                yield part
                return
            case _:  # a second header, or an empty chunk: empty chunks could come forever
                raise WeightsError(FailureCode.BAD_STREAM, f"{what}: a chunk after the header holds no bytes")


def _check_header(
    what: str, header: ModelHeader, size: int, expected: tuple[TensorSpec, ...] | None, max_bytes: int
) -> None:
    """Raise WeightsError for a header that cannot be accepted, before memory is allocated for the model."""
    if expected is not None:
        check_same_tensors(header.tensors, expected, what)
    require(len(header.tensors) <= MAX_TENSORS, FailureCode.WRONG_SHAPES, f"{what} has {len(header.tensors)} tensors")
    found = total_bytes(header.tensors)
    require(found == size, FailureCode.WRONG_SHAPES, f"{what} announces {size} bytes, its tensors have {found}")
    require(size <= max_bytes, FailureCode.TOO_LONG, f"{what} has {size} bytes, at most {max_bytes} are taken")
    require(
        header.encoding in ENCODINGS,
        FailureCode.BAD_STREAM,
        f"{what} has the unknown encoding {header.encoding[:40]!r}",
    )


async def _next(stream: AsyncIterator[bytes], what: str, timeout_s: float | None) -> chunks.Part | None:
    try:
        async with asyncio.timeout(timeout_s):
            message = await anext(stream, None)
        if message is not None and len(message) > LARGE_BYTES and not chunks.is_data(message):
            return await asyncio.to_thread(chunks.read, message)  # a header of thousands of tensors
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
