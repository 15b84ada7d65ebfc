"""Large models of nodes on this machine, uploaded at the same time and folded block by block as they come.

So the manager has neither the models nor sums of their size. If anything goes wrong, the models are still at their
nodes: they are then fetched and folded one after the other, as models from other machines are.
"""

import asyncio
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedgsp.means.block_mean import BlockMean
from fedgsp.messages import Failure, FailureCode, Trained
from fedgsp.tensors.relayed_state import is_state
from fedgsp.tensors.spill import SPILLED_BYTES
from fedgsp.tensors.weights import Weights, WeightsError, require, total_bytes
from group_manager.group import Group
from group_manager.programs.window import AHEAD_PER_NODE, MemberResult

#: Most models at once: each has a pipe, and stays at its node until all are folded.
MOST = 16
#: Bytes that are folded at once, and bytes of a model that may come before those of the others.
STEP_BYTES, AHEAD_BYTES = 2 << 20, 16 << 20


def fits(group: Group) -> bool:
    """Whether the models of a group should be folded so.

    Over a network it would be slower: the first model would travel only when the last one is trained. Updates whose
    lengths are limited, and the state of an optimiser, can be checked only when they are here.
    """
    request = group.request
    nodes = [member.node for member in request.members]
    return (
        1 < len(nodes) <= MOST
        and all(nodes.count(node) <= AHEAD_PER_NODE and group.members.near(node) for node in nodes)
        and not request.most_update_ratio
        and bool(request.tensors)
        and not any(map(is_state, request.tensors))
        and total_bytes(request.tensors) >= SPILLED_BYTES
    )


async def mean(group: Group, results: Sequence[MemberResult]) -> Weights | Failure:
    """The mean of trained models, by the weights of their members; a failure if one of them did not come well."""
    try:
        folding = _Folding(BlockMean(group.request.tensors, [one.member.weight for one in results]))
    except (OSError, MemoryError) as error:
        return Failure(FailureCode.NO_ROOM, f"no memory is left to fold the models together: {error}")
    tasks = [asyncio.create_task(folding.run(), name="fold")]
    for one, place in zip(results, folding.places, strict=True):
        assert isinstance(one.outcome, Trained)
        assert one.outcome.ref is not None
        upload = group.models.upload_into(place, one.model_id, one.member.node, one.outcome.ref.digest)
        tasks.append(asyncio.create_task(upload, name=f"carry {one.model_id}"))
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            task.result()
    except WeightsError as error:
        return error.failure
    finally:
        folding.end()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return folding.mean.result()


class _Folding:
    """Folds as far as all models have come."""

    def __init__(self, mean: BlockMean) -> None:
        self.mean = mean
        self.places = [Place(self, room) for room in mean.rooms]
        self.over = False
        self._moved = asyncio.Event()

    async def run(self) -> None:
        """Folds until the end of the models."""
        while self.mean.folded < self.mean.size:
            end = min(place.filled for place in self.places)
            if end - self.mean.folded < STEP_BYTES and end < self.mean.size:
                await self.moved()
            else:
                await asyncio.to_thread(self.mean.fold_to, end)
                self.move()

    def end(self) -> None:
        """Nothing is folded any more; uploads that wait are refused."""
        self.over = True
        self.move()

    def move(self) -> None:
        """Wakes all who wait for `moved`."""
        self._moved.set()
        self._moved = asyncio.Event()

    async def moved(self) -> None:
        """Waits until bytes came or were folded, or until the end."""
        await self._moved.wait()


class Place:
    """Where the bytes of one model go: a `fedgsp.transfers.landing.Landing`. They come once.

    What came may be folded before its digest is known. If the upload is cut off, nobody can take that back, and a
    second upload would hide it.
    """

    def __init__(self, folding: _Folding, room: NDArray[np.uint8]) -> None:
        self._folding = folding
        self._room = room
        self._taken = False
        self.filled = 0
        #: Names, shapes and digest of the model that came; its bytes are gone.
        self.came: Weights | None = None

    def room(self, size: int) -> NDArray[np.uint8]:
        """The memory for the model; raises WeightsError for a model of another size, and for a second upload."""
        require(size == len(self._room), FailureCode.WRONG_SHAPES, f"a model has {size} bytes")
        require(not self._taken, FailureCode.CANCELLED, "an upload of it began before, and its bytes may be folded")
        self._taken = True
        return self._room

    async def filled_to(self, end: int) -> None:
        """Waits while the model is too far ahead of the others; raises WeightsError if it is not wanted any more."""
        self.filled = end
        self._folding.move()
        while end > self._folding.mean.folded + AHEAD_BYTES and not self._folding.over:
            await self._folding.moved()
        require(not self._folding.over, FailureCode.CANCELLED, "the models are not folded together any more")
