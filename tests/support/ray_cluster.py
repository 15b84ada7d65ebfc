"""A real Ray cluster on this machine, whose machines come and go."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from typing import Any

#: Ray's least object store is 75 MiB; nothing of a run is in it.
_STORE = 80 << 20


class Cluster:
    """Machines of a cluster, each with a raylet of its own. The head has no processor to give."""

    def __init__(self, made: Any) -> None:
        self._made = made
        self._machines: list[Any] = []

    @property
    def address(self) -> str:
        """HOST:PORT of the head."""
        return str(self._made.address)

    def add(self, cpus: float = 2, gpus: float = 0) -> Any:
        """A new machine."""
        # In the main thread, for Ray sets a signal handler.
        self._machines.append(self._made.add_node(num_cpus=cpus, num_gpus=gpus, object_store_memory=_STORE))
        return self._machines[-1]

    def remove(self, machine: Any) -> None:
        """Kills a machine."""
        self._machines.remove(machine)
        self._made.remove_node(machine, allow_graceful=False)

    def clear(self) -> None:
        """Kills all machines but the head."""
        for machine in tuple(self._machines):
            self.remove(machine)


@contextlib.contextmanager
def cluster(env: Mapping[str, str] | None = None) -> Iterator[Cluster]:
    """A cluster whose processes have this environment beside that of the test."""
    from ray.cluster_utils import Cluster as OfRay

    before = dict(os.environ)
    os.environ.update({"RAY_USAGE_STATS_ENABLED": "0", **(env or {})})
    try:
        head = {"num_cpus": 0, "object_store_memory": _STORE, "include_dashboard": False}
        made = OfRay(initialize_head=True, head_node_args=head)
        try:
            yield Cluster(made)
        finally:
            made.shutdown()
    finally:
        os.environ.clear()
        os.environ.update(before)
