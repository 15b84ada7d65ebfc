"""A real Ray cluster on this machine, whose machines come and go."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.ports import free_ports

#: Ray's least object store is 75 MiB; nothing of a run is in it.
_STORE = 80 << 20
#: How long Ray may take to notice that machines are lost.
_NOTICED_S = 60.0


class Cluster:
    """Machines of a cluster, each with a raylet of its own. The head has no processor to give."""

    def __init__(self, env: Mapping[str, str]) -> None:
        """The processes of its machines have this environment beside that of the test."""
        from ray.cluster_utils import Cluster as OfRay

        self._env = {"RAY_USAGE_STATS_ENABLED": "0", **env}
        self._machines: list[Any] = []
        with free_ports(1) as [held]:
            self._client: int = held.getsockname()[1]
        head = {
            "num_cpus": 0,
            "object_store_memory": _STORE,
            "include_dashboard": False,
            "ray_client_server_port": self._client,
        }
        with self._environment():
            self._made = OfRay(initialize_head=True, head_node_args=head)

    @property
    def address(self) -> str:
        """HOST:PORT of the head."""
        return str(self._made.address)

    @property
    def client(self) -> str:
        """The address of its Ray client server."""
        return f"ray://127.0.0.1:{self._client}"

    def logs(self) -> dict[Path, str]:
        """The logs of all processes of the cluster."""
        folder = Path(self._made.head_node.get_logs_dir_path())
        found = {path: path.read_text(errors="replace") for path in folder.rglob("*.*")}
        assert found
        return found

    def add(self, cpus: float = 2, gpus: float = 0) -> Any:
        """A new machine."""
        # In the main thread, for Ray sets a signal handler.
        with self._environment():
            machine = self._made.add_node(num_cpus=cpus, num_gpus=gpus, object_store_memory=_STORE)
        self._machines.append(machine)
        return machine

    def remove(self, machine: Any) -> None:
        """Kills a machine."""
        self._machines.remove(machine)
        self._made.remove_node(machine, allow_graceful=False)

    def clear(self) -> None:
        """Kills all machines but the head, and the servers of clients that have gone, which linger."""
        for machine in tuple(self._machines):
            self.remove(machine)
        self._made.wait_for_nodes(_NOTICED_S)
        for child in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if "--mode=specific-server" in child.cmdline():
                    child.kill()
                    child.wait(10)

    def end(self) -> None:
        """Ends the cluster."""
        self._made.shutdown()

    @contextlib.contextmanager
    def _environment(self) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            for name, value in self._env.items():
                patch.setenv(name, value)
            yield


@contextlib.contextmanager
def cluster(**env: str) -> Iterator[Cluster]:
    """A cluster while the body lasts."""
    made = Cluster(env)
    try:
        yield made
    finally:
        made.end()
