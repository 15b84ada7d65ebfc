"""The workers of a run: their names, their clients, and their settings. Pure."""

from collections.abc import Callable, Mapping
from pathlib import Path

from fedgsp.optimizers import AUTO, SGD
from fedgsp.options import clients_text
from fedgsp.settings.policy import NO_POLICY
from fedgsp.settings.run import NodeSettings, RunConfig
from top_server.placing.base import Resources, Worker

#: What a template of workers imports: torch takes seconds.
IMPORTS = ["fedgsp_node.cli", "fedgsp_node.server"]
#: What torch imports when the first optimiser is made: a second and 70 MB, which workers of a template then share.
OF_OPTIMIZERS = ["torch._dynamo"]


#: What the name of a worker looks like.
NAME = "node-{number}"


def name_of(number: int) -> str:
    """The name of a worker in the record, and of its log file."""
    return NAME.format(number=number)


def number_of(name: str) -> int:
    """The inverse of `name_of`."""
    return int(name.rpartition("-")[2])


def shares(clients: int, nodes: int) -> list[range]:
    """Clients 0 .. clients-1 in turn to the nodes, so that every node gets as many, and of large and small ones alike.

    Data sets often have their clients in an order: FEMNIST's first writers have twice the samples of the last.
    """
    return [range(first, clients, nodes) for first in range(nodes)]


def dealt(config: RunConfig) -> dict[str, range | None]:
    """The clients of each worker by its name; None stands for all clients of the task."""
    count = config.workers_to_place
    hosted = shares(config.clients, count) if config.clients is not None else [None] * count
    return {name_of(index): share for index, share in enumerate(hosted)}


def imports(config: RunConfig) -> list[str]:
    """What a template of the workers imports."""
    named = config.optimizer not in (None, AUTO, SGD) or bool(config.optimizer_option)
    return [*IMPORTS, *(OF_OPTIMIZERS if named else [])]


def workers(
    config: RunConfig,
    top_server: str,
    logs: Path,
    state: Path,
    resources: Resources | None = None,
    secrets: Callable[[str], Mapping[str, bytes]] = lambda _: {},
) -> list[Worker]:
    """The workers of a run that dial `top_server`; `secrets` gives those of a worker by its name.

    Without `resources`, they share this machine, and take its GPUs in turn.
    """
    found = []
    for index, (name, share) in enumerate(dealt(config).items()):
        settings = NodeSettings(
            **config.for_children,
            top_server=top_server,
            connect_timeout=config.join_timeout,
            task=config.task,
            task_option=config.task_option,
            clients=clients_text(share) if share else None,
            threads=config.threads,
            device=f"auto:{index}" if config.device == "auto" and resources is None else config.device,
            # The top server chooses the whole command line, so a policy would protect nobody from it.
            policy=NO_POLICY,
            # What stays with the clients, so that the run can be resumed.
            state_dir=state / name,
            name=name,
            host_managers=config.place_managers,
        )
        log = logs / f"{name}.log"
        found.append(Worker(name, settings, log, resources or Resources(), secrets(name), imports(config)))
    return found
