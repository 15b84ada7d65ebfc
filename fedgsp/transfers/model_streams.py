"""A model as a stream of messages: sending it, and receiving it with all checks.

gRPC gets the messages as bytes (see `chunks`). Between processes of one machine, the bytes of the model pass through
a pipe, and messages only offer it (see `piped`). Over slow links, the bytes may be coded against a model that both
ends have (see `coding` and `bases`).
"""

import asyncio
import contextlib
import functools
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from typing import TypeVar

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from fedgsp.limits.conversions import LARGE_BYTES
from fedgsp.limits.items import MOST_TENSORS
from fedgsp.messages import FailureCode, ModelHeader, ModelRef, TensorSpec
from fedgsp.tensors.encoding import BFLOAT16, ENCODINGS, Plain, encoded, wire_bytes
from fedgsp.tensors.memory import room
from fedgsp.tensors.relayed_state import check_state
from fedgsp.tensors.spill import Room, let_go
from fedgsp.tensors.weights import (
    RAW,
    Came,
    Finiteness,
    Weights,
    WeightsError,
    check_same_tensors,
    disk_for,
    require,
    total_bytes,
)
from fedgsp.transfers import chunks, coding, coding_ahead, pipes, stalls
from fedgsp.transfers.bases import Bases, Offer
from fedgsp.transfers.landing import Landing
from fedgsp.transfers.pacing import Pace
from fedgsp.transfers.piped import PIECE_BYTES, Over, Piped, put_all
from fedgsp.transfers.stalls import in_time

logger = logging.getLogger(__name__)

#: A header with more tensors is checked in another thread.
TENSORS_AT_ONCE = 256
#: Largest number of tensors in a header; more would not fit into its message.
MAX_TENSORS = MOST_TENSORS

T = TypeVar("T")
#: The tensors that a model must have, by its id; None if they are not known.
TensorsOf = Callable[[str], tuple[TensorSpec, ...] | None]
#: Sends this message: None for a refusal, otherwise the number of the chosen base.
SendReceipt = Callable[[int | None], Awaitable[None]]


async def chunks_of(
    model_id: str,
    weights: Weights,
    pace: Pace,
    bases: Bases | None = None,
    on_chunk: Callable[[], None] = lambda: None,
    over: Over = None,
) -> AsyncGenerator[bytes, None]:
    """The messages that carry a model to one receiver: a header, then the weights in chunks, at its `pace`.

    If the receiver is on this machine (`Pace.here`), a large model is offered through a pipe. If it is not, the model
    may be offered in code, against one of `bases`. `on_chunk` is called while the model goes, and `over` is done when
    the call has ended. Raises WeightsError if the receiver does not confirm what came.
    """
    ref, what = ModelRef(model_id, weights.buffer.nbytes), f"model {model_id!r}"
    size = wire_bytes(weights.tensors, weights.bfloat16)
    offer = Offer() if pace.here or bases is None else await bases.offer(model_id, weights, pace.way)
    with contextlib.ExitStack() as at_the_end:
        outlet = pipes.offer() if pace.here and ref.size >= pipes.LEAST_BYTES else None
        if outlet is not None:
            at_the_end.callback(outlet.close)
        yield chunks.header(
            ModelHeader(
                ref,
                weights.tensors,
                BFLOAT16 if weights.bfloat16 else "",
                outlet.name if outlet else "",
                paced=True,
                coding=coding.CODING if offer.coded else "",
                bases=tuple(base.digest for base in offer.bases),
                remember=offer.remember,
            )
        )
        # Beside the stream, in another thread: a model that was just made is sent while its digest is computed anyway.
        digest = None if weights.known_digest else asyncio.create_task(asyncio.to_thread(lambda: weights.digest))
        answer = await in_time(pace.receipt(), f"receipt of {what}") if outlet is not None or offer.coded else None
        if outlet is not None and answer is None:
            outlet.close()  # the receiver cannot open it
        if outlet is not None and answer is not None:
            await put_all(outlet, weights, pace.receipt, what, on_chunk, over)
        elif offer.coded and answer is not None and bases is not None:
            pace.carries(size, coded=True)
            async for message in _coded(weights, offer, answer, bases, pace, what):
                yield message
                on_chunk()
        else:
            pace.carries(size, coded=False)
            for block in encoded(weights, pace.most_chunk):
                async for message in _paced(block, pace):
                    yield message
                    on_chunk()
    value = await digest if digest is not None else weights.digest
    if offer.remember and bases is not None:
        await bases.remember(weights)
    yield chunks.digest(value)


