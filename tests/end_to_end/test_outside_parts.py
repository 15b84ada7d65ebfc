"""Parts of a package that is installed beside FedGSP: chosen by name, in real processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.installed import install
from tests.support.processes import Process, node, top_server
from tests.support.reference import assert_same_bits
from top_server.record.model_files import load

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

ROOT = Path(__file__).parents[2]
#: A loaded machine may take long to import torch in several processes at once.
DEADLINE_S = 150.0
#: One of each kind,
PARTS = {
    "task": "two-moons",
    "grouping": "by-size",
    "profile": "sizes",
    "merge": "slow-mean",
    "weighing": "power",
    "aggregation": "clipped-mean",
    "program": "parallel-some",
    "training": "signed-sgd",
    "optimizer": "signs",
    "schedule": "root",
    "outgoing": "shortened",
    "tracker": "lines",
    "place": "counted",
}
FLAGS = {kind: "--track" if kind == "tracker" else f"--{kind}" for kind in PARTS}
WORKERS = ["--workers", "2", "--clients", "4"]
CHOSEN = [
    "--scheme",
    "global",
    "--rounds",
    "2",
    *WORKERS,
    *(word for kind in PARTS for word in (FLAGS[kind], PARTS[kind])),
]
#: each with an option.
ALL = [
    *CHOSEN,
    *("--task-option", "noise=0.2", "--grouping-option", "members=3", "--profile-option", "scale=2"),
    *("--merge-option", "share=0.25", "--weighing-option", "power=2", "--aggregation-option", "most=0.01"),
    *("--program-option", "members=2", "--training-option", "shrink=0.5"),
    *("--outgoing-option", "shortened.share=0.75", "--optimizer-option", "dead=0.001"),
    *("--track-option", "lines.digits=3", "--place-option", "prefix=workers: "),
    *("--schedule-option", "power=0.25", "--local-schedule", "root", "--local-schedule-option", "power=0.1"),
]


#: Starts a top server with each of several lists of flags. Prints, for each, its exit code and all that it printed.
EACH = """
import json, os, runpy, sys, tempfile
import top_server.cli
told = []
for flags in json.loads(sys.argv[1]):
    with tempfile.TemporaryFile() as words:
        child = os.fork()
        if not child:
            os.dup2(words.fileno(), 1)
            os.dup2(words.fileno(), 2)
            sys.argv = ["top-server", *flags]
            runpy.run_module("top_server", run_name="__main__", alter_sys=True)
            os._exit(0)  # it does not come here: the command ends the process
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        words.seek(0)
        told.append((code, words.read().decode()))
