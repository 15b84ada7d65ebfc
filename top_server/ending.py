"""The end of a run: the last event, and what becomes of its state."""

import time
from collections.abc import Mapping
from typing import Any

from fedgsp.settings.run import RunConfig
from fedgsp.settings.run_files import BEYOND
from top_server.record.directory import RunDirectory
from top_server.record.events.run import RunFinished
from top_server.record.journal import Journal
from top_server.record.scores import rating_of
from top_server.resume import state


def finish(directory: RunDirectory, journal: Journal, config: RunConfig, row: Mapping[str, Any], begin: float) -> None:
    """Records the end of a run, given the last row of its history; its state is then for --extend alone, or gone."""
    journal.record(
        RunFinished(
            rounds=row["round"],
            accuracy=row["accuracy"],
            seconds=round(time.monotonic() - begin, 1),
            **rating_of(row),
        )
    )
    state.close(directory, keep=config.keep_state == BEYOND)
