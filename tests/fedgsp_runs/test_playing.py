"""Runs from Python: real processes, their results, their errors, and their end with the process that wanted them."""

from __future__ import annotations

import contextlib
import json
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedgsp.errors import ConfigError, RunError, TaskError, UserError
from fedgsp.settings.files import dump
from fedgsp.settings.recorded import load_recorded
from fedgsp.settings.run import RunConfig
from fedgsp_node.tasks.digits import Digits
from fedgsp_runs import Run, extend, resume, run, sweep
from fedgsp_runs.playing import _claimed, _made
from tests.support.processes import assert_gone, running
from tests.support.run_directories import trained, write
from top_server.recorded import is_finished

SCRIPT = """
import signal
import sys

import numpy as np
import torch

from fedgsp import ClientData, Split, Task
from fedgsp_runs import run

# Programs in the background of a shell ignore Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)
SHIFT = 2.0


class Blobs(Task):
    num_classes = 2

    def __init__(self, clients: int = 3) -> None:
        self.num_clients = clients

    def model(self) -> torch.nn.Module:
        return torch.nn.Linear(2, 2)

    def data(self, client: int) -> ClientData:
        rng = np.random.default_rng(client)
        return ClientData(blob(40, rng), blob(20, rng))


def blob(count, rng):
    labels = rng.integers(0, 2, count)
    return Split((rng.normal(size=(count, 2)) + SHIFT * labels[:, None]).astype(np.float32), labels)


settings = {"run_dir": "out"} | dict(pair.split("=") for pair in sys.argv[2:])
found = run(Blobs, options={"clients": 4}, rounds=int(sys.argv[1]), nodes=1, **settings)
Blobs(4).model().load_state_dict(found.model())
print(found)
"""


@pytest.fixture
def script(tmp_path: Path) -> list[str]:
    (tmp_path / "script.py").write_text(SCRIPT, encoding="utf-8")
    return [sys.executable, str(tmp_path / "script.py")]


