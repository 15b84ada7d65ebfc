"""The containers of the manifests, played by processes of this machine: a cluster has never run them."""

from __future__ import annotations

import asyncio
import datetime as dt
import os
import shlex
import sys
from base64 import b64decode
from contextlib import AsyncExitStack
from pathlib import Path
from signal import SIGKILL
from typing import Any

import pytest
import yaml

from fedgsp.processes.lifecycle import python_module
from fedgsp.settings.run import RunConfig
from tests.support.cluster import nodes, play, settings
from tests.support.ports import free_ports, range_of
from tests.support.processes import Process, running
from tests.support.reference import assert_same_bits
from top_server.kubernetes.cluster import Cluster
from top_server.kubernetes.rendering import PORT, render
from top_server.record.model_files import load

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(180)]

CONFIG: dict[str, Any] = {
    "scheme": "fedgsp",
    "rounds": 6,
    "task_option": {"clients": "4"},
    "sampling_rate": 1.0,
    "beta": 2,
}
#: Working directory of a container -> its folder here.
_PLACES = {"/run-directory": "run", "/state": "state"}
CLUSTER = Cluster(image="fedgsp", nodes=2, clients=4)


class Cell:
    """The file system and the commands of a pod, with this machine's paths in place of those of the image."""

    def __init__(self, folder: Path, found: dict[tuple[str, str], dict[str, Any]], job: str, changes: dict[str, str]):
        self.pod = found["Job", job]["spec"]["template"]["spec"]
        self.folder = folder
        programs = {"top-server": "top_server", "fedgsp-node": "fedgsp_node"}
        self.changes = {
            **{f"exec {name} ": f"exec {shlex.join(python_module(module))} " for name, module in programs.items()},
            **changes,
        }
        contents = {
            "secrets": {
                name: b64decode(text).decode() for name, text in found["Secret", "fedgsp-certificates"]["data"].items()
            },
            "settings": found["ConfigMap", "fedgsp-settings"]["data"],
        }
        for mount in [*self.pod["containers"][0]["volumeMounts"], *self.pod["initContainers"][0]["volumeMounts"]]:
            here = folder / mount["name"]
            here.mkdir(exist_ok=True, parents=True)
            here.chmod(0o2777)  # as an emptyDir with fsGroup; a claimed volume has 2775
            if mount["mountPath"] != "/dev/shm":
                self.changes[mount["mountPath"]] = str(here)
        for volume, files in contents.items():
            for name, text in files.items():
                (folder / volume / name).write_text(self.here(text) if volume == "settings" else text)

    def here(self, text: str) -> str:
        for one, other in self.changes.items():
            text = text.replace(one, other)
        return text

    def command(self, container: dict[str, Any]) -> list[str]:
        place = str(self.folder / _PLACES.get(container.get("workingDir", ""), "."))
        *shell, script = container["command"]
        return [*shell, f"cd {shlex.quote(place)} && {self.here(script)}"]


async def begun(stack: AsyncExitStack, cell: Cell, index: int) -> Process:
    (first,), (main,) = cell.pod["initContainers"], cell.pod["containers"]
    said = {one["name"]: cell.here(one["value"]) for one in main["env"] if "value" in one}
    env = {**os.environ, "INDEX": str(index), "PYTHONPATH": os.pathsep.join(sys.path), **said}
    copying = await stack.enter_async_context(running(cell.command(first), cell.folder / "first.log", env))
    assert await copying.ended(20) == 0, copying.errors
    return await stack.enter_async_context(running(cell.command(main), cell.folder / "main.log", env))


async def test_the_commands_of_the_manifests_play_a_run_whose_pods_are_killed(tmp_path: Path) -> None:
    text = render(RunConfig(**CONFIG), CLUSTER, dt.timedelta(hours=1))
    found = {(one["kind"], one["metadata"]["name"]): one for one in yaml.safe_load_all(text)}
    with free_ports(9) as held:
        port, *managers = range_of(held)
    changes = {
        f"fedgsp-top:{PORT}": f"localhost:{port}",
        f"0.0.0.0:{PORT}": f"127.0.0.1:{port}",
        "7100-7499": f"{managers[0]}-{managers[-1]}",
    }
    async with AsyncExitStack() as stack:

        async def pod(name: str, job: str, index: int) -> Process:
            return await begun(stack, Cell(tmp_path / name, found, job, changes), index)

        # The first container of each kind is killed, and the next one finds the volumes as that one left them.
        top, node = await pod("top", "fedgsp-top", 0), await pod("node-0", "fedgsp-node", 0)
        pods = [await pod("node-1", "fedgsp-node", 1)]
        while not (tmp_path / "top" / "run" / "run" / "state" / "round-0001").is_dir():
            assert top.exit_code is None, top.errors
            await asyncio.sleep(0.01)
        for killed in (top, node):
            killed.send(SIGKILL)
            await killed.ended(20)
        top = await pod("top", "fedgsp-top", 0)
        pods.append(await pod("node-0", "fedgsp-node", 0))
        assert [await one.ended(120) for one in (top, *pods)] == [0, 0, 0], [one.errors for one in (top, *pods)]
    played = load(tmp_path / "top" / "run" / "run" / "models" / "final.safetensors")[0]
    alone = await play(settings(tmp_path / "alone", **CONFIG), nodes([0, 1], [2, 3], clients="4"))
    assert_same_bits(played, alone.model(6))
