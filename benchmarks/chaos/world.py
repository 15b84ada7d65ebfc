"""Starts, signals and ends the processes of one run: a top server and its nodes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Collection
from dataclasses import dataclass, field
from pathlib import Path
from signal import SIGABRT, SIGCONT, SIGKILL, SIGTERM, Signals

import psutil

from benchmarks.chaos import disks, leftovers
from benchmarks.chaos.events import Events
from benchmarks.chaos.links import Links, linked
from benchmarks.chaos.plan import KEPT, OF_EVERYONE, RELAYED, Plan
from fedgsp.identity import TOP_SERVER as OF_TOP_SERVER
from fedgsp.identity import Identity, Role
from fedgsp.processes.children import tail
from fedgsp.processes.lifecycle import LIFELINE_VARIABLE
from fedgsp.settings.policy import NO_POLICY
from tests.support.certificates import Authority

ROOT = Path(__file__).resolve().parents[2]
TOP_SERVER = "top server"
#: How long a process may take to end after its run, or after a request.
LEAVE_S = 15.0
#: How long to wait until a node that was hit ends by itself after the run; then it is asked to end.
HEAR_S = 1.0
#: How long group managers may run after the end of their top server.
ORPHANS_S = 5.0
#: How long a node tries to connect to its top server; longer than any fault.
CONNECT_TIMEOUT_S = 45


@dataclass(slots=True)
class World:
    """The processes of one run. Each has `mark` in its environment, and writes its temporary files into `folder`."""

    plan: Plan
    folder: Path
    address: str
    links: Links | None
    events: Events
    mark: str = field(default_factory=lambda: secrets.token_hex(8))
    processes: dict[str, asyncio.subprocess.Process] = field(default_factory=dict)
    #: The top server's exit code, after it ended by itself.
    over: asyncio.Future[int] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    #: Mistakes of processes that were noticed during the run.
    wrong: list[str] = field(default_factory=list)
    #: Times at which the last manager of each killed top server ended.
    orphans_gone: list[float] = field(default_factory=list)
    #: Issues the certificates of a run with TLS.
    authority: Authority | None = None
    _killed: set[int] = field(default_factory=set)
    _watching: list[asyncio.Task[None]] = field(default_factory=list)

    @property
    def run_dir(self) -> Path:
        """The run directory."""
        return self.folder / "run"

    @property
    def nodes(self) -> list[str]:
        """The names of all nodes."""
        return [f"n{number}" for number in range(len(self.plan.hosted))]

    def _task(self, pause_s: float) -> list[str]:
        plan = self.plan
        task = "benchmarks.chaos.slow_digits:SlowDigits"
        options = {"clients": plan.clients, "pause": pause_s, "variant": plan.variant}
        if plan.parameters:
            task = "benchmarks.performance.idle_task:task"
            options = {"clients": plan.clients, "parameters": plan.parameters}
        return [
            "--task",
            task,
            *(flag for name, value in options.items() for flag in ("--task-option", f"{name}={value}")),
        ]

    def issue(self, name: str, seconds: float = 86_400.0) -> None:
        """Makes a certificate for a process, good for so many seconds, in place of the one that it has."""
        assert self.authority is not None
        assert self.links is not None
        identity = OF_TOP_SERVER if name == TOP_SERVER else Identity(Role.NODE, name)
        self.authority.issue(_file_name(name), [self.links.addresses[name]], seconds / 86_400.0, identity=identity)

    def _access(self, name: str) -> list[str]:
        """The flags about TLS: links need some, because their addresses are not those of loopback."""
        if self.authority is None:
            return ["--insecure"] if self.links else []
        files = self.authority.files(_file_name(name))
        return ["--tls-ca", str(files.ca), "--tls-cert", str(files.cert), "--tls-key", str(files.key)]

    async def start_top_server(self, resume: bool = False) -> None:
        """Starts the run, or resumes it."""
        plan = self.plan
        command = [sys.executable, "-m", "top_server", "--json"]
        if resume:
            command += ["--resume", str(self.run_dir)]
        else:
            command += ["--run-dir", str(self.run_dir), "--listen", self.address, "--seed", str(plan.seed)]
            command += ["--scheme", plan.scheme, "--rounds", str(plan.rounds), "--relay", plan.relay]
            command += ["--wire", plan.wire]
            command += ["--optimizer", plan.optimizer.split()[-1]]
            if plan.optimizer in (RELAYED, KEPT):
                command += ["--optimizer-state", plan.optimizer.split()[0]]
            command += ["--min-nodes", str(len(plan.hosted)), "--min-clients", str(plan.min_clients)]
            command += [*self._task(plan.pause_s), *self._access(TOP_SERVER)]
            if plan.scheme not in OF_EVERYONE:
                command += ["--alpha", str(plan.alpha), "--beta", str(plan.beta), "--sampling-rate", "1"]
            if plan.balance:
                command += ["--balance", "time"]
        process = await self._start(TOP_SERVER, command)
        self._watching.append(asyncio.create_task(self._watch(process), name="watch the top server"))

    async def start_node(self, name: str) -> None:
        """Starts a node, for the first time or again."""
        number = self.nodes.index(name)
        host = self.links.addresses[name] if self.links else "127.0.0.1"
        command = [sys.executable, "-m", "fedgsp_node", "start", "--json", "--top-server", self.address]
        command += ["--name", name, "--clients", ",".join(map(str, self.plan.hosted[number]))]
        pause_s = self.plan.pause_s * dict(self.plan.slow).get(number, 1.0)
        command += [*self._task(pause_s), "--peer-listen", f"{host}:0", *self._access(name)]
        command += ["--state-dir", str(self.state_dir(name)), "--connect-timeout", str(CONNECT_TIMEOUT_S)]
        command += ["--policy", NO_POLICY, "--wire", self.plan.wire]
        await self._start(name, command)

    def lives(self, name: str) -> bool:
        """Whether a process that this object started is running."""
        return name in self.processes and self.processes[name].returncode is None

    async def kill(self, name: str) -> None:
        """Sends SIGKILL, and waits for the end of the process."""
        process = self.processes[name]
        managers = psutil.Process(process.pid).children(recursive=True) if name == TOP_SERVER else []
        self._killed.add(process.pid)
        self.signal(process.pid, SIGKILL)
        await process.wait()
        self._watching.append(asyncio.create_task(self._orphans_leave(managers), name="watch orphans"))

    def managers(self) -> dict[str, int]:
        """Process ids of the group managers by name: those with an event for their start and none for their end."""
        known: dict[str, int] = {}
        for event in self.events.look():
            match event["event"]:
                case "listening":  # a top server starts, without managers
                    known.clear()
                case "manager_spawned":
                    known[event["manager"]] = event["pid"]
                case "manager_lost" | "manager_stopped":
                    known.pop(event["manager"], None)
        return {name: pid for name, pid in known.items() if leftovers.is_ours(pid, self.mark)}

    def signal(self, pid: int, number: Signals) -> None:
        """Sends a signal to a process of this run; does nothing if the process has ended."""
        if leftovers.is_ours(pid, self.mark):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    async def leave(self, struck: Collection[str]) -> None:
        """Waits for the nodes after the run. Asks nodes to end that could not be notified of its end."""
        self.events.look()
        dismissed = {event["node"] for event in self.events.of_kind("node_left", reason="dismissed")} - set(struck)
        await asyncio.gather(*(self._leave(name, asked=name not in dismissed) for name in self.nodes))
        for name in self.nodes:
            process = self.processes.get(name)
            # A node that joins after the run is refused (5). SIGTERM kills a node that is still starting.
            expected = (0, 143) if name in dismissed else (0, 143, 5, -SIGTERM)
            if process is None or process.returncode in (None, *expected) or process.pid in self._killed:
                continue
            self.wrong.append(f"node {name} ended with {process.returncode}; its log ends: {tail(self.log(name), 2)}")

    async def end(self) -> None:
        """Ends all processes that remain."""
        for task in self._watching:
            task.cancel()
        await asyncio.gather(*self._watching, return_exceptions=True)
        for process in leftovers.marked(self.mark):
            self.signal(process.pid, SIGCONT)
            self.signal(process.pid, SIGKILL)
        for child in self.processes.values():
            await child.wait()
            if child.stdin is not None:
                child.stdin.close()

    def state_dir(self, name: str) -> Path:
        """The directory in which a node keeps the state of its clients."""
        return self.folder / f"state-{name}"

    def disk(self, name: str) -> Path:
        """The directory into which a process writes what must last."""
        return self.run_dir if name == TOP_SERVER else self.state_dir(name)

    def log(self, name: str) -> Path:
        """The log file of a process."""
        return self.folder / f"{_file_name(name)}.log"

    async def _leave(self, name: str, asked: bool) -> None:
        process = self.processes.get(name)
        if process is None or process.returncode is not None:
            return
        waiting = asyncio.create_task(process.wait())
        if asked:
            await asyncio.wait([waiting], timeout=HEAR_S)
            self.signal(process.pid, SIGTERM)
        done, _ = await asyncio.wait([waiting], timeout=LEAVE_S)
        if not done:
            said = tail(self.log(name), 2)
            self.signal(process.pid, SIGABRT)  # its log then has the stacks of its threads
            await asyncio.wait([waiting], timeout=HEAR_S)
            waiting.cancel()
            self.wrong.append(f"node {name} did not leave; its log ends: {said}")

    async def _start(self, name: str, command: list[str]) -> asyncio.subprocess.Process:
        temporary = self.folder / "tmp"
        temporary.mkdir(exist_ok=True)
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        mine = {
            LIFELINE_VARIABLE: "stdin",
            leftovers.VARIABLE: self.mark,
            "TMPDIR": str(temporary),
            "PYTHONPATH": path,
            "PYTHONFAULTHANDLER": "1",
        }
        if self.links:
            command = self.links.command(name, command)
        with self.log(name).open("ab") as log:
            self.processes[name] = await asyncio.create_subprocess_exec(
                *command,
                stdin=subprocess.PIPE,  # the lifeline: the processes end when this process ends
                stdout=log,
                stderr=log,
                cwd=self.folder,
                env={**os.environ, **mine},
                start_new_session=True,
            )
        return self.processes[name]

    async def _watch(self, process: asyncio.subprocess.Process) -> None:
        code = await process.wait()
        if process.pid not in self._killed and not self.over.done():
            self.over.set_result(code)

    async def _orphans_leave(self, managers: list[psutil.Process]) -> None:
        """Checks that the group managers of a killed top server end by themselves."""
        begin = time.time()
        while left := [manager.pid for manager in managers if leftovers.is_ours(manager.pid, self.mark)]:
            if time.time() > begin + ORPHANS_S:
                self.wrong.append(f"group managers outlived their top server by {ORPHANS_S:.0f} s: {left}")
                return
            await asyncio.sleep(0.02)
        if managers:
            self.orphans_gone.append(time.time())


@contextlib.asynccontextmanager
async def world(plan: Plan, folder: Path, tag: str) -> AsyncIterator[World]:
    """A context in which the run of a plan is started. All its processes end with the context."""
    with contextlib.ExitStack() as stack:
        links = None
        if plan.needs_links:
            ends = [TOP_SERVER, *(f"n{number}" for number in range(len(plan.hosted)))]
            links = stack.enter_context(linked(ends, tag, plan.delay_s, plan.loss, plan.seed))
            links.rates = {f"n{number}": rate for number, rate in plan.thin}
            links.idle_s = plan.idle_s
        address = f"{links.addresses[TOP_SERVER]}:7000" if links else f"127.0.0.1:{_free_port()}"
        made = World(plan, folder, address, links, Events(folder / "run" / "events.jsonl"))
        if plan.small_disks:
            stack.enter_context(disks.small(map(made.disk, [TOP_SERVER, *made.nodes])))
        if plan.tls:
            made.authority = Authority(folder)
            for name in [TOP_SERVER, *made.nodes]:
                made.issue(name)
        try:
            await made.start_top_server()
            for name in made.nodes:
                await made.start_node(name)
            yield made
        finally:
            await made.end()


def _file_name(name: str) -> str:
    return name.replace(" ", "-")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
