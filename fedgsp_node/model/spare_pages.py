"""The pages of a large model stay with a node for the model of the next round, but not for long."""

import asyncio

from fedgsp.tensors import memory

#: Pages that were not used again for so many seconds go back to the system.
KEPT_S = 10.0


async def keep(kept_s: float = KEPT_S) -> None:
    """Keeps the pages of one model of any size, until this is cancelled."""
    memory.keep_large(True)
    try:
        while True:
            before = memory.times_kept()
            await asyncio.sleep(kept_s)
            if memory.times_kept() == before:
                memory.drop_spare()
    finally:
        memory.keep_large(False)
