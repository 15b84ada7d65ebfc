"""The workers of a run while it goes on: started by a place, watched, and stopped after the run."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

from fedgsp.errors import PeerError, RunError, UserError
from fedgsp.processes.children import tail
from top_server.placing.base import Ended, Place, Placing, Worker
from top_server.record.events.processes import WorkerEnded
from top_server.record.journal import Journal, Line

logger = logging.getLogger(__name__)

#: The exit code of a worker tells the kind of its error; the run ends with the same kind.
_ERRORS: dict[int, type[UserError]] = {kind.exit_code: kind for kind in UserError.__subclasses__()}


def what_ended(ended: Ended, place: str) -> str:
    """The end of a worker in words."""
    code = f" with exit code {ended.code}" if ended.code is not None else ""
    return f"{place} {ended.worker} ended{code}{f': {ended.reason}' if ended.reason else ''}"


def error_of(ended: Ended, place: str, said: str) -> UserError:
    """The error that fits the end of a worker; `said` is the remedy, which quotes its log."""
    return _ERRORS.get(ended.code or 0, PeerError)(what_ended(ended, place), said)


@contextlib.asynccontextmanager
async def running(
    place: Place, made: Callable[[Callable[[Ended], None]], Placing], workers: Sequence[Worker], journal: Journal
) -> AsyncIterator[Callable[[], None]]:
    """Starts the workers and stops them after the body; `made` makes the place, given what is to be told of ends.

    If a worker ends for good before it joined, and before the run has begun, the body is cancelled and the UserError
    that fits its exit code is raised. A worker that ends later is lost like any other node, and recorded with the
    reason. When all workers have ended for good and no other node ever joined, RunError is raised. The body calls the
    yielded function before it asks the nodes to end: until then no exit code is that of an order, not even 0.
    """
    body = asyncio.current_task()
    assert body is not None
    cancelled_before = body.cancelling()
    logs: dict[str, Path] = {worker.name: worker.log for worker in workers}
    joined: set[str] = set()
    gone: set[str] = set()
    begun: list[Line] = []
    early: list[UserError] = []
    over = asyncio.Event()

    def notice(event: Line) -> None:
        if event["event"] == "node_joined":
            joined.add(event["node"])
        elif event["event"] in ("run_started", "run_resumed"):
            begun.append(event)

    def end(error: UserError) -> None:
        if not early and not over.is_set():
            early.append(error)
            body.cancel()

    def ended(one: Ended) -> None:
        log = logs[one.worker]
        if one.returns:
            logger.warning("%s; it is to come back", what_ended(one, place.name))
            return
        if one.code == 0 and over.is_set():
            return
        gone.add(one.worker)
        said = tail(log)
        # The log may be removed with the run directory: see `is_worth_keeping`.
        if one.worker not in joined and not begun:
            end(error_of(one, place.name, f"its log ends: {said}"))
            return
        error = error_of(one, place.name, f"its log, {log}, ends: {said}")
        journal.record(WorkerEnded(node=one.worker, code=one.code, reason=f"{error.what}; {error.remedy}"))
        if len(gone) == len(workers) and joined <= gone:
            end(RunError(f"no node is left: {error.what}", error.remedy))

    with place.guard():
        placing = made(ended)
    unsubscribe = journal.subscribe(notice)
    try:
        with place.guard():
            await placing.start(workers)
        yield over.set
    except asyncio.CancelledError:
        # As in asyncio.timeout: the error is raised only if this was the only cancellation.
        if early and body.uncancel() <= cancelled_before:
            raise early[0] from None
        raise
    finally:
        over.set()
        unsubscribe()
        with place.guard():
            await placing.stop()
