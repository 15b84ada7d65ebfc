"""A run may be compared with what every client reaches alone, by a run that is made first or was made before."""

from __future__ import annotations

import dataclasses
import json
import statistics
from pathlib import Path
from typing import Any

import pytest

from fedgsp.errors import ConfigError
from fedgsp.settings.files import dump, load
from fedgsp.settings.run import RunConfig
from tests.support.cluster import Finished, play
from tests.support.gated_task import gated_settings, host, oracle
from tests.support.managers_here import managers_here
from tests.support.reference_groups import assert_equals
from top_server import cli
from top_server.baseline import local_run
from top_server.record.directory import RunDirectory
from top_server.record.history import read_lines

#: So high that some clients gain by others, some lose, and some are as well off.
RATE = 0.5


@pytest.fixture(autouse=True)
def _managers(monkeypatch: pytest.MonkeyPatch) -> None:
    managers_here(monkeypatch)


def configured(tmp_path: Path, name: str, alone: Path | None = None, **changes: Any) -> RunConfig:
    base = gated_settings(tmp_path, scheme="global", rounds=3, learning_rate=RATE)
    return dataclasses.replace(base, **{"run_dir": tmp_path / name, "local_run": alone, "min_clients": 6, **changes})


async def played(config: RunConfig) -> Finished:
    return await play(config, [host("n0", 0, 1, 2), host("n1", 3, 4, 5)])


def recorded(path: Path) -> Finished:
    return Finished(RunDirectory(path), read_lines(RunDirectory(path).history))


def read_events(path: Path, kind: str) -> list[dict[str, Any]]:
    return [event for event in read_lines(RunDirectory(path).events) if event["event"] == kind]


