"""What a run that starts its nodes itself expects of nodes that other people start."""

from fedgsp.settings.run import RunConfig
from fedgsp.words import counted


def waits_for_others(config: RunConfig) -> tuple[str, ...]:
    """In which respects such a run waits for more than its own nodes have; empty for a run that starts none."""
    started, hosted = config.workers_to_place, config.clients
    found = (
        (
            config.min_nodes > started,
            f"--min-nodes is {config.min_nodes}, and the run itself starts {counted(started, 'node')}",
        ),
        (
            hosted is not None and (config.min_clients or 0) > hosted,
            f"--min-clients is {config.min_clients}, and the nodes of the run host {counted(hosted, 'client')}",
        ),
    )
    return tuple(why for waits, why in found if started and waits)
