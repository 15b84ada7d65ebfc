"""The end of a run: the last event, and what becomes of its state."""

import contextlib
import time
from collections.abc import Coroutine, Mapping
from typing import Any

from fedgsp.errors import RunError, UserError
from fedgsp.processes import lifecycle
from fedgsp.settings.run import RunConfig
from fedgsp.settings.run_files import BEYOND
from top_server.record.directory import RunDirectory
from top_server.record.events.base import Event
from top_server.record.events.run import RunFailed, RunFinished, RunStopped
from top_server.record.journal import Journal, Line
from top_server.record.scores import rating_of
from top_server.recorded import ENDS
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


def run_recorded(main: Coroutine[Any, Any, None], journal: Journal) -> int:
    """Plays a run, and returns its exit code. An end before the last round is recorded, with its reason.

    Whoever stops the process after that, while its nodes leave, gets the exit code of a finished run.
    """
    ends = list[Line]()
    journal.subscribe(lambda line: ends.append(line) if line["event"] == ENDS else None)
    try:
        code = lifecycle.run(main)
    except UserError as error:
        _record(journal, RunFailed(reason=error.what, remedy=error.remedy, code=error.exit_code))
        raise
    except Exception as error:
        reason = f"an error in the program: {type(error).__name__}: {error}"
        _record(journal, RunFailed(reason=reason, remedy="report it, with the traceback in the log", code=1))
        raise
    if ends:
        return 0
    if code:
        _record(journal, RunStopped(code=code))
    return code


def _record(journal: Journal, event: Event) -> None:
    with contextlib.suppress(RunError):  # the disk may be full; the reason is told on stderr, too
        journal.record(event)
