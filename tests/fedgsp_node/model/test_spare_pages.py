from __future__ import annotations

import asyncio

from fedgsp.tensors import memory
from fedgsp_node.model import spare_pages

LARGE = memory._MOST_SPARE_BYTES + 1


async def test_pages_of_a_large_model_stay_until_a_pause_without_a_model() -> None:
    memory.drop_spare()
    keeping = asyncio.create_task(spare_pages.keep(0.0))
    await asyncio.sleep(0)
    address = memory.room(LARGE).ctypes.data  # its pages are never touched
    assert memory.room(LARGE).ctypes.data == address
    assert len(memory._spare) == 1
    for _ in range(5):
        await asyncio.sleep(0)
    assert not memory._spare
    keeping.cancel()
    await asyncio.gather(keeping, return_exceptions=True)
    memory.room(LARGE)
    assert not memory._spare