async def _paced(block: memoryview, pace: Pace) -> AsyncIterator[bytes]:
    """The messages of a block, each when it may leave."""
    while block:
        part, block = block[: pace.chunk_bytes], block[pace.chunk_bytes :]
        await pace.turn(len(part))
        yield chunks.data(part)


async def _coded(
    weights: Weights, offer: Offer, answer: int, bases: Bases, pace: Pace, what: str
) -> AsyncIterator[bytes]:
    """The messages of a coded stream, against the base that the receiver has chosen."""
    require(answer <= len(offer.bases), FailureCode.BAD_STREAM, f"{what}: base {answer} was chosen, and not offered")
    base = offer.bases[answer - 1] if answer else None
    if base is not None:
        bases.used(base.digest)

    def may_be_plain() -> bool:
        return offer.in_haste and pace.way.is_idle

    async with contextlib.aclosing(coding_ahead.frames(weights, base, bases, may_be_plain)) as frames:
        async for frame in frames:
            async for message in _paced(memoryview(frame), pace):
                yield message


async def received(
    messages: AsyncIterator[bytes],
    tensors_of: TensorsOf,
    max_bytes: int,
    accept: Callable[[str], bool],
    header_timeout_s: float | None,
    send_receipt: SendReceipt,
    on_chunk: Callable[[], None] = lambda: None,
    make_room: Room = room,
    bases: Bases | None = None,
    landing_of: Callable[[str], Landing | None] = lambda _: None,
    over: Over = None,
) -> tuple[ModelRef, Weights]:
    """Receive a model; raises WeightsError for a model that is not as announced, not expected or not accepted.

    `tensors_of` gives the tensors that it must have by its id, or None if they are not known. The model may come in
    code against one of `bases`. If `landing_of` gives a landing for its id, its bytes go there, and the weights that
    are returned have none. `over` is done when the call has ended.
    """
    stream = aiter(messages)
    header = await _next(stream, "a model", header_timeout_s)
    if not isinstance(header, ModelHeader):
        raise WeightsError(FailureCode.BAD_STREAM, "the stream does not begin with a header")
    ref = header.ref
    if ref is None or not accept(ref.id):
        raise WeightsError(FailureCode.BAD_STREAM, f"model {ref.id if ref else ''!r} was not asked for")
    what = f"model {ref.id!r}"
    # A header of thousands of tensors takes long, and nobody else could be served meanwhile.
    many = len(header.tensors) > TENSORS_AT_ONCE
    check = functools.partial(_check_header, what, header, ref.size, tensors_of(ref.id), max_bytes)
    await asyncio.to_thread(check) if many else check()
    landing = landing_of(ref.id)
    if landing is not None:
        make_room, bases = landing.room, None  # bytes that are gone can be no base
    made = functools.partial(_empty, what, header, ref.size, make_room)
    weights, finiteness = await asyncio.to_thread(made) if many else made()
    filling, travelled, hasher = await _filling(header, what, weights, bases, send_receipt), 0, blake3()

    def came(part: NDArray[np.uint8]) -> None:
        hasher.update(part.data)  # while the bytes are in the processor's cache
        finiteness.filled_to(filling.filled)
        let_go(part)

    def take(chunk: memoryview) -> None:
        with disk_for(what):
            for part in filling.put(chunk):
                came(part)

    async def go_on() -> None:
        on_chunk()
        if landing is not None:
            await landing.filled_to(filling.filled)

    if isinstance(filling, Piped):
        await filling.take_all(lambda: send_receipt(0), came, go_on, over)
    async for chunk in _content(stream, header, what, send_receipt):
        if isinstance(chunk, chunks.Digest):
            weights.known_digest = chunk.value
            continue
        travelled += len(chunk)
        if filling.coding == RAW:
            take(chunk)
        else:
            await asyncio.to_thread(take, chunk)  # decoding takes milliseconds
        await go_on()
    require(weights.known_digest is not None, FailureCode.CUT_SHORT, f"{what}: {filling.so_far}, and no digest")
    require(filling.complete, FailureCode.CUT_SHORT, f"{what}: {filling.so_far}")
    require(
        weights.known_digest == hasher.digest(),
        FailureCode.WRONG_DIGEST,
        f"{what}: the bytes do not have the announced digest",
    )
    finiteness.check(gone=landing is not None)
    await asyncio.to_thread(check_state, weights) if many else check_state(weights)
    weights.came = Came(travelled, filling.coding)
    if header.remember and bases is not None and bases.takes_codes:
        await bases.remember(weights)
    return ref, weights


