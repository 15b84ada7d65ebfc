"""Checks before the first round that --manager-ports has enough ports for the group managers that a run needs."""

import logging

from fedgsp.errors import ConfigError
from fedgsp.settings.run import RunConfig
from top_server.grouping import GROUPINGS
from top_server.grouping.round_size import sample_size
from top_server.merging import share_a_manager
from top_server.schemes import Scheme
from top_server.sizes import groups_wanted, sampling_rate

logger = logging.getLogger(__name__)


def check(config: RunConfig, scheme: Scheme, clients: int) -> None:
    """Raises ConfigError if a later round needs more group managers than there are ports; warns if one may."""
    ports = config.manager_port_range
    if ports is None:
        return
    if GROUPINGS[scheme.grouping].counted and not scheme.service:
        numbers = range(1, config.rounds + 1)
        groups = [groups_wanted(config, scheme, number, clients) for number in numbers]
        most = max(sample_size(one, sampling_rate(config)) if scheme.sampling == "groups" else one for one in groups)
        if most > len(ports):
            lower = ["--sampling-rate"] * (scheme.sampling == "groups") + ["--beta"]
            raise ConfigError(
                f"round by round the run comes to {most} group managers, but --manager-ports has {len(ports)} ports",
                f"widen --manager-ports, or lower {', '.join(lower)} or --rounds",
            )
    elif (most := _most(scheme, clients)) > len(ports):
        logger.warning(
            "--manager-ports has %d ports, and %d clients may come to %d group managers: a round that needs more than "
            "there are ports ends the run, until it is resumed with more",
            len(ports),
            clients,
            most,
        )


def _most(scheme: Scheme, clients: int) -> int:
    """The most group managers that a round may need, if the grouping finds the number of groups itself.

    Groups of one can often share a manager; the most managers are then needed if all clients are in pairs.
    """
    if scheme.grouping == "single" and not scheme.service:
        return 1
    if not share_a_manager(scheme.merge):
        return clients
    return 1 if scheme.grouping == "singletons" and not scheme.service else (clients + 1) // 2
