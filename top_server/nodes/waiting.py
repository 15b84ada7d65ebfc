"""Waiting for nodes: before the first round, after a run was resumed, and before every round."""

import logging
import time
from collections.abc import Awaitable, Callable, Collection, Mapping

from fedgsp.errors import RunError
from fedgsp.settings.others import waits_for_others
from fedgsp.settings.placing import LOCAL
from fedgsp.settings.run import RunConfig
from fedgsp.words import share
from top_server.grouping.request import listed
from top_server.nodes.departures import RETURN_TIMEOUT_S, RETURNS_S, WITHOUT
from top_server.nodes.membership import Membership
from top_server.record.events.processes import WaitingForClients, WaitingForNodes
from top_server.record.events.rounds import RoundWaited, RoundWaits
from top_server.record.events.run import ClientsMissing
from top_server.record.journal import Journal

logger = logging.getLogger(__name__)

_START_OTHERS = "start the other nodes, or change --min-nodes, --min-clients or --join-timeout"
_STILL_LOADING = (
    "the other nodes were started here and still load the task or its data: give a longer --join-timeout, or see with"
    " fedgsp.check in Python where the task hangs"
)


async def wait_for_return(
    nodes: Mapping[str, Collection[int]], membership: Membership, journal: Journal, join_timeout: float
) -> None:
    """Waits for the nodes of a resumed run with their clients; raises RunError if none comes back in time.

    Clients that do not come back are away from then on.
    """
    clients = {client for hosted in nodes.values() for client in hosted}
    journal.record(WaitingForClients(clients=len(clients), timeout=join_timeout))
    if not await membership.wait_for(1, 1, join_timeout):
        raise RunError(f"no node came back within {join_timeout:.0f} s", "start the nodes again")
    missing = await membership.wait_for_all(clients, min(RETURN_TIMEOUT_S, join_timeout))
    # Those that came and left again are away already, for the reason for which their nodes left.
    if missing := missing - membership.departures.clients:
        journal.record(ClientsMissing(clients=sorted(missing)))
        there = {hello.node for hello in membership.hellos}
        for node, hosted in nodes.items():
            if gone := missing.intersection(hosted):
                why = WITHOUT if node in there else "it has not come back since the run was resumed"
                membership.departures.left(node, gone, why)


async def wait_for_all(
    clients: Collection[int], membership: Membership, journal: Journal, join_timeout: float
) -> None:
    """Waits for the clients of a run that is extended; raises RunError if not all of them come in time."""
    journal.record(WaitingForClients(clients=len(clients), timeout=join_timeout))
    if missing := await membership.wait_for_all(clients, join_timeout):
        raise RunError(
            f"clients {listed(sorted(missing))} of the run did not come within {join_timeout:.0f} s",
            "start their nodes, then give the command again",
        )


async def wait_for_nodes(
    config: RunConfig, membership: Membership, journal: Journal, check: Callable[[], Awaitable[None]] | None = None
) -> None:
    """Waits for the nodes and clients that the first round needs; raises RunError if they do not come in time.

    Calls `check` when the first node is there: others may come a day later.
    """
    nodes, clients = config.nodes_to_wait_for, config.clients_to_wait_for
    journal.record(WaitingForNodes(nodes=nodes, clients=clients, timeout=config.join_timeout))
    for line in waits_for_others(config):
        logger.warning("%s; start the others, too", line)
    now = membership.departures.now
    begin = now()
    first = await membership.wait_for(1, 1, config.join_timeout)
    left_s = begin + config.join_timeout - now()  # the time that `check` takes does not count
    if first and check is not None:
        await check()
    if not first or not await membership.wait_for(nodes, clients, left_s):
        loading = config.placed == LOCAL and membership.nodes < config.workers_to_place  # one that ends, ends the run
        raise RunError(
            f"only {share(membership.nodes, nodes, 'node')} with {share(len(membership.clients), clients, 'client')}"
            f" joined within {config.join_timeout:.0f} s",
            _STILL_LOADING if loading else _START_OTHERS,
        )
    membership.departures.counting = True


async def wait_for_returns(membership: Membership, clients: Collection[int] | None = None) -> None:
    """Waits for nodes that have left a moment ago and probably come back; `clients`: only for nodes of these.

    For `RETURNS_S` at most: nodes that leave in turn cannot keep a round from beginning.
    """
    departures = membership.departures
    most = departures.now() + RETURNS_S
    while (wait_s := min(departures.patience_s(clients), most - departures.now())) > 0:
        await membership.until(lambda: not departures.patience_s(clients), wait_s)
    if waited_for := departures.waited_for(clients):
        names = ", ".join(sorted(found.node for found in waited_for))
        logger.warning("nodes still leave after %.0f s of waiting; not waiting any longer for %s", RETURNS_S, names)


async def wait_for_round(config: RunConfig, membership: Membership, journal: Journal, number: int) -> None:
    """Waits until a round can begin; raises RunError if too few clients are there for --join-timeout.

    Nodes that have left a moment ago get the time to join again, because a connection also ends when one of its
    processes was frozen. If the round has to wait for clients, it also waits for the others that are on their way.
    """
    await wait_for_returns(membership)
    needed, there = config.min_clients or 1, len(membership.clients)
    if there >= needed:
        return
    timeout, begin = config.join_timeout, time.monotonic()
    journal.record(RoundWaits(round=number, clients=there, needed=needed, timeout=timeout))
    if not await membership.wait_for(1, needed, timeout):
        there = len(membership.clients)
        raise RunError(
            f"only {share(there, needed, 'client')} were there for {timeout:.0f} s before round {number}",
            "start the nodes again and resume the run; --resume takes another --min-clients and --join-timeout",
        )
    await membership.wait_for_all(membership.departures.clients, min(RETURN_TIMEOUT_S, timeout))
    seconds = round(time.monotonic() - begin, 1)
    journal.record(RoundWaited(round=number, clients=len(membership.clients), seconds=seconds))
