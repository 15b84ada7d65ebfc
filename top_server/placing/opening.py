"""What a run has of its place: settings of its connections, and its workers. A run without a place has no workers."""

import dataclasses
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

from fedgsp.connections.addresses import is_wildcard, resolve, split_address
from fedgsp.security.tickets import Issuer
from fedgsp.settings.run import RunConfig
from top_server.managers.hosts import Hosts
from top_server.nodes.callers import Placed
from top_server.placing import certificates, chosen
from top_server.placing.base import About, Ended, Place, Placing, RemoteOptions
from top_server.placing.host import this_host
from top_server.placing.local import HOST
from top_server.placing.running import running
from top_server.placing.workers import dealt, workers
from top_server.record.directory import RunDirectory
from top_server.record.journal import Journal


class Workers:
    """The workers of a run, and the place that starts them."""

    def __init__(self, config: RunConfig, run: str) -> None:
        """Raises UserError if the place cannot be used."""
        assert config.run_dir is not None
        self._directory = RunDirectory(config.run_dir)
        self._folder = self._directory.state.absolute() / "place"
        self._run = run
        found = chosen(config)
        self._place: Place | None
        self._options: Any
        self._place, self._options = found or (None, None)
        self._host = HOST
        #: The settings of the run, which waits for its nodes for as long as the place may take to start them.
        self.config = config
        #: The same, with what connections need: they are for this start alone and stand in no file of the run.
        self.connected = config
        if self.remote:
            self._host = self._options.host or this_host()
            patience_s = max(config.join_timeout, self._options.start_timeout)
            self.config = dataclasses.replace(config, join_timeout=patience_s)
            self.connected = certificates.connected(self.config, self._folder, self._host)

    @property
    def remote(self) -> bool:
        """Whether workers may be on other machines."""
        return self._place is not None and self._place.remote

    @property
    def placed(self) -> Placed:
        """The workers, for the check of those that join."""
        return Placed(self._run, dealt(self.config))

    def hosts(self, issuer: Issuer, joined: Callable[[], Iterable[str]]) -> Hosts | None:
        """The workers as those who run the group managers of the run; None if the managers are beside this process.

        `joined` tells the names of the nodes that have joined.
        """
        if not self.config.place_managers:
            return None
        found = certificates.issuer(self.connected, self._folder, self._run)
        return Hosts(
            lambda: len(self.placed.clients.keys() & set(joined())),
            issuer.run_key,
            found.of_manager if found else lambda _: b"",
            self.config.join_timeout,
            lambda node: self._directory.logs / f"{node}.log",
            self.remote,
        )

    @asynccontextmanager
    async def running(self, address: str, journal: Journal) -> AsyncIterator[Callable[[], None]]:
        """Has the workers while the body runs, which calls the yielded function before it asks nodes to end.

        The top server listens at `address`. Raises UserError: see `top_server.placing.running`.
        """
        if self._place is None:
            yield lambda: None
            return
        place, options = self._place, self._options
        issued = certificates.issuer(self.connected, self._folder, self._run)
        found = workers(
            self.connected,
            self._dialled(address),
            self._directory.logs.absolute(),
            self._directory.state.absolute(),
            options.resources(self.config.threads) if isinstance(options, RemoteOptions) else None,
            issued.secrets if issued else lambda _: {},
        )

        def made(tell: Callable[[Ended], None]) -> Placing:
            placing: Placing = place.load()(options, About(self._run, self._folder, tell))
            return placing

        async with running(place, made, found, journal) as may_end:
            yield may_end

    def _dialled(self, address: str) -> str:
        """Where workers dial the top server."""
        host, port = split_address(address)
        return f"{self._host}:{port}" if self.remote and is_wildcard(host) else resolve(address, self._host)