@pytest.mark.e2e
@pytest.mark.timeout(180)
@pytest.mark.slow
async def test_a_class_of_a_script_plays_without_a_main_guard(
    tmp_path: Path, script: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    async with running([*script, "2"], tmp_path / "log") as process:
        assert await process.ended(90) == 0, process.errors
    assert process.lines[-1].startswith("<Run out: fedgsp, 2 of 2 rounds, score ")
    assert [line for line in process.lines if line.startswith("round 2: ")]
    assert len(list((tmp_path / "out").glob("task_blobs_*.py"))) == 1


@pytest.mark.e2e
@pytest.mark.timeout(180)
@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGKILL, marks=pytest.mark.slow)])
@pytest.mark.slow
async def test_all_processes_end_with_the_script_and_the_run_can_be_resumed(
    number: signal.Signals, tmp_path: Path, script: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    async with running([*script, "100000"], tmp_path / "log") as process:
        await process.line("round 2: ", 60)
        family = process.family()
        assert len(family) > 1
        process.send(number)
        assert await process.ended(60) != 0
        await assert_gone(family)
    settings = (tmp_path / "out" / "config.toml").read_text(encoding="utf-8")
    assert "Blobs" in settings
    found = Run("out", load_recorded(tmp_path / "out" / "config.toml").task)
    assert not is_finished(found.events)
    assert found.task.num_clients == 4  # the class of the script is in a module of the directory


@pytest.mark.slow
@pytest.mark.e2e
@pytest.mark.timeout(180)
def test_a_sweep_plays_each_variant_once_and_gives_the_same_bits_as_a_run(tmp_path: Path) -> None:
    common: dict[str, Any] = {"rounds": 1, "options": {"clients": 3}, "progress": False, "nodes": 1}
    variants = {"slow": {"learning_rate": 0.01}, "fast": {"learning_rate": 0.1}}
    found = sweep(variants, out=tmp_path, **common)
    table = found.table
    assert list(table["variant"]) == ["slow", "fast"]
    assert table["score"].notna().all()
    (one,) = sweep(variants, out=tmp_path, only=1, **common).runs[[*variants][1]].values()
    assert one.directory == tmp_path / f"{[*variants][1]}-0"
    with pytest.raises(ConfigError, match="`only` is 9"):
        sweep(variants, out=tmp_path, only=9, **common)
    again = sweep(variants, out=tmp_path, **common)
    assert again.runs["slow"][0].events == found.runs["slow"][0].events
    one = found.runs["fast"][0]
    assert list(one.history.index) == [1]
    assert one.history["accuracy"].iloc[-1] == one.score
    state = one.model()
    Digits(3).model().load_state_dict(state)
    assert all(isinstance(tensor, torch.Tensor) for tensor in state.values())
    with pytest.raises(ConfigError, match=r"has learning_rate=0\.01, and 0\.5 is asked for"):
        sweep({"slow": {"learning_rate": 0.5}}, out=tmp_path, **common)
    with pytest.raises(ConfigError, match=r"has task_option=\{'clients': '3'\}, and \{'clients': '4'\} is asked for"):
        sweep(variants, out=tmp_path, **{**common, "options": {"clients": 4}})
    with pytest.raises(ConfigError, match=r"has merge=None, and 'fedyogi' is asked for"):
        sweep({"slow": variants["slow"] | {"merge": "fedyogi"}}, out=tmp_path, **common)
    with pytest.raises(ConfigError, match=r"has rounds=1, and 2 is asked for; add rounds to it, extend\(.*=2\)"):
        sweep(variants, out=tmp_path, **{**common, "rounds": 2})
    with pytest.raises(ConfigError, match=r"that run is finished; .*to add rounds, use `extend` with `rounds`"):
        resume(tmp_path / "slow-0", progress=False)
    with pytest.raises(ConfigError, match=r"`extend`: `rounds` is 1, and the run has 1 rounds"):
        extend(tmp_path / "slow-0", 1, progress=False)
    assert found.report(tmp_path / "all.html").is_file()
    assert one.picture()._repr_png_()[:4] == b"\x89PNG"
    assert np.isfinite(one.summary.get("last", {}).get("mean", 0.0))


@pytest.mark.slow
@pytest.mark.e2e
@pytest.mark.timeout(180)
def test_an_extended_run_has_the_bits_of_a_longer_one(tmp_path: Path) -> None:
    common: dict[str, Any] = {"options": {"clients": 3}, "progress": False, "nodes": 1, "beta": 1}
    run("digits", rounds=1, run_dir=tmp_path / "grown", **common)
    grown = extend(tmp_path / "grown", rounds=2, progress=False)
    whole = run("digits", rounds=2, run_dir=tmp_path / "whole", **common)
    assert list(grown.history.index) == [1, 2]
    ours, theirs = grown.model(), whole.model()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


@pytest.mark.e2e
@pytest.mark.timeout(120)
@pytest.mark.slow
def test_a_run_that_fails_raises_its_reason_and_names_its_directory(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="diverged") as caught:
        run("digits", options={"clients": 2}, rounds=1, learning_rate=1e30, run_dir=tmp_path / "run", progress=False)
    assert f"recorded in {tmp_path / 'run'}" in caught.value.remedy


class Untyped(Digits):
    """Says the type of no option."""

    def __init__(self, sizes=(1, 2), rate=None, clients=2) -> None:  # type: ignore[no-untyped-def]
        super().__init__(clients)


MISTAKES: list[tuple[dict[str, Any], type[UserError], str]] = [
    ({"learning_rat": 0.1}, ConfigError, "there is no setting 'learning_rat'; did you mean 'learning_rate'"),
    ({"learning_rate": "fast"}, ConfigError, "learning_rate"),
    ({"task": "digit"}, TaskError, "digit"),
    ({"options": {"client": 3}}, TaskError, "client"),
    ({"task": 3}, TaskError, "the task 3 is no class"),
    (
        {"task": Digits, "options": {"client": 3}},
        TaskError,
        "task 'Digits' has no option 'client'; did you mean 'clie",
    ),
    ({"task": Digits, "options": {"clients": "a"}}, TaskError, "task 'Digits': option clients cannot be 'a'; give a"),
    ({"task": "mnist"}, TaskError, "task 'mnist' needs the option 'data'; give `options` data=VALUE"),
    ({"task": dict}, TaskError, "task 'dict': Python does not know the parameters of"),
    ({"task": Path}, TaskError, "task 'Path': Path returned"),
    ({"options": ["a"]}, ConfigError, "`options` is ['a'] (list); give the options of the task by name"),
    ({"task": Digits, "options": [3]}, ConfigError, "`options` is [3] (list)"),
    ({"options": {3: 4}}, ConfigError, "`options` is {3: 4} (dict)"),
    ({"clients": "six"}, ConfigError, "run(): clients is 'six'"),
    ({"learning_rate": np.ones(2)}, ConfigError, "learning_rate is array([1., 1.]) (ndarray); give a text, a"),
    ({"track": [None]}, ConfigError, "track is [None] (list)"),
    (
        {"task": Untyped, "options": {"rate": 0.5}},
        ConfigError,
        "option rate is 0.5 (float), and the task would get",
    ),
    ({"task": Untyped, "options": {"rate": None}}, ConfigError, "option rate is None (NoneType), and the task would"),
    ({"task": Untyped, "options": {"sizes": (3, 4)}}, TaskError, "option 'sizes' has the type <class 'tuple'>, which"),
    ({"local_nodes": 3}, ConfigError, "local_nodes is no argument of `run`; give `nodes` in its place"),
    ({"task_option": {"clients": 3}}, ConfigError, "task_option is no argument of `run`; give `options` in its"),
    ({"scheme": None}, ConfigError, "`scheme` is None (NoneType); give the name of a scheme"),
    ({"run_dir": "a\0b"}, ConfigError, "`run_dir` is 'a\\x00b' (str); give the path of a directory"),
    ({"run_dir": 3}, ConfigError, "`run_dir` is 3 (int); give the path of a directory"),
    ({"clients": -1}, ConfigError, "`clients` is -1; give a whole number of at least 1"),
    (
        {"min_nodes": 7, "nodes": 2},
        ConfigError,
        "`min_nodes` is 7, and the run itself starts 2 nodes; lower it, or give `listen`",
    ),
    (
        {"min_clients": 5, "clients": 4},
        ConfigError,
        "`min_clients` is 5, and the nodes of the run host 4 clients; lower it",
    ),
    ({"run_dir": "/proc/none"}, ConfigError, "run_dir /proc/none cannot be made"),
]


@pytest.mark.parametrize(("words", "kind", "what"), MISTAKES, ids=[what for _, _, what in MISTAKES])
def test_a_mistake_is_told_before_a_process_starts(
    words: dict[str, Any], kind: type[UserError], what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("subprocess.Popen", None)
    with pytest.raises(kind) as caught:
        run(**{"task": "digits", "rounds": 1, **words})
    assert what in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def below(folder: Path, name: str) -> set[Path]:
    return {path for path in folder.rglob("*") if name in path.relative_to(folder).parts}


@pytest.mark.e2e
@pytest.mark.timeout(120)
@pytest.mark.parametrize("there", [pytest.param(True, marks=pytest.mark.slow), False])
async def test_a_start_that_the_top_server_refuses_leaves_nothing_and_names_no_record(
    there: bool, tmp_path: Path, script: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "new" / "run"
    if there:
        folder.mkdir(parents=True)
    async with running([*script, "1", f"run_dir={folder}", "scheme=nope"], tmp_path / "log") as process:
        assert await process.ended(90) != 0
        assert "ConfigError: `scheme` cannot be 'nope'" in process.errors
        assert "recorded in" not in process.errors
    assert below(tmp_path, "new") == ({folder, folder.parent} if there else set())


def test_a_module_that_changes_the_working_directory_leaves_the_process_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*sys.path])
    (tmp_path / "leaving.py").write_text("import os\nfrom fedgsp_node.tasks.digits import Digits\nos.chdir('/')\n")
    _made("leaving:Digits", {})
    assert Path.cwd() == tmp_path


def test_runs_that_begin_in_the_same_second_have_directories_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that leaves no record takes nothing of the others with it."""
    monkeypatch.chdir(tmp_path)
    with contextlib.ExitStack() as others:
        first = [others.enter_context(_claimed(None, "fedavg")) for _ in range(5)]
        with contextlib.suppress(ZeroDivisionError), _claimed(None, "fedavg") as refused:
            raise ZeroDivisionError
        assert len({*first, refused}) == 6
        assert sorted((tmp_path / "runs").iterdir()) == sorted(tmp_path / path for path in first)
        for path in first:
            (path / "events.jsonl").touch()
    assert len([*(tmp_path / "runs").iterdir()]) == 5


SWEEPS: list[tuple[dict[str, Any], str]] = [
    ({"variants": {}}, "the sweep has no variants; give at least one"),
    ({"seeds": []}, "`seeds` is []; give a list of whole numbers"),
    ({"variants": ["a"]}, "`variants` is ['a'] (list); give settings by names"),
    ({"variants": {"a": 3}}, "the variant 'a' is 3 (int); give its settings by names"),
    ({"variants": {3: {}}}, "the variant 3 cannot name a directory"),
    ({"variants": {"a/b": {}}}, "the variant 'a/b' cannot name a directory"),
    ({"variants": {"a": {"seed": 7}}}, "the variant 'a' has seed=7, which a sweep sets itself; give the seeds"),
    ({"variants": {"a": {"run_dir": "x"}}}, "the variant 'a' has run_dir='x', which a sweep sets itself; give the"),
    ({"seed": 7}, "this sweep has seed=7, which a sweep sets itself"),
    ({"run_dir": "x"}, "this sweep has run_dir='x', which a sweep sets itself"),
    ({"seeds": 7}, "`seeds` is 7; give a list of whole numbers"),
    ({"seeds": [0.5]}, "`seeds` is [0.5]"),
    ({"out": None}, "`out` is None (NoneType); give the path of a directory"),
    ({"variants": {"a\0": {}}}, "cannot name a directory"),
    ({"only": "0"}, "`only` is '0', and there are 1 runs"),
]


@pytest.mark.parametrize(("words", "what"), SWEEPS, ids=[what for _, what in SWEEPS])
def test_a_mistake_in_a_sweep_is_told_before_a_process_starts(
    words: dict[str, Any], what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("subprocess.Popen", None)
    with pytest.raises(ConfigError) as caught:
        sweep(**{"variants": {"a": {}}, "out": tmp_path, "rounds": 1, **words})
    assert what in str(caught.value)
    assert not [*tmp_path.iterdir()]


@pytest.mark.e2e
@pytest.mark.timeout(180)
def test_numbers_of_numpy_are_those_of_python(tmp_path: Path) -> None:
    told: dict[str, Any] = {"rounds": np.int64(1), "learning_rate": np.float32(0.125), "clients": np.int32(2)}
    options = {"clients": np.int64(2)}
    found = sweep({"a": told}, out=tmp_path, seeds=np.arange(1), only=np.int64(0), options=options, progress=False)
    [(seed, one)] = found.runs["a"].items()
    assert type(seed) is int
    assert one.directory == tmp_path / "a-0"
    assert (one.settings.rounds, one.settings.learning_rate, one.settings.clients) == (1, 0.125, 2)
    assert one.settings.task_option == {"clients": "2"}


@pytest.mark.e2e
@pytest.mark.timeout(180)
def test_a_sweep_plays_a_run_that_was_interrupted_before_its_first_round(tmp_path: Path) -> None:
    """Such as during the local run with which it is compared."""
    (tmp_path / "a-0" / "models").mkdir(parents=True)
    (tmp_path / "a-0" / "config.toml").write_text(dump(RunConfig(clients=2, rounds=1)))
    (tmp_path / "a-0" / "history.jsonl").touch()
    (tmp_path / "a-0" / "events.jsonl").write_text('{"event": "run_started", "run": "0123456789abcdef"}\n')
    found = sweep({"a": {}}, out=tmp_path, rounds=1, options={"clients": 2}, scheme="fedavg", progress=False, nodes=1)
    assert is_finished(found.runs["a"][0].events)


def test_a_metric_of_an_old_record_does_not_hide_a_column(tmp_path: Path) -> None:
    rows = [{"round": 1, "seconds": 2.5, "metrics": {"round": 7.0, "seconds": 3.0, "mae": 0.5}}, {"round": 2}]
    (tmp_path / "history.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    history = Run(tmp_path).history
    assert list(history.index) == [1, 2]
    assert history.loc[1].to_dict() == {"seconds": 2.5, "metrics/round": 7.0, "metrics/seconds": 3.0, "mae": 0.5}


def test_errors_of_python_name_its_parameters_and_no_flags(tmp_path: Path) -> None:
    models = {f"final-group-{group:04d}": (trained(Digits(2), group), (group,)) for group in range(2)}
    found = Run(write(tmp_path / "run", Digits(2), models, scheme="hcct", task_option={"clients": "2"}))
    with pytest.raises(ConfigError, match="give `client`, or `name` with such a name") as caught:
        found.model()
    assert str(caught.value).endswith(caught.value.remedy)
    with pytest.raises(ConfigError, match=r"there is no model 'round-0001' in .*; give `name`: final-group-0000"):
        found.model(name="round-0001")


def test_a_run_shows_how_many_trainings_were_skipped(tmp_path: Path) -> None:
    made = write(tmp_path / "run", Digits(2), {"final": (trained(Digits(2), 0), ())}, task_option={"clients": "2"})
    for skipped, told in (((0, 0), " rounds>"), ((1, 2), ", 3 trainings skipped>")):
        rows = [json.dumps({"round": 1 + place, "clients_skipped": few}) for place, few in enumerate(skipped)]
        (made / "history.jsonl").write_text("".join(f"{row}\n" for row in rows))
        assert repr(Run(made)).endswith(told)
