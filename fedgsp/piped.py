"""A model that goes through a pipe, between two processes of one machine.

The receiver confirms twice: that it has opened the pipe, and that it has taken all bytes. Until then, the sender keeps
the model, because the pipe holds references to its memory and no copies.
"""

import asyncio
import contextlib
import errno
from collections.abc import Awaitable, Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from fedgsp.messages import FailureCode
from fedgsp.pacing import Receipt
from fedgsp.pipes import PIPE_BYTES, Inlet, Outlet
from fedgsp.spill import lacks_pages, reserve, touch, walk
from fedgsp.stalls import in_time
from fedgsp.weights import MEMORY, Weights, WeightsError, disk_for, require

#: A receiver takes pieces that fit into the processor's cache.
PIECE_BYTES = 512 * 1024
#: A receiver prepares so many bytes of a file at once.
AHEAD_BYTES = 4 << 20
#: The end of the call of a transfer. A server needs none: gRPC cancels what handles a call that has ended.
Over = asyncio.Future[None] | None
#: After so many pieces (some milliseconds), others take their turns, although the pipe is never empty.
MOST_IN_A_ROW = 4


async def put_all(
    outlet: Outlet, weights: Weights, receipt: Receipt, what: str, on_piece: Callable[[], None], over: Over = None
) -> None:
    """Send weights through a pipe that the receiver has opened; returns when it has taken them.

    `what` names the model in errors, and `on_piece` is called while it goes. `over` is done when the call of the
    transfer has ended. Raises WeightsError, or what `receipt` raises for a call that has ended.
    """
    outlet.was_opened()
    gone = False
    try:
        for piece in walk(weights.buffer, PIPE_BYTES):
            await _bring_in(piece)
            put = 0
            while (put := put + outlet.put(piece[put:])) < piece.nbytes:
                await in_time(until_writable(outlet.descriptor, over), f"room in the pipe of {what}")
                if _is_done(over):
                    raise BrokenPipeError
            on_piece()
            await asyncio.sleep(0)  # others take their turns while the pipe is never full
    except BrokenPipeError:
        gone = True
    except OSError as error:
        code = FailureCode.NO_ROOM if error.errno == errno.ENOMEM else FailureCode.UNREACHABLE
        raise WeightsError(code, f"{what} cannot be put into a pipe: {error.strerror}") from None
    # If the receiver has gone, its call says why.
    answer = await in_time(receipt(), f"receipt of {what}")
    require(
        answer is not None and not gone,
        FailureCode.BAD_STREAM,
        f"{what}: its receiver closed or refused a pipe that it had opened",
    )


async def until_writable(descriptor: int, over: Over = None) -> None:
    """Wait until there is room in a pipe, its receiver has gone, or its call is over."""
    loop = asyncio.get_running_loop()
    await _until(loop.add_writer, loop.remove_writer, descriptor, over)


async def until_readable(descriptor: int, over: Over = None) -> None:
    """Wait until there are bytes in a pipe, its sender has gone, or its call is over."""
    loop = asyncio.get_running_loop()
    await _until(loop.add_reader, loop.remove_reader, descriptor, over)


def _is_done(over: Over) -> bool:
    return over is not None and over.done()


async def _until(watch: Callable[..., None], unwatch: Callable[[int], object], descriptor: int, over: Over) -> None:
    ready = asyncio.Event()

    def wake(*_: object) -> None:
        ready.set()

    watch(descriptor, wake)
    if over is not None:
        over.add_done_callback(wake)
    try:
        await ready.wait()
    finally:
        unwatch(descriptor)
        if over is not None:
            over.remove_done_callback(wake)


async def _bring_in(piece: NDArray[np.uint8], to_write: bool = False) -> None:
    """Bring a piece into memory, if it is in a file and is not there yet.

    The system reads pages that are missing while it holds the pipe, and so both ends would wait for the disk.
    """
    if lacks_pages(piece):
        await asyncio.to_thread(touch, piece, to_write)


class Piped:
    """Fills weights from a pipe. What it has in common with `encoding.Plain` is what a stream needs."""

    coding = MEMORY

    def __init__(self, what: str, weights: Weights, inlet: Inlet) -> None:
        """`what` names the model in errors."""
        self._what, self._weights, self._inlet = what, weights, inlet
        #: Number of bytes of the buffer that are filled.
        self.filled = 0

    @property
    def so_far(self) -> str:
        """How many bytes came, as text."""
        return f"{self.filled} of {self._weights.buffer.nbytes} bytes came"

    @property
    def complete(self) -> bool:
        """Whether the weights are full."""
        return self.filled == self._weights.buffer.nbytes

    async def take_all(
        self,
        confirm: Callable[[], Awaitable[None]],
        arrived: Callable[[NDArray[np.uint8]], Awaitable[None]],
        over: Over = None,
    ) -> None:
        """Fill the weights, as far as their bytes come; `arrived` gets each part of the buffer that is filled.

        `over` is done when the call of the transfer has ended. Raises WeightsError if the sender pauses for too long,
        or the disk has no room for the weights.
        """
        buffer = self._weights.buffer
        with contextlib.closing(self._inlet):
            await in_time(confirm(), f"receipt of {self._what}")
            in_a_row = prepared = 0
            while not self.complete:
                start, end = self.filled, min(self.filled + PIECE_BYTES, buffer.nbytes)
                with disk_for(self._what):
                    if prepared < end:
                        ahead = min(prepared + AHEAD_BYTES, buffer.nbytes)
                        reserve(buffer, ahead)
                        await _bring_in(buffer[prepared:ahead], to_write=True)
                        prepared = ahead
                    size = self._inlet.take(buffer.data[start:end])
                if size is None and not _is_done(over):
                    await in_time(until_readable(self._inlet.descriptor, over), f"chunk of {self._what}")
                    in_a_row = 0
                    continue
                if not size:
                    return  # the sender has gone, or the call has ended; the call says why
                self.filled += size
                await arrived(buffer[start : self.filled])
                in_a_row += 1
                if in_a_row % MOST_IN_A_ROW == 0:
                    await asyncio.sleep(0)
        await in_time(confirm(), f"receipt of {self._what}")

    def put(self, chunk: memoryview) -> Iterator[NDArray[np.uint8]]:
        """Refuse bytes that come in a message."""
        raise WeightsError(FailureCode.BAD_STREAM, f"{self._what}: bytes came in a message in place of the pipe")
