"""The numbers of groups, of members and of clients that train in a round, by the settings of a run.

The settings are those of the run, or for open settings the values of the FedGSP paper. `fitted` chooses other values
for few clients before the first round.
"""

from collections.abc import Mapping
from typing import Any

from fedgsp.settings.run import RunConfig
from top_server.grouping.round_size import group_count
from top_server.schemes import Scheme

#: The values of the FedGSP paper, which has 368 clients.
PAPER: Mapping[str, Any] = {"alpha": 2.0, "beta": 10, "smallest_group": 1, "sampling_rate": 0.3}


def value_of(config: RunConfig, name: str) -> Any:
    """The value of one of the settings in `PAPER`; the paper's if the setting is open."""
    value = getattr(config, name)
    return PAPER[name] if value is None else value


def sampling_rate(config: RunConfig) -> float:
    """Share of the groups, or of the clients, that train in a round, where the scheme samples."""
    return float(value_of(config, "sampling_rate"))


def groups_wanted(config: RunConfig, scheme: Scheme, number: int, clients: int) -> int:
    """The number of groups that `clients` clients form in round `number`, where the scheme counts its groups."""
    alpha, beta, smallest = (value_of(config, name) for name in ("alpha", "beta", "smallest_group"))
    return group_count(scheme.growth, number, alpha, beta, clients, smallest)