def _empty(what: str, header: ModelHeader, size: int, make_room: Room) -> tuple[Weights, Finiteness]:
    """Weights without their bytes, and the check for finite values as these come; WeightsError if memory is full."""
    try:
        weights = Weights(header.tensors, make_room(size), bfloat16=header.encoding == BFLOAT16)
    except (OSError, MemoryError):
        raise WeightsError(FailureCode.NO_ROOM, f"{what} has {size} bytes, for which there is no memory") from None
    return weights, Finiteness(weights)


async def _filling(
    header: ModelHeader, what: str, weights: Weights, bases: Bases | None, send_receipt: SendReceipt
) -> Plain | Piped | coding.Decoder:
    """What fills the weights from the bytes of a stream. If the sender offers a code, it is answered.

    If the sender offers a pipe that cannot be opened, it is told so, and the bytes come in messages.
    """
    if header.pipe:
        try:
            return Piped(what, weights, pipes.opened(header.pipe))
        except OSError as error:
            logger.info("%s: no pipe: %s", what, error)
    if header.coding and bases is not None and bases.takes_codes:
        number = await bases.chosen(header.ref.id if header.ref else "", weights, header.bases)
        base = bases.used(header.bases[number - 1]) if number else None
        await in_time(send_receipt(number), f"receipt of {what}")
        return coding.Decoder(what, weights, base)
    if header.pipe or header.coding:
        await in_time(send_receipt(None), f"receipt of {what}")
    return Plain(what, weights)


async def _content(
    stream: AsyncIterator[bytes], header: ModelHeader, what: str, send_receipt: SendReceipt
) -> AsyncIterator[memoryview | chunks.Digest]:
    """What follows a header: bytes, to be read before the next are asked for, and in the end their digest, if it came.

    Each message with bytes is confirmed if the sender is paced.
    """
    while (part := await _next(stream, what, stalls.CHUNK_TIMEOUT_S)) is not None:
        match part:
            case memoryview() if part:
                for piece in _pieces(part):
                    yield piece
                if header.paced:
                    await in_time(send_receipt(0), f"receipt of {what}")
            case chunks.Digest():
                yield part
                return
            case _:  # a second header, or an empty chunk: empty chunks could come forever
                raise WeightsError(FailureCode.BAD_STREAM, f"{what}: a chunk after the header holds no bytes")


def _pieces(part: memoryview) -> Iterator[memoryview]:
    return (part[start : start + PIECE_BYTES] for start in range(0, len(part), PIECE_BYTES))


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
    require(
        header.coding in ("", coding.CODING),
        FailureCode.BAD_STREAM,
        f"{what} has the unknown coding {header.coding[:40]!r}",
    )
    require(
        not (header.coding and header.pipe), FailureCode.BAD_STREAM, f"{what} is offered in code and through a pipe"
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
