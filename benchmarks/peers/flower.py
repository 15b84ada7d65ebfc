"""Plays Flower's cases: `python -m benchmarks.peers.flower CASE`, in the environment of the requirements.

A deployment is that of Flower's documentation: one SuperLink, a SuperNode for each client, and `flwr run`. Only the
polling interval of SuperExec can be set, and it is set here. SuperNodes and ServerApps always poll every 3 s.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import time
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path

from benchmarks.peers.flower_app import FLAGS
from benchmarks.peers.model import CNN_PARAMETERS, LARGE_PARAMETERS, SMALL_PARAMETERS, STAMPS
from benchmarks.peers.processes import MIB, CaseError, Processes, pss, tree
from benchmarks.peers.results import Case, main, rounds_of

BIN = Path(sys.executable).parent
PROJECT = """
[project]
name = "peer"
version = "1.0.0"
description = "Weights out and back, no training"
license = "Apache-2.0"

[tool.flwr.app]
publisher = "bench"

[tool.flwr.app.components]
serverapp = "peer.app:server"
clientapp = "peer.app:client"
"""
APP = 'from benchmarks.peers.flower_app import client, server\n\n__all__ = ["client", "server"]\n'


def environment(home: Path, flags: Mapping[str, int]) -> dict[str, str]:
    return {
        STAMPS: str(home / "stamps"),
        FLAGS: json.dumps(flags),
        "PATH": f"{BIN}:{os.environ['PATH']}",
        "FLWR_HOME": str(home / "flwr"),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2",
        "RAY_USAGE_STATS_ENABLED": "0",
    }


def write_app(home: Path) -> Path:
    """Write an app with the components of flower_app."""
    folder = home / "app"
    (folder / "peer").mkdir(parents=True)
    (folder / "peer" / "__init__.py").touch()
    (folder / "peer" / "app.py").write_text(APP)
    (folder / "pyproject.toml").write_text(PROJECT)
    return folder


def free_ports(number: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(number)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def wait_for(port: int, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.2)
    raise CaseError("the server did not come up")


def deployment(processes: Processes, home: Path, flags: Mapping[str, int]) -> tuple[list[float], float]:
    """Seconds of every round, and the peak memory of the SuperLink and its children above idle, in MiB."""
    settings, log = environment(home, flags), home / "log"
    link, *ports = free_ports(1 + flags["clients"])
    app = write_app(home)
    (home / "flwr").mkdir()
    (home / "flwr" / "config.toml").write_text(
        f'[superlink]\ndefault = "bench"\n\n[superlink.bench]\naddress = "127.0.0.1:{link}"\ninsecure = true\n'
    )
    command = [
        str(BIN / "flower-superlink"),
        "--insecure",
        "--port",
        str(link),
        "--disable-runtime-dependency-installation",
    ]
    server = processes.start(command, log, settings)
    wait_for(link)
    for port in ports:
        command = [
            str(BIN / "flower-supernode"),
            "--insecure",
            "--superlink",
            f"127.0.0.1:{link}",
            "--port",
            str(port),
        ]
        processes.start(command, log, settings)
    # SuperExec has started by then, so idle is the state between two runs.
    time.sleep(2)
    idle = pss(tree(server))
    processes.start([BIN / "flwr", "run", app, "bench"], log, settings)
    return watched(processes, home, flags, server, idle)


def legacy(processes: Processes, home: Path, flags: Mapping[str, int]) -> tuple[list[float], float]:
    """Like `deployment`, with start_server and start_client."""
    settings, log = environment(home, flags), home / "log"
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "benchmarks.peers.flower_legacy"]
    server = processes.start([*command, "server", str(port)], log, settings)
    wait_for(port)
    idle = pss(tree(server))
    for _ in range(flags["clients"]):
        processes.start([*command, "client", str(port)], log, settings)
    return watched(processes, home, flags, server, idle)


def simulation(processes: Processes, home: Path, flags: Mapping[str, int]) -> tuple[list[float], None]:
    """Seconds of each round of the simulation, on Ray."""
    command = [sys.executable, "-m", "benchmarks.peers.flower_simulation", str(home / "ray")]
    server = processes.start(command, home / "log", environment(home, flags))
    return watched(processes, home, flags, server, 0)[0], None


def watched(
    processes: Processes, home: Path, flags: Mapping[str, int], server: int, idle: int
) -> tuple[list[float], float]:
    """Seconds of every round, and the peak memory of the server and its children above idle, in MiB."""
    peak = idle

    def observe() -> None:
        nonlocal peak
        peak = max(peak, pss(tree(server)))

    stamps = home / "stamps"
    processes.watch(lambda: len(rounds_of(stamps)) == flags["rounds"], observe)
    return rounds_of(stamps), (peak - idle) / MIB


Setting = Callable[[Processes, Path, Mapping[str, int]], tuple[list[float], float | None]]


def case(
    name: str,
    setting: Setting,
    note: str = "",
    *,
    clients: int = 4,
    sampled: int = 4,
    rounds: int = 4,
    parameters: int = CNN_PARAMETERS,
    server_memory: bool = False,
) -> Case:
    flags = {"clients": clients, "sampled": sampled, "rounds": rounds, "parameters": parameters}

    def work(processes: Processes, home: Path) -> tuple[list[float], float | None]:
        seconds, peak = setting(processes, home, flags)
        return seconds, peak if server_memory else None

    is_legacy = setting is legacy
    notes = "; ".join(filter(None, (note, "start_server and start_client, deprecated" if is_legacy else "")))
    return Case("flower-legacy" if is_legacy else "flower", name, work, notes, first=min(rounds - 1, 1))


LINK = "SuperLink and SuperNodes, in the clear"
RELAY = "no relay workflow: FedAvg with one of 4 clients a round"
LARGE = f"MiB of the server over idle, the model has {LARGE_PARAMETERS * 4 / MIB:.0f}"
CASES = {
    "fedavg-round": case("fedavg-round", deployment, LINK),
    "368-clients": case("368-clients", simulation, "simulation on Ray", clients=368, sampled=368, rounds=1),
    "relay-hop": case("relay-hop", deployment, f"{RELAY}; {LINK}", sampled=1),
    "control-hop": case("control-hop", deployment, f"{RELAY}; {LINK}", sampled=1, parameters=SMALL_PARAMETERS),
    "large-model-memory": case(
        "large-model-memory",
        deployment,
        f"{LARGE}; {LINK}",
        clients=2,
        sampled=2,
        rounds=1,
        parameters=LARGE_PARAMETERS,
        server_memory=True,
    ),
    "legacy-fedavg-round": case("fedavg-round", legacy, rounds=8),
    "legacy-relay-hop": case("relay-hop", legacy, RELAY, sampled=1, rounds=8),
    "legacy-control-hop": case("control-hop", legacy, RELAY, sampled=1, rounds=20, parameters=SMALL_PARAMETERS),
    "legacy-large-model-memory": case(
        "large-model-memory",
        legacy,
        LARGE,
        clients=2,
        sampled=2,
        rounds=1,
        parameters=LARGE_PARAMETERS,
        server_memory=True,
    ),
}

if __name__ == "__main__":
    main(CASES, version("flwr"))
