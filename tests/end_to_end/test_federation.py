"""A federation by the commands of the pages, in real processes: invite, enrol, start, revoke."""

from __future__ import annotations

import asyncio
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.support import processes
from tests.support.ports import free_ports
from top_server.record.history import read_lines

ROOT = Path(__file__).parents[2]
MODULES = {"top-server": "top_server", "fedgsp-node": "fedgsp_node"}
HOSTS = {"a.example.org": "localhost", "top.example.org": "localhost", "0.0.0.0:": "127.0.0.1:"}


@pytest.fixture
def port() -> Iterator[int]:
    with free_ports(1) as held:
        number: int = held[0].getsockname()[1]
        held[0].close()
        yield number


def commands(page: str, heading: str) -> list[str]:
    """The commands in the blocks of code of a section, in their order."""
    text = (ROOT / page).read_text(encoding="utf-8")
    (section,) = re.findall(rf"^## {re.escape(heading)}\n(.*?)^## ", text, re.M | re.S)
    blocks = "".join(re.findall(r"^```\n(.*?)^```", section, re.M | re.S)).replace("\\\n", " ")
    return blocks.splitlines()


def here(line: str, port: int) -> list[str]:
    """The words of a command of the pages on this machine, where a test has its own port."""
    for host, other in HOSTS.items():
        line = line.replace(host, other)
    program, *words = shlex.split(re.sub(r" --manager-ports \S+", "", line).replace(":7000", f":{port}"))
    return [MODULES[program], *words]


async def ended(folder: Path, line: str, port: int) -> tuple[int | None, str]:
    """Runs a command to its end, with what follows `>` as the file for its output: exit code, stderr."""
    command, _, file = line.partition(" > ")
    with (folder / (file or "stdout")).open("wb") as out:
        child = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", *here(command, port)),
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.PIPE,
        )
        _, errors = await asyncio.wait_for(child.communicate(), 2 * processes.DEADLINE_S)
    return child.returncode, errors.decode()


def moved(token: str, machine: Path) -> Path:
    """A machine of a node, with its token."""
    machine.mkdir()
    shutil.copy(machine.parent / token, machine)
    return machine


@pytest.mark.e2e
@pytest.mark.timeout(180)
async def test_two_machines_by_the_commands_of_the_readme(tmp_path: Path, port: int) -> None:
    found = commands("README.md", "Two machines")
    starts = [line for line in found if line.startswith("fedgsp-node")]
    *invites, lead = [line for line in found if line not in starts]
    # The same installation without TLS takes one command for the top server and one for each node.
    assert sum(line.count("&&") + 1 for line in (*invites, lead, *starts)) <= 3 + 4
    for line in invites:
        assert await ended(tmp_path, line, port) == (0, told(line))
    lead_quickly = [*here(lead, port), "--rounds", "3", "--json", "--run-dir", "run"]
    async with processes.program(lead_quickly, tmp_path / "top.log") as top:
        await top.event("waiting_for_nodes")
        machines = [moved(f"{name}.token", tmp_path / name) for name in ("alice", "bob")]
        enrols, begins = zip(*(line.split(" && ") for line in starts), strict=True)
        for machine, line in zip(machines, enrols, strict=True):
            code, errors = await ended(machine, line, port)
            assert code == 0, errors
        code, errors = await ended(tmp_path, enrols[0], port)  # somebody has found the token
        assert code == 5
        assert "this invitation was used already" in errors
        greedy = begins[0].replace("0-11", "11-12")
        code, errors = await ended(machines[0], greedy, port)
        assert code == 5
        assert "client 12 of task 'digits' is not registered for it" in errors
        nodes = [
            processes.program(here(line, port), machine / "node.log")
            for machine, line in zip(machines, begins, strict=True)
        ]
        async with nodes[0] as alice, nodes[1] as bob:
            await top.event("run_finished", rounds=3)
            assert {await process.ended() for process in (top, alice, bob)} == {0}


def told(line: str) -> str:
    _, _, name, _, clients = shlex.split(line.partition(" > ")[0])
    return (
        f"{name} is invited with 12 clients ({clients}) of task digits, for 24h; write the token into a file on its"
        " machine, and run there: fedgsp-node enrol @FILE --top-server HOST:PORT\n"
    )


@pytest.mark.e2e
@pytest.mark.timeout(180)
@pytest.mark.slow
async def test_a_hospital_by_the_page_on_deployment_until_it_is_revoked(tmp_path: Path, port: int) -> None:
    invite = next(line for line in commands("docs/deployment.md", "3. Invite the hospitals") if "hungarian" in line)
    enrol, check, start, *_ = commands("docs/deployment.md", "5. Start the nodes")
    text = (ROOT / "docs" / "deployment.md").read_text(encoding="utf-8")
    (settings,) = re.findall(r"^```toml\n(.*?)^```", text, re.M | re.S)
    settings = settings.replace("top.example.org", "localhost").replace("0.0.0.0:7000", f"127.0.0.1:{port}")
    (tmp_path / "hospitals.toml").write_text(re.sub(r"(?m)^manager_ports.*\n", "", settings))
    assert (await ended(tmp_path, invite, port))[0] == 0
    hospital = moved("hungarian.token", tmp_path / "hospital")
    shutil.copy(ROOT / "examples" / "heart_disease.py", hospital)
    (hospital / "data").mkdir()
    rng = np.random.default_rng(1)
    rows = np.column_stack([rng.normal(size=(40, 13)), rng.integers(0, 5, 40)])
    np.savetxt(hospital / "data" / "processed.hungarian.data", rows, delimiter=",", fmt="%.3f")
    lead = here("top-server --config hospitals.toml --run-dir run --json --min-nodes 1 --rounds 1000000", port)
    async with processes.program(lead, tmp_path / "top.log") as top:
        await top.event("waiting_for_nodes")
        code, errors = await ended(hospital, enrol, port)
        assert code == 0, errors
        code, errors = await ended(hospital, check, port)
        assert code == 0, (errors, (hospital / "stdout").read_text())
        async with processes.program(here(start, port), hospital / "node.log") as node:
            await top.event("round_finished", round=1)
            code, errors = await ended(tmp_path, "top-server revoke hungarian", port)
            assert code == 0, errors
            await top.event("node_revoked", node="hungarian")
            await top.event("node_left", reason="its certificate was revoked")
            assert await node.ended() == 5
            assert "the certificate of this node was revoked" in node.errors
    log = read_lines(tmp_path / "run" / "audit.jsonl")
    told = [line["what"] for line in log if line.get("node") == "hungarian" and line["what"] != "made"]
    assert told[:2] == ["enrolled", "admitted"]
    assert told[-2:] == ["revoked", "left"]