print(json.dumps(told))
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of processes that have the package."""
    folder = install(tmp_path_factory.mktemp("package"))
    return {"PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])}


def each_said(env: dict[str, str], commands: list[list[str]]) -> list[tuple[int, str]]:
    """Exit code and output of a top server with each of these lists of flags; all are forked from one process."""
    command = [sys.executable, "-c", EACH, json.dumps(commands)]
    ended = subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=100, env={**os.environ, **env, "COLUMNS": "200"}
    )
    return [(code, words) for code, words in json.loads(ended.stdout)]


async def failed(run: Process) -> str:
    assert await run.ended(DEADLINE_S) not in (0, None), run.errors
    return run.errors


@pytest.mark.slow
async def test_one_part_of_each_kind_plays_a_run_that_has_the_same_bits_each_time(
    installed: dict[str, str], tmp_path: Path
) -> None:
    models = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        async with top_server(tmp_path / name, *ALL, "--local-epochs", "2", env=installed) as run:
            assert await run.ended(DEADLINE_S) == 0, run.errors
            assert run.errors == ""
        folder = tmp_path / name / "run"
        assert (folder / "state" / "place" / "count").read_text() == "workers: 2"
        rows = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
        # Groups of 3 clients and of 1 client, of which at most 2 each train.
        assert [row["clients_trained"] for row in rows] == [3, 3]
        lines = [json.loads(line) for line in (folder / "lines.jsonl").read_text().splitlines()]
        assert [line.get("round", line.get("outcome")) for line in lines] == [1, 2, "finished"]
        assert lines[1]["accuracy"] == round(rows[1]["accuracy"], 3)
        models.append(load(folder / "models" / "final.safetensors")[0])
    assert_same_bits(*models)


@pytest.mark.slow
async def test_a_training_that_keeps_tensors_has_the_same_bits_on_any_number_of_nodes(
    installed: dict[str, str], tmp_path: Path
) -> None:
    flags = ["--scheme", "global", "--rounds", "3", "--clients", "4", "--training", "feddyn", "--task", "two-moons"]
    models = {}
    for nodes in ("1", "3"):
        (tmp_path / nodes).mkdir()
        async with top_server(tmp_path / nodes, *flags, "--local-nodes", nodes, env=installed) as run:
            assert await run.ended(DEADLINE_S) == 0, run.errors
        models[nodes] = load(tmp_path / nodes / "run" / "models" / "final.safetensors")[0]
    assert_same_bits(*models.values())


@pytest.mark.slow
def test_an_author_can_check_the_contract_of_each(installed: dict[str, str]) -> None:
    path = os.pathsep.join([str(ROOT), installed["PYTHONPATH"]])
    parts = [*PARTS.items(), ("training", "feddyn")]
    command = [sys.executable, "-m", "tests.contracts", *(f"{kind}={name}" for kind, name in parts)]
    environment = {**os.environ, "PYTHONPATH": path}
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=150, env=environment)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines() == [f"{kind} {name} keeps its contract" for kind, name in parts]


def test_help_lists_the_parts_by_name(installed: dict[str, str]) -> None:
    ((code, told),) = each_said(installed, [["--help"]])
    assert code == 0
    assert [name for name in PARTS.values() if name not in told] == []


#: Flags with a mistake, and the error message or a part of it.
MISTAKES = [
    (
        ["--grouping-option", "members=0"],
        "grouping by-size: option members is '0'; give a whole number of at least 1",
    ),
    (["--optimizer-option", "ded=2"], "optimizer signs has no option 'ded'; did you mean 'dead'?"),
    (["--schedule-option", "power=0"], "schedule root: option power is '0'"),
    (["--weighing-option", "pover=2"], "weighing power has no option 'pover'; did you mean 'power'?"),
    (["--merge-option", "members=2"], "give --grouping-option members=... or --program-option members=..."),
    (["--place-option", "prefx=2"], "place counted has no option 'prefx'; did you mean 'prefix'?"),
    (["--track-option", "lines.digit=2"], "tracker lines has no option 'digit'; did you mean 'digits'?"),
    (["--grouping", "by-siz"], "--grouping cannot be 'by-siz'; did you mean 'by-size'?"),
    (["--profile", "none"], "grouping by-size needs profile sizes"),
    (
        ["--grouping", "absent"],
        "grouping absent of package outside-parts 1.0 cannot be loaded from outside_parts.nowhere:ABSENT:"
        " ModuleNotFoundError",
    ),
]


def test_a_mistake_is_told_before_anybody_waits(installed: dict[str, str], tmp_path: Path) -> None:
    commands = [[*CHOSEN, *flags, "--run-dir", str(tmp_path / "run")] for flags, _ in MISTAKES]
    for (flags, told), (code, words) in zip(MISTAKES, each_said(installed, commands), strict=True):
        assert code == 2, flags
        assert told in " ".join(words.split()), flags
        assert "Traceback" not in words, flags


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (
            ["--grouping", "broken"],
            "grouping broken of package outside-parts 1.0 raised KeyError: 'nothing' (grouping.py:",
        ),
        (
            ["--aggregation", "failing-mean", "--aggregation-option", "most=1"],
            "aggregation failing-mean has no option 'most'",
        ),
        pytest.param(
            ["--profile", "failing"],
            "profile failing of package outside-parts 1.0 raised LookupError: nothing can be revealed here (profile",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            ["--merge", "failing-merge"],
            "merge failing-merge of package outside-parts 1.0 raised ZeroDivisionError: nothing can be merged here",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            ["--training", "failing-sgd"],
            "training failing-sgd of package outside-parts 1.0 raised ZeroDivisionError: nobody can train here",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            ["--optimizer", "no-optimizer"],
            "optimizer no-optimizer of package outside-parts 1.0 raised TypeError: its code returned NoneType",
            marks=pytest.mark.slow,
        ),
    ],
)
async def test_a_part_that_fails_is_named_with_its_package(
    installed: dict[str, str], tmp_path: Path, flags: list[str], told: str
) -> None:
    quick = ["--scheme", "global", "--task", "two-moons", "--rounds", "1", "--local-nodes", "1", "--clients", "2"]
    async with top_server(tmp_path, *quick, *flags, env=installed) as run:
        assert told in await failed(run)
        assert "Traceback" not in run.errors


@pytest.mark.slow
async def test_an_aggregation_that_fails_ends_its_group_with_the_reason(
    installed: dict[str, str], tmp_path: Path
) -> None:
    quick = ["--scheme", "global", "--task", "two-moons", "--rounds", "1", "--local-nodes", "1", "--clients", "2"]
    async with top_server(tmp_path, *quick, "--aggregation", "failing-mean", env=installed) as run:
        told = "aggregation failing-mean of package outside-parts 1.0 raised ZeroDivisionError: nothing can be"
        assert told in await failed(run)


async def test_a_node_without_the_package_is_refused_with_what_to_install(
    installed: dict[str, str], tmp_path: Path
) -> None:
    flags = ["--scheme", "global", "--training", "signed-sgd", "--rounds", "1", "--task-option", "clients=2"]
    async with top_server(tmp_path, *flags, env=installed) as run:
        address = (await run.event("listening", DEADLINE_S))["address"]
        async with node(tmp_path, address, "--task-option", "clients=2", name="bare") as bare:
            assert await bare.ended(DEADLINE_S) == 5
            told = "\n".join([*bare.lines, bare.errors])
        assert "it lacks training signed-sgd" in told
        assert "pip install outside-parts==1.0" in told
        refused = await run.event("node_refused", DEADLINE_S)
        assert "it lacks training signed-sgd" in refused["reason"]
        async with node(tmp_path, address, "--task-option", "clients=2", name="n0", env=installed):
            assert await run.ended(DEADLINE_S) == 0, run.errors
