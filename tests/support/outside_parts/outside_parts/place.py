"""Workers on this machine, which are counted."""

from __future__ import annotations

from collections.abc import Sequence

from top_server.placing.base import Worker
from top_server.placing.local import Local


class Counted(Local):
    """Local workers; it writes how many there are into its folder."""

    async def start(self, workers: Sequence[Worker]) -> None:
        folder = self.about.folder
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        (folder / "count").write_text(f"{self.options.prefix}{len(workers)}")
        await super().start(workers)
