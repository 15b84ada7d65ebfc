"""What monitoring systems see of a run: figures for Prometheus, and whether the run makes progress."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fedgsp.security.tls import Tls
from fedgsp.settings.run import RunConfig
from top_server.metrics import door
from top_server.metrics.state import State
from top_server.record.journal import Journal


@asynccontextmanager
async def monitored(config: RunConfig, journal: Journal, tls: Tls | None) -> AsyncIterator[State]:
    """Serves the state of a run while the body plays it, if --metrics says where; yields the state.

    Raises ConfigError if it cannot listen there.
    """
    state = State()
    if config.metrics is None:
        yield state
        return
    stop = journal.subscribe(state.note)
    try:
        pages = door.pages_of(state, config.unhealthy_after)
        async with door.opened(config.metrics, tls, pages, federation=config.federation) as state.address:
            yield state
    finally:
        stop()
