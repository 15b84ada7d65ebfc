"""A model that goes through a pipe, between two processes of one machine.

The receiver confirms twice: that it has opened the pipe, and that it has taken all bytes. Until then, the sender keeps
the model, because the pipe holds references to its memory and no copies.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from fedgsp.messages import FailureCode
from fedgsp.pacing import Receipt
from fedgsp.pipes import PIPE_BYTES, Inlet, Outlet
from fedgsp.spill import reserve, walk
from fedgsp.stalls import in_time
from fedgsp.weights import MEMORY, Weights, WeightsError, require

#: A receiver takes pieces that fit into the processor's cache.
PIECE_BYTES = 512 * 1024
#: After so many pieces (some milliseconds), others take their turns, although the pipe is never empty.
MOST_IN_A_ROW = 4


async def put_all(outlet: Outlet, weights: Weights, receipt: Receipt, what: str, on_piece: Callable[[], None]) -> None:
    """Send weights through a pipe that the receiver has opened; returns when it has taken them.

    `what` names the model in errors, and `on_piece` is called while it goes. Raises WeightsError.
    """
    outlet.was_opened()
    gone = False
    try:
        for piece in walk(weights.buffer, PIPE_BYTES):
            put = 0
            while (put := put + outlet.put(piece[put:])) < piece.nbytes:
                await in_time(until_writable(outlet.descriptor), f"room in the pipe of {what}")
            on_piece()
    except BrokenPipeError:
        gone = True  # the receiver says why: its call has ended
    answer = await in_time(receipt(), f"receipt of {what}")
    require(
        answer is not None and not gone,
        FailureCode.BAD_STREAM,
        f"{what}: its receiver closed or refused a pipe that it had opened",
    )


async def until_writable(descriptor: int) -> None:
    """Wait until there is room in a pipe, or its receiver has gone."""
    loop, ready = asyncio.get_running_loop(), asyncio.Event()
    loop.add_writer(descriptor, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_writer(descriptor)


async def until_readable(descriptor: int) -> None:
    """Wait until there are bytes in a pipe, or its sender has gone."""
    loop, ready = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(descriptor, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(descriptor)


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
        self, confirm: Callable[[], Awaitable[None]], arrived: Callable[[NDArray[np.uint8]], Awaitable[None]]
    ) -> None:
        """Fill the weights, as far as their bytes come; `arrived` gets each part of the buffer that is filled.

        Raises WeightsError if the sender pauses for too long, and OSError if there is no disk for the weights.
        """
        buffer = self._weights.buffer
        with contextlib.closing(self._inlet):
            await in_time(confirm(), f"receipt of {self._what}")
            in_a_row = 0
            while not self.complete:
                start, end = self.filled, min(self.filled + PIECE_BYTES, buffer.nbytes)
                reserve(buffer, end)
                size = self._inlet.take(buffer.data[start:end])
                if size is None:
                    await in_time(until_readable(self._inlet.descriptor), f"chunk of {self._what}")
                    in_a_row = 0
                    continue
                if size == 0:
                    return  # the sender has gone; its call says why
                self.filled += size
                await arrived(buffer[start : self.filled])
                in_a_row += 1
                if in_a_row % MOST_IN_A_ROW == 0:
                    await asyncio.sleep(0)
        await in_time(confirm(), f"receipt of {self._what}")

    def put(self, chunk: memoryview) -> Iterator[NDArray[np.uint8]]:
        """Refuse bytes that come in a message."""
        raise WeightsError(FailureCode.BAD_STREAM, f"{self._what}: bytes came in a message in place of the pipe")
