"""Waiting for nodes, before the first round and after a run was resumed."""

from collections.abc import Callable, Collection

from fedgsp.errors import RunError
from fedgsp.settings.run import RunConfig
from fedgsp.words import share
from top_server.grouping.request import listed
from top_server.nodes.membership import RETURN_TIMEOUT_S, Membership
from top_server.record.events.processes import WaitingForClients, WaitingForNodes
from top_server.record.events.run import ClientsMissing
from top_server.record.journal import Journal


async def wait_for_return(
    clients: Collection[int], membership: Membership, journal: Journal, join_timeout: float
) -> None:
    """Waits for the clients of a resumed run; raises RunError if no node comes back in time."""
    journal.record(WaitingForClients(clients=len(clients), timeout=join_timeout))
    if not await membership.wait_for(1, 1, join_timeout):
        raise RunError(f"no node came back within {join_timeout:.0f} s", "start the nodes again")
    if missing := await membership.wait_for_all(clients, min(RETURN_TIMEOUT_S, join_timeout)):
        journal.record(ClientsMissing(clients=sorted(missing)))


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
    config: RunConfig, membership: Membership, journal: Journal, check: Callable[[], None] = lambda: None
) -> None:
    """Waits for the nodes and clients that the first round needs; raises RunError if they do not come in time.

    Calls `check` when the first node is there: others may come a day later.
    """
    nodes, clients = config.nodes_to_wait_for, config.clients_to_wait_for
    journal.record(WaitingForNodes(nodes=nodes, clients=clients, timeout=config.join_timeout))
    if await membership.wait_for(1, 1, config.join_timeout):
        check()
    if not await membership.wait_for(nodes, clients, config.join_timeout):
        raise RunError(
            f"only {share(membership.nodes, nodes, 'node')} with {share(len(membership.clients), clients, 'client')}"
            f" joined within {config.join_timeout:.0f} s",
            "start the other nodes, or change --min-nodes, --min-clients or --join-timeout",
        )
