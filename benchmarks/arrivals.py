"""Plays a run on this machine. Some of its nodes join while it is running."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from benchmarks.results.runs import finished
from benchmarks.sweep import begun, beside, check, tied
from fedgsp.errors import RunError
from fedgsp.processes.lifecycle import python_module
from fedgsp.settings.files import load
from fedgsp.settings.flags import arguments_of
from fedgsp.settings.policy import NO_POLICY
from fedgsp.settings.run import NodeSettings, RunConfig

#: Event of the run -> the nodes that start after it, each given by its clients.
Coming = Callable[[dict[str, Any]], Iterable[Iterable[int]]]


def play(settings: dict[str, Any], directory: Path, coming: Coming) -> None:
    """Plays the run in its directory, unless it is finished there. An unfinished run is deleted and played again.

    Raises UserError if the run fails.
    """
    check(settings, directory)
    if finished(directory):
        return
    command = [*begun(settings, directory), "--json"]
    config = load(RunConfig, beside(directory, ".toml"))
    nodes: list[subprocess.Popen[bytes]] = []
    address = ""
    try:
        with tied() as tie, subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **tie) as top_server:
            assert top_server.stdout is not None
            for event in map(json.loads, top_server.stdout):
                address = event["address"] if event["event"] == "listening" else address
                for clients in coming(event):
                    node = NodeSettings(
                        **config.for_children,
                        top_server=address,
                        peer_listen="127.0.0.1:0",
                        task=config.task,
                        task_option=config.task_option,
                        clients=",".join(map(str, clients)),
                        policy=NO_POLICY,
                    )
                    with beside(directory, f".node-{len(nodes)}.log").open("w") as log:
                        command = [*python_module("fedgsp_node"), "start", *arguments_of(node)]
                        nodes.append(subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, **tie))
    finally:
        for process in nodes:
            process.terminate()
        for process in nodes:
            process.wait()
    if top_server.returncode:
        raise RunError(
            f"the top server of {directory} ended with code {top_server.returncode}",
            f"it says why above, the nodes in {beside(directory, '.node-*.log')}",
        )
