"""How far a run had come, read from what it left."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fedgsp.errors import ConfigError, DataError
from fedgsp.settings.files import dump
from fedgsp.settings.run import RunConfig
from tests.support.events import named
from top_server import cli
from top_server.groups.moved import Moved
from top_server.groups.run import MOST_MANAGERS, MOST_NUMBERED
from top_server.record.directory import RunDirectory, write_config
from top_server.record.journal import Journal
from top_server.resume import find as resuming

DEPLOYMENT = Path(__file__).parents[3] / "docs" / "deployment.md"
BEGIN = [
    {"event": "listening", "address": "127.0.0.1:7000"},
    {"event": "run_started", "run": "abc", "directory": "/"},
]


def recorded(folder: Path, events: Sequence[dict[str, Any]], rows: int = 0, rest: str = "") -> RunDirectory:
    directory = RunDirectory(folder)
    lines = [json.dumps(whole(**event), default=lambda array: array.tolist()) for event in events]
    directory.events.write_text("".join(line + "\n" for line in lines) + rest)
    directory.history.write_text("".join(json.dumps({"round": number + 1}) + "\n" for number in range(rows)))
    return directory


def whole(event: str, **given: Any) -> dict[str, Any]:
    """What the journal would write for an event of these fields, and blanks."""
    return {"event": event, **named(event, **given).fields}


def started(*teams: Sequence[int], number: int = 1) -> dict[str, Any]:
    return {"event": "round_started", "round": number, "teams": teams}


def hop(group: int, client: int, position: int, program: str = "relay") -> dict[str, Any]:
    return {
        "event": "hop_finished",
        "round": 1,
        "group": group,
        "program": program,
        "client": client,
        "position": position,
        "samples": 10 + client,
        "update_length": 0.0,
        "model": f"abc/1/{group}/relay/{position}.0",
        "node": "n1",
        "bytes": 100 + client,
        "via": "node" if client else "manager",
    }


def skipped(group: int, client: int, code: str = "NODE_LOST") -> dict[str, Any]:
    return {
        "event": "client_skipped",
        "round": 1,
        "group": group,
        "program": "relay",
        "client": client,
        "code": code,
        "reason": "it",
    }


def finished(found: resuming.Resumed, group: int) -> list[int]:
    assert found.interrupted is not None
    return [hop.member.client for hop in found.interrupted.traces[group].finished if hop.member]


def left_out(found: resuming.Resumed, group: int) -> list[int]:
    assert found.interrupted is not None
    return [skipped.client for skipped in found.interrupted.traces[group].skipped]


def test_what_every_group_had_finished_is_found(tmp_path: Path) -> None:
    events = [*BEGIN, started([0, 1, 2], [3, 4]), hop(0, 2, 0), hop(1, 4, 0), hop(0, 0, 1)]
    found = resuming.find(recorded(tmp_path, events))
    assert (found.run_id, found.address, found.round, found.times) == ("abc", "127.0.0.1:7000", 0, 1)
    assert found.interrupted is not None
    assert found.interrupted.teams == ((0, 1, 2), (3, 4))
    assert finished(found, 0) == [2, 0]
    assert finished(found, 1) == [4]
    (last,) = found.interrupted.traces[1].finished
    assert last.model is not None
    assert last.member is not None
    assert (last.model.id, last.member.node, last.member.samples) == ("abc/1/1/relay/0.0", "n1", 14)


def test_a_hop_that_was_made_again_takes_its_place(tmp_path: Path) -> None:
    events = [*BEGIN, started([0, 1, 2]), hop(0, 0, 0), hop(0, 1, 1), hop(0, 2, 2), hop(0, 1, 1)]
    assert finished(resuming.find(recorded(tmp_path, events)), 0) == [0, 1]


def test_who_was_skipped_before_the_last_hop_has_missed_it_and_nobody_else(tmp_path: Path) -> None:
    events = [*BEGIN, started([0, 1, 2, 3]), hop(0, 0, 0), skipped(0, 1), hop(0, 2, 1), skipped(0, 3)]
    found = resuming.find(recorded(tmp_path, events))
    assert finished(found, 0) == [0, 2]
    assert left_out(found, 0) == [1]


def test_a_hop_whose_result_was_lost_is_none(tmp_path: Path) -> None:
    events = [*BEGIN, started([0, 1]), hop(0, 0, 0), hop(0, 1, 1), skipped(0, 1)]
    assert finished(resuming.find(recorded(tmp_path, events)), 0) == [0]


def test_hops_that_came_from_a_refused_model_are_none(tmp_path: Path) -> None:
    hops = [hop(0, client, client) for client in range(3)]
    events = [*BEGIN, started([0, 1, 2, 3]), *hops, skipped(0, 1, "LONG_UPDATE")]
    assert finished(resuming.find(recorded(tmp_path, events)), 0) == [0]


def test_hops_before_an_earlier_resumption_count_only_if_the_round_went_on(tmp_path: Path) -> None:
    first = [*BEGIN, started([0, 1]), hop(0, 0, 0), {"event": "run_resumed", "round": 0}]
    anew = resuming.find(recorded(tmp_path, [*first, started([0, 1])]))
    assert finished(anew, 0) == []
    assert anew.times == 2
    on = resuming.find(recorded(tmp_path, [*first, {"event": "round_resumed", "round": 1}, started([0, 1])]))
    assert finished(on, 0) == [0]
    assert on.interrupted is not None
    assert on.interrupted.traces[0].attempt == 2 * MOST_NUMBERED * MOST_MANAGERS  # ids of this time are new


def test_turns_of_all_rounds_are_found_and_a_damaged_one_is_told(tmp_path: Path) -> None:
    turns = [{**hop(0, client, client), "turn": turn, "samples": 10} for client, turn in ((0, 2.0), (1, 40.0))]
    found = resuming.find(recorded(tmp_path, [*BEGIN, started([0, 1]), *turns]))
    assert found.turns.expected(2, {0: 10, 1: 10}, 0).seconds == {0: 2.0, 1: 40.0}
    damaged = [*BEGIN, started([0, 1]), {**turns[0], "turn": "long"}]
    with pytest.raises(DataError, match="its record is damaged"):
        resuming.find(recorded(tmp_path, damaged))


def test_bytes_that_a_group_had_moved_count(tmp_path: Path) -> None:
    hops = [hop(0, 0, 0), {**hop(0, 1, 1), "travelled": 30, "coding": "coded"}, {**hop(0, 2, 2), "travelled": 12}]
    found = resuming.find(recorded(tmp_path, [*BEGIN, started([0, 1, 2]), *hops]))
    assert found.interrupted is not None
    assert found.interrupted.traces[0].moved == Moved(101 + 102, 100, 30 + 12)


def test_offences_since_the_last_state_count(tmp_path: Path) -> None:
    events = [*BEGIN, started([0, 1, 2, 3, 4]), skipped(0, 1, "NOT_FINITE"), skipped(0, 2), hop(0, 0, 0)]
    events += [skipped(0, 3, "NOT_FINITE")]  # after the last hop: it will be tried again
    events += [{"event": "client_skipped", "round": 1, "group": 0, "client": 4, "reason": "it told no histogram"}]
    assert resuming.find(recorded(tmp_path, events)).offences == {1: 1}
    directory = recorded(tmp_path, [*events, {"event": "round_finished", "round": 1}], rows=1)
    saved(directory, 1, offences={1: 1, 2: 2})
    assert resuming.find(directory).offences == {1: 1, 2: 2}


def test_a_run_goes_on_where_it_was_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    home = tmp_path / "home"
    home.mkdir()
    found = resuming.find(recorded(tmp_path, [BEGIN[0], BEGIN[1] | {"directory": str(home)}]))
    resuming.work_there(found, RunConfig(local_nodes=1))
    assert Path.cwd() == home
    home.rmdir()
    with pytest.raises(ConfigError, match="cannot be entered"):
        resuming.work_there(found, RunConfig(local_nodes=1))


def test_parallel_groups_begin_again(tmp_path: Path) -> None:
    found = resuming.find(recorded(tmp_path, [*BEGIN, started([0, 1]), hop(0, 0, 0, "parallel")]))
    assert finished(found, 0) == []


@pytest.mark.parametrize("events", [[], [started([0])], [started([0]), {"event": "round_finished", "round": 1}]])
def test_between_rounds_nothing_is_interrupted(tmp_path: Path, events: list[dict[str, Any]]) -> None:
    found = resuming.find(recorded(tmp_path, [*BEGIN, *events]))
    assert found.interrupted is None or not finished(found, 0)


@pytest.mark.parametrize(
    ("events", "what"),
    [
        (BEGIN[:1], "before its first round"),
        ([*BEGIN, {"event": "run_finished"}], "is finished"),
    ],
)
def test_there_is_nothing_to_go_on_with(tmp_path: Path, events: list[dict[str, Any]], what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        resuming.find(recorded(tmp_path, events))


FINISHED = [{"event": "round_finished", "round": 1}, {"event": "run_finished", "rounds": 1}]
ON = {"event": "run_resumed", "run": "abc", "directory": "/", "round": 1, "rounds": 3}


def test_a_finished_run_is_found_to_be_extended(tmp_path: Path) -> None:
    directory = recorded(tmp_path, [BEGIN[0], BEGIN[1] | {"rounds": 1}, *FINISHED], 1)
    saved(directory, 1, RunConfig(rounds=1), name="finished")
    found = resuming.find(directory, extends=True)
    assert (found.round, found.extends, found.ends, found.times, found.interrupted) == (1, True, (1,), 1, None)
    resuming.check_settings(found, RunConfig(rounds=1))
    with pytest.raises(ConfigError, match="is finished") as caught:
        resuming.find(directory)
    assert "to add rounds, use --extend with --rounds" in caught.value.remedy


def test_an_extended_run_is_resumed_with_the_rounds_that_its_record_tells(tmp_path: Path) -> None:
    directory = recorded(tmp_path, [*BEGIN, *FINISHED, ON], 1)
    saved(directory, 1, RunConfig(rounds=1))
    found = resuming.find(directory)
    assert (found.extends, found.ends, found.rounds, found.times) == (False, (1,), 3, 2)
    resuming.check_settings(found, RunConfig(rounds=3))
    for rounds in (1, 4):
        with pytest.raises(ConfigError, match="--rounds in config"):
            resuming.check_settings(found, RunConfig(rounds=rounds))
    with pytest.raises(ConfigError, match="that run is not finished") as caught:
        resuming.find(directory, extends=True)
    assert f"--resume {directory.path}" in caught.value.remedy


def test_a_finished_run_has_the_rounds_of_its_record_whatever_an_extension_wrote_before_it_was_cut_off(
    tmp_path: Path,
) -> None:
    directory = recorded(tmp_path, [BEGIN[0], BEGIN[1] | {"rounds": 1}, *FINISHED], 1)
    saved(directory, 1, RunConfig(rounds=1), name="finished")
    write_config(directory, RunConfig(rounds=3))
    found = resuming.find(directory, extends=True)
    settings = resuming.settings_of(found, directory)
    assert (settings.rounds, settings.run_dir) == (1, tmp_path)
    resuming.check_settings(found, settings)
    write_config(directory, RunConfig(rounds=3, seed=8))
    with pytest.raises(ConfigError, match=r"--extend: --seed in config\.toml is not what the run had"):
        resuming.check_settings(found, resuming.settings_of(found, directory))


@pytest.mark.parametrize("flag", ["--resume", "--extend"])
def test_an_error_begins_with_the_flag_that_was_given(flag: str, tmp_path: Path) -> None:
    home, away = tmp_path / "home", tmp_path / "run"
    for folder in (home, away):
        folder.mkdir()
    begin = BEGIN[1] | {"directory": str(home), "rounds": 1}
    directory = recorded(away, [BEGIN[0], begin, *(FINISHED if flag == "--extend" else [])], 1)
    saved(directory, 1, RunConfig(rounds=1, seed=8))
    found = resuming.find(directory, extends=flag == "--extend")
    with pytest.raises(ConfigError, match=f"^{flag}: this run imports my:Task from"):
        resuming.work_there(found, RunConfig(local_nodes=1, task="my:Task"))
    with pytest.raises(ConfigError, match=f"^{flag}: --seed in config.toml"):
        resuming.check_settings(found, RunConfig(rounds=1))
    state = next(directory.state.iterdir()) / "state.json"
    state.write_text(json.dumps(json.loads(state.read_text()) | {"config": "no TOML"}))
    with pytest.raises(DataError, match=f"^{flag}: config in .* is not TOML"):
        resuming.check_settings(resuming.find(directory, extends=flag == "--extend"), RunConfig(rounds=1))


def test_without_its_state_a_finished_run_is_not_extended(tmp_path: Path) -> None:
    directory = recorded(tmp_path, [*BEGIN, *FINISHED], 1)
    with pytest.raises(ConfigError, match="nothing from which the run could continue") as caught:
        resuming.find(directory, extends=True)
    assert caught.value.remedy.startswith("start a longer run: top-server --config ")


def test_a_directory_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no run"):
        resuming.find(RunDirectory(tmp_path))


def test_cut_lines_and_rows_of_rounds_to_come_are_cut_off(tmp_path: Path) -> None:
    directory = recorded(tmp_path, BEGIN, rows=3, rest='{"event": "hop_fin')
    resuming.mend(directory, 2)
    assert directory.events.read_text().count("\n") == 2
    assert directory.events.read_text().endswith("}\n")
    assert [json.loads(line)["round"] for line in directory.history.read_text().splitlines()] == [1, 2]


@pytest.mark.parametrize(
    ("rows", "done", "what"), [(2, None, "state/ is gone"), (1, 3, "lacks rounds of the 3"), (0, 1, "lacks rounds")]
)
def test_a_history_that_does_not_fit_the_state_is_refused(
    tmp_path: Path, rows: int, done: int | None, what: str
) -> None:
    directory = recorded(tmp_path, BEGIN, rows)
    if done is not None:
        saved(directory, done)
    with pytest.raises(DataError, match=what):
        resuming.find(directory)


def saved(
    directory: RunDirectory,
    done: int,
    settings: RunConfig | None = None,
    offences: dict[int, int] | None = None,
    name: str = "round",
) -> None:
    folder = directory.state / f"{name}-{done:04d}"
    folder.mkdir(parents=True)
    document = {
        "nodes": {"n0": [0]},
        "away": [],
        "offences": offences or {},
        "owners": {},
        "constants": {},
        "config": dump(settings or RunConfig()),
        "files": {},
    }
    (folder / "state.json").write_text(json.dumps(document))


def test_other_settings_than_the_run_had_are_refused_by_name(tmp_path: Path) -> None:
    directory = recorded(tmp_path, BEGIN, 1)
    saved(directory, 1)
    found = resuming.find(directory)
    resuming.check_settings(found, RunConfig(run_dir=tmp_path))
    resuming.check_settings(found, RunConfig(manager_ports="7100-7109"))  # by which no result changes
    with pytest.raises(ConfigError, match="--learning-rate, --seed in config"):
        resuming.check_settings(found, RunConfig(seed=3, learning_rate=0.5))


@pytest.mark.parametrize(
    "line", ["{}", '{"event": "round_started", "round": 1}', '{"event": "run_started"}', "[1]", "x"]
)
def test_a_record_that_makes_no_sense_is_an_error_of_the_directory(tmp_path: Path, line: str) -> None:
    directory = recorded(tmp_path, [BEGIN[0]], rest=line + "\n" + json.dumps(BEGIN[1]) + "\n")
    with pytest.raises(DataError):
        resuming.find(directory)


def test_a_directory_has_one_top_server_at_a_time(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    with Journal(directory), pytest.raises(ConfigError, match="another top server"):
        Journal(directory)


def test_a_run_whose_top_server_still_waits_for_nodes_was_not_cut_off(tmp_path: Path) -> None:
    directory = recorded(tmp_path, [BEGIN[0]])
    with Journal(directory), pytest.raises(ConfigError, match="another top server records"):
        resuming.find(directory)
    with pytest.raises(ConfigError, match="was cut off before its first round"):
        resuming.find(directory)


@pytest.mark.parametrize("flags", [["--rounds", "3"], ["--manager-ports", "1-2", "--seed=3"], ["--config", "x.toml"]])
def test_a_resumed_run_has_its_settings(tmp_path: Path, flags: list[str]) -> None:
    result = CliRunner().invoke(cli.app, ["--resume", str(tmp_path), *flags])
    assert isinstance(result.exception, ConfigError)
    assert "cannot be given with --resume" in str(result.exception)


@pytest.mark.parametrize(
    ("flags", "what"),
    [
        (["--rounds", "3", "--seed=3"], "--seed cannot be given with --extend"),
        (["--config", "x.toml", "--rounds", "3"], "--config cannot be given with --extend"),
        ([], "--extend needs the number of all rounds"),
        (
            ["--rounds", "3", "--resume", "other"],
            "--resume is for an interrupted run, and --extend for a finished one",
        ),
    ],
)
def test_an_extended_run_has_its_settings_and_more_rounds(tmp_path: Path, flags: list[str], what: str) -> None:
    result = CliRunner().invoke(cli.app, ["--extend", str(tmp_path), *flags])
    assert isinstance(result.exception, ConfigError)
    assert what in str(result.exception)


@pytest.mark.parametrize(
    ("there", "does"),
    [
        ([], "--config hospitals.toml --run-dir run"),
        (["run/state/node-0", "run/state/.writing"], "--config hospitals.toml --run-dir run"),  # before round 1
        (["run/state/node-0", "run/state/round-0000"], "--resume run"),
        # finished: refused, as the documentation says
        (["run/models"], "--config hospitals.toml --run-dir run"),
        (["run/state/node-0", "run/state/finished-0020"], "--config hospitals.toml --run-dir run"),
    ],
)
def test_the_service_of_the_documentation_resumes_what_can_be_resumed(
    there: list[str], does: str, tmp_path: Path
) -> None:
    found = re.search(
        r"^ExecStart=/bin/sh -c '(.*top-server.*)'$", DEPLOYMENT.read_text(encoding="utf-8"), re.MULTILINE
    )
    assert found is not None
    script = found[1].replace("exec /opt/fedgsp/bin/top-server", "echo")
    for folder in there:
        (tmp_path / folder).mkdir(parents=True)
    ended = subprocess.run(["/bin/sh", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert (ended.stdout, ended.stderr) == (f"{does}\n", "")
