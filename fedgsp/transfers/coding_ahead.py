"""Codes a model while it is sent: a thread codes the next block while a block is on its way."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable

from fedgsp.tensors.weights import Weights
from fedgsp.transfers.bases import Bases
from fedgsp.transfers.coding import Block, Encoder, blocks


async def frames(
    weights: Weights, base: Weights | None, bases: Bases, may_be_plain: Callable[[], bool]
) -> AsyncGenerator[bytes, None]:
    """The frames of a model, coded against a base or without one; `bases` learns how fast that was.

    A block whose code is not ready yet is sent as it is if `may_be_plain` says so: then the link would be idle.
    """
    coder = _Coder(Encoder(weights, base))
    found = list(blocks(weights.tensors, weights.bfloat16))
    try:
        for number, block in enumerate(found):
            if not coder.busy:
                coder.begin(block)
            await asyncio.sleep(0)  # the end of the thread's work is noticed in a turn of the loop
            if not coder.has(block) and may_be_plain():
                yield coder.encoder.plain(block)
                continue
            frame = await coder.frame(block)
            if number + 1 < len(found):
                coder.begin(found[number + 1])
            yield frame
    finally:
        coder.stop()
    bases.took(coder.size, coder.seconds)


class _Coder:
    """Codes one block at a time in a thread."""

    def __init__(self, encoder: Encoder) -> None:
        self.encoder = encoder
        #: Bytes that were coded, and the processor time in seconds that it took.
        self.size, self.seconds = 0, 0.0
        self._block: Block | None = None
        self._task: asyncio.Task[bytes] | None = None

    @property
    def busy(self) -> bool:
        return self._task is not None and not self._task.done()

    def begin(self, block: Block) -> None:
        self._block, self._task = block, asyncio.create_task(asyncio.to_thread(self._code, block))

    def has(self, block: Block) -> bool:
        """Whether the code of this block is ready."""
        return self._block == block and self._task is not None and self._task.done()

    async def frame(self, block: Block) -> bytes:
        """The code of a block, after that of another block that is not needed any more."""
        if self._block != block:
            if self._task is not None:
                await asyncio.wait([self._task])
            self.begin(block)
        assert self._task is not None
        return await self._task

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _code(self, block: Block) -> bytes:
        begin = time.thread_time()
        frame = self.encoder.frame(block)
        self.size, self.seconds = self.size + block.size, self.seconds + time.thread_time() - begin
        return frame