def contents(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


def by_definition(reached: dict[str, float], alone: dict[str, float]) -> tuple[float, float]:
    gains = [reached[client] - alone[client] for client in alone]
    return sum(gain > 0 for gain in gains) / len(gains), statistics.pstdev(gains)


async def test_the_local_run_that_is_made_has_the_bits_of_one_that_is_played_for_itself(tmp_path: Path) -> None:
    run = await played(configured(tmp_path, "run", tmp_path / "alone", stall_timeout=17.0))
    (started,) = run.of_kind("local_run_started")
    assert started == {**started, "directory": str(tmp_path / "alone"), "rounds": 3}
    assert [event["round"] for event in run.of_kind("local_round_finished")] == [1, 2, 3]
    alone = oracle(rounds=3, learning_rate=RATE).play_independent()
    assert_equals(recorded(tmp_path / "alone"), alone)
    separate = await played(configured(tmp_path, "separate", scheme="independent"))
    assert_equals(separate, alone)
    assert contents(tmp_path / "alone" / "models").keys() == contents(separate.directory.models).keys()
    assert not (tmp_path / "alone" / "state").exists()
    (finished,) = read_events(tmp_path / "alone", "run_finished")
    (told,) = separate.of_kind("run_finished")
    assert (finished["rounds"], finished["accuracy"]) == (told["rounds"], told["accuracy"])
    # what is compared is not changed by the comparison
    assert_equals(run, oracle(rounds=3, learning_rate=RATE).play_global())
    recorded_settings = load(RunConfig, RunDirectory(tmp_path / "alone").config)
    assert (recorded_settings.scheme, recorded_settings.stall_timeout) == ("independent", 17.0)


async def test_ipr_and_rsd_are_told_wherever_clients_are_evaluated(tmp_path: Path) -> None:
    first = await played(configured(tmp_path, "first", tmp_path / "alone"))
    alone = recorded(tmp_path / "alone").rows[-1]["accuracy_per_client"]
    before = contents(tmp_path / "alone")

    changes = {"scheme": "finetune", "evaluate_every": 2}
    second = await played(configured(tmp_path, "second", tmp_path / "alone", **changes))
    assert not second.of_kind("local_run_started")
    assert contents(tmp_path / "alone") == before

    for run, evaluated in ((first, [1, 2, 3]), (second, [2, 3])):
        written = recorded(run.directory.path).rows
        assert [row["round"] for row in written if "ipr" in row] == evaluated
        for row in written:
            if row["round"] in evaluated:
                expected = by_definition(row["accuracy_per_client"], alone)
                assert (row["ipr"], row["rsd"]) == pytest.approx(expected, abs=1e-12)
        last = json.loads(run.directory.summary.read_text(encoding="utf-8"))["last"]
        assert (last["ipr"], last["rsd"]) == (written[-1]["ipr"], written[-1]["rsd"])
    # of those who are as well off as alone it matters that they do not count
    reached = first.rows[-1]["accuracy_per_client"]
    assert {-1, 0, 1} == {(reached[c] > alone[c]) - (reached[c] < alone[c]) for c in alone}


async def test_a_run_of_scheme_independent_is_a_local_run_too(tmp_path: Path) -> None:
    alone = await played(configured(tmp_path, "alone", scheme="independent"))
    run = await played(configured(tmp_path, "run", tmp_path / "alone"))
    assert not run.of_kind("local_run_started")
    told = alone.rows[-1]["accuracy_per_client"]
    reached = run.rows[-1]["accuracy_per_client"]
    assert (run.rows[-1]["ipr"], run.rows[-1]["rsd"]) == pytest.approx(by_definition(reached, told), abs=1e-12)


async def test_clients_of_one_run_only_are_left_out_with_a_warning(tmp_path: Path) -> None:
    halves = [host("n0", 0, 1, 2)], [host("n1", 2, 3, 4)]
    await play(configured(tmp_path, "alone", scheme="independent", min_clients=3), halves[0])
    alone = recorded(tmp_path / "alone").rows[-1]["accuracy_per_client"]
    both = await played(configured(tmp_path, "all", tmp_path / "alone"))
    other = await play(configured(tmp_path, "other", tmp_path / "alone", min_clients=3), halves[1])
    for run, common, told in (both, "012", [[3, 4, 5]]), (other, "2", [[3, 4], [0, 1]]):
        assert [event["clients"] for event in run.of_kind("gains_not_told")] == told
        for row in run.rows:
            expected = by_definition(row["accuracy_per_client"], {client: alone[client] for client in common})
            assert (row["ipr"], row["rsd"]) == pytest.approx(expected, abs=1e-12)


async def test_a_client_that_was_silent_as_the_local_run_ended_is_left_out(tmp_path: Path, alone: Path) -> None:
    per_client = dict.fromkeys("12345", 0.25)
    summary = {"last": {"round": 3, "per_client": per_client}}
    RunDirectory(alone).summary.write_text(json.dumps(summary), encoding="utf-8")
    run = await played(configured(tmp_path, "run", alone))
    assert [event["clients"] for event in run.of_kind("gains_not_told")] == [[0]]
    for row in run.rows:
        expected = by_definition(row["accuracy_per_client"], per_client)
        assert (row["ipr"], row["rsd"]) == pytest.approx(expected, abs=1e-12)


# Refusals, by the command before it takes a directory, and by the run itself


@pytest.fixture
def alone(tmp_path: Path) -> Path:
    """What a local run leaves behind, as far as it is read."""
    directory = RunDirectory(tmp_path / "alone")
    directory.path.mkdir()
    settings = local_run.settings(configured(tmp_path, "run", directory.path))
    directory.config.write_text(dump(dataclasses.replace(settings, run_dir=None)), encoding="utf-8")
    directory.summary.write_text(json.dumps({"last": {"per_client": {"0": 0.5}}}), encoding="utf-8")
    return directory.path


def refused(config: RunConfig, path: Path, *flags: str) -> ConfigError:
    """What the command says to the settings of a run, with flags of its own."""
    path.write_text(dump(config), encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        cli.app(["--config", str(path), *flags], standalone_mode=False)
    assert config.run_dir is not None
    assert not config.run_dir.exists()
    return caught.value


@pytest.mark.parametrize(
    ("flags", "what"),
    [
        (["--seed", "7"], "--seed 0, this run needs 7"),
        (["--rounds", "4"], "--rounds 3, this run needs 4"),
        (["--learning-rate", "0.25"], "--learning-rate 0.5, this run needs 0.25"),
        (["--wire-dtype", "bfloat16"], "--wire-dtype exact, this run needs bfloat16"),
        (["--task", "digits"], "--task tests.support.gated_task:GatedBlobs, this run needs digits"),
        (["--task-option", "clients=5"], "--task-option {'clients': '6'}, this run needs {'clients': '5'}"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_a_local_run_with_other_settings_is_refused_and_they_are_named(
    tmp_path: Path, alone: Path, flags: list[str], what: str
) -> None:
    error = refused(configured(tmp_path, "run", alone), tmp_path / "settings.toml", *flags)
    assert error.what == f"--local-run {alone} was made with {what}"
    assert error.remedy == "give another directory: a local run is made where there is none"


def test_a_local_run_that_did_not_end_is_refused(tmp_path: Path, alone: Path) -> None:
    RunDirectory(alone).summary.unlink()
    error = refused(configured(tmp_path, "run", alone), tmp_path / "settings.toml")
    assert error.what == f"--local-run {alone} holds a run that did not end"


def test_a_local_run_in_the_runs_own_directory_is_refused(tmp_path: Path) -> None:
    error = refused(configured(tmp_path, "run", tmp_path / "other" / ".." / "run"), tmp_path / "settings.toml")
    assert error.what == "--local-run and --run-dir are the same directory"


async def test_a_run_whose_local_run_cannot_be_used_ends_with_the_reason(tmp_path: Path, alone: Path) -> None:
    with pytest.raises(ExceptionGroup) as caught:
        await played(configured(tmp_path, "run", alone, seed=1))
    assert "was made with --seed 0, this run needs 1" in " ".join(map(str, caught.value.exceptions))
