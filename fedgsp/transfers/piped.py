"""A model that goes through a pipe, between two processes of one machine.

The receiver confirms twice: that it has opened the pipe, and that it has taken all bytes. Until then, the sender keeps
the model, because the pipe holds references to its memory and no copies.
"""

import asyncio
import contextlib
import errno
import select
import time
from collections.abc import Awaitable, Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from fedgsp.messages import FailureCode
from fedgsp.tensors.spill import lacks_pages, reserve, touch, walk
from fedgsp.tensors.weights import MEMORY, Weights, WeightsError, disk_for, require
from fedgsp.transfers.pacing import Receipt
from fedgsp.transfers.pipes import Inlet, Outlet
from fedgsp.transfers.stalls import in_time

#: A receiver takes pieces that fit into the processor's cache.
PIECE_BYTES = 512 * 1024
#: Both ends prepare so many bytes of a file at once.
AHEAD_BYTES = 4 << 20
#: Longest time in a thread, in seconds, and longest wait for the other end there, in milliseconds.
STRETCH_S, PATIENCE_MS = 0.02, 5
#: The end of the call of a transfer. A server needs none: gRPC cancels what handles a call that has ended.
Over = asyncio.Future[None] | None


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
        for piece in walk(weights.buffer, AHEAD_BYTES):
            await _bring_in(piece)
            done = 0
            while done < piece.nbytes and not _is_done(over):
                put = await asyncio.to_thread(_put, outlet, piece[done:])
                done += put
                if put:
                    on_piece()
                else:
                    await in_time(until_writable(outlet.descriptor, over), f"room in the pipe of {what}")
            if done < piece.nbytes:
                raise BrokenPipeError
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


def _put(outlet: Outlet, part: NDArray[np.uint8]) -> int:
    """Put a part into a pipe, as far as there is room in a stretch; returns the number of bytes."""
    put = 0
    for _ in _stretch(outlet.descriptor, select.POLLOUT):
        put += outlet.put(part[put:])
        if put == part.nbytes:
            break
    return put


def _stretch(descriptor: int, events: int) -> Iterator[None]:
    """Yields again and again while the other end of a pipe is in step; in a thread.

    An event loop that waits for a pipe takes longer for each wait than a thread. But a thread cannot be cancelled, and
    others need it: it goes back to the event loop soon.
    """
    ready = select.poll()
    ready.register(descriptor, events)
    end = time.monotonic() + STRETCH_S
    yield
    while time.monotonic() < end and ready.poll(PATIENCE_MS):
        yield


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
        arrived: Callable[[NDArray[np.uint8]], None],
        go_on: Callable[[], Awaitable[None]],
        over: Over = None,
    ) -> None:
        """Fill the weights, as far as their bytes come.

        `arrived` gets each part of the buffer that is filled, in a thread. `go_on` is awaited from time to time.
        `over` is done when the call of the transfer has ended. Raises WeightsError if the sender pauses for too long,
        or the disk has no room for the weights.
        """
        buffer = self._weights.buffer
        with contextlib.closing(self._inlet):
            await in_time(confirm(), f"receipt of {self._what}")
            prepared = 0
            while not self.complete:
                with disk_for(self._what):
                    if prepared == self.filled:
                        prepared = min(prepared + AHEAD_BYTES, buffer.nbytes)
                        reserve(buffer, prepared)
                        await _bring_in(buffer[self.filled : prepared], to_write=True)
                    before = self.filled
                    ended = await asyncio.to_thread(self._take, prepared, arrived)
                if self.filled > before:
                    await go_on()
                elif ended or _is_done(over):
                    return  # the sender has gone, or the call has ended; the call says why
                else:
                    await in_time(until_readable(self._inlet.descriptor, over), f"chunk of {self._what}")
        await in_time(confirm(), f"receipt of {self._what}")

    def _take(self, end: int, arrived: Callable[[NDArray[np.uint8]], None]) -> bool:
        """Fill the buffer up to `end`, as far as its bytes come in a stretch; returns whether no more come."""
        buffer = self._weights.buffer
        for _ in _stretch(self._inlet.descriptor, select.POLLIN):
            begin = self.filled
            size = self._inlet.take(buffer.data[begin : min(begin + PIECE_BYTES, end)])
            if size == 0:
                return True
            if size is not None:
                self.filled += size
                arrived(buffer[begin : self.filled])
            if self.filled == end:
                break
        return False

    def put(self, chunk: memoryview) -> Iterator[NDArray[np.uint8]]:
        """Refuse bytes that come in a message."""
        raise WeightsError(FailureCode.BAD_STREAM, f"{self._what}: bytes came in a message in place of the pipe")
