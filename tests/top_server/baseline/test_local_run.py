"""What every client reaches alone: which runs may be compared, and how much better off clients are together."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from fedgsp.errors import ConfigError
from fedgsp.messages import HostedClient
from fedgsp.settings.checks import flag
from fedgsp.settings.fields import described
from fedgsp.settings.run import RunConfig
from tests.support.recorder import Recorder
from top_server.baseline.local_run import SAME, check, gains, recorded, set_aside, settings, tell_left_out
from top_server.record.directory import RunDirectory, prepare
from top_server.record.figures import summarise
from top_server.record.journal import Journal

#: Another value for each setting that must be the same.
OTHERS: dict[str, Any] = {
    "task": "femnist",
    "task_option": {"clients": "9"},
    "initial_model": Path("start.safetensors"),
    **{"seed": 1, "rounds": 21, "local_epochs": 2, "batch_size": 6, "learning_rate": 0.02},
    "learning_rate_decay": 0.9,
    **{"schedule": "step", "schedule_option": {"warmup": "2"}, "clip_norm": 1.5, "accumulate": 2},
    **{"local_schedule": "cosine", "local_schedule_option": {"warmup": "3"}},
    **{"optimizer": "adam", "optimizer_option": {"eps": "0.1"}, "precision": "bfloat16", "optimizer_state": "kept"},
    "wire_dtype": "bfloat16",
    **{"outgoing": ("clip",), "outgoing_option": {"clip.norm": "2"}},
}
#: Settings of processes, which the nodes and managers of both runs are told alike.
PROCESS: dict[str, Any] = {
    "local_nodes": 2,
    "clients": 8,
    "stall_timeout": 7.0,
    "join_timeout": 8.0,
    "lost_after": 9.0,
    "update_norm_limit": 3.0,
    "relay": "manager",
    "hand_over": "network",
}


def config(tmp_path: Path, **changes: Any) -> RunConfig:
    fields: dict[str, Any] = {"scheme": "fedcollab", "local_run": tmp_path / "alone", "task_option": {"clients": "8"}}
    return RunConfig(**{**fields, **changes})


def ended(run: RunConfig, *accuracies: dict[int, float], **changes: Any) -> RunDirectory:
    """The local run of a run, with other settings if there are changes, as it ends."""
    directory = prepare(dataclasses.replace(settings(run), **changes))
    first = run.rounds - len(accuracies) + 1
    summary = summarise([{"round": n, "accuracy_per_client": told} for n, told in enumerate(accuracies, first)])
    directory.summary.write_text(json.dumps(summary))
    return directory


# --- its settings


def test_a_local_run_has_the_settings_of_the_run_that_can_be_compared(tmp_path: Path) -> None:
    own = {
        "training": "fedprox",
        "training_option": {"mu": "1"},
        "grouping_option": {"c": "5"},
        "aggregation": "median",
    }
    run = config(tmp_path, **OTHERS, **PROCESS, **own, evaluate_every=3)
    alone = settings(run)
    files: dict[str, Any] = {"run_dir": tmp_path / "alone", "keep_state": "until-finished"}
    assert alone == RunConfig(scheme="independent", evaluate_every=3, **files, **OTHERS, **PROCESS)
    assert set(OTHERS) == set(SAME) <= set(described(RunConfig))


# --- what it came to


def test_where_there_is_none_it_is_still_to_be_made(tmp_path: Path) -> None:
    assert recorded(config(tmp_path)) is None
    (tmp_path / "alone").mkdir()
    assert recorded(config(tmp_path)) is None


def test_it_tells_what_each_client_reaches_at_the_end(tmp_path: Path) -> None:
    run = config(tmp_path)
    ended(run, {0: 0.9, 11: 0.8}, {0: 0.5, 11: 0.75})
    assert recorded(run) == {0: 0.5, 11: 0.75}


def test_a_run_that_differs_in_other_ways_may_use_it_again(tmp_path: Path) -> None:
    run = config(tmp_path)
    ended(run, {0: 0.5})
    others: dict[str, Any] = {
        "scheme": "ditto",
        "evaluate_every": 7,
        "aggregation": "fednova",
        "run_dir": tmp_path / "x",
    }
    others |= {"relay": "direct", "stall_timeout": 1.0}
    assert recorded(dataclasses.replace(run, **others)) == {0: 0.5}


@pytest.mark.parametrize("name", SAME)
def test_a_setting_that_differs_is_named_with_both_values(name: str, tmp_path: Path) -> None:
    run = config(tmp_path)
    ended(run, {0: 0.5}, **{name: OTHERS[name]})
    with pytest.raises(ConfigError) as caught:
        recorded(run)
    needed = {"optimizer": "auto"}.get(name, getattr(run, name))
    assert f"was made with {flag(name)} {OTHERS[name]}, this run needs {needed}" in caught.value.what
    assert str(tmp_path / "alone") in caught.value.what
    assert caught.value.remedy == "give another directory: a local run is made where there is none"


def test_a_run_of_another_scheme_is_no_local_run(tmp_path: Path) -> None:
    run = config(tmp_path)
    ended(run, {0: 0.5}, scheme="fedavg")
    with pytest.raises(ConfigError, match="was made with --scheme fedavg, this run needs independent"):
        recorded(run)


@pytest.mark.parametrize(
    ("name", "value", "scheme_has"),
    [
        ("grouping", "single", "singletons"),
        ("program", "relay", "parallel"),
        ("training", "fedprox", "sgd"),
        ("training_option", {"mu": "1"}, {}),
        ("aggregation", "median", "mean"),
        ("merge", "weighted-mean", "none"),
    ],
)
def test_a_local_run_with_another_grouping_or_training_is_refused(
    name: str, value: Any, scheme_has: Any, tmp_path: Path
) -> None:
    run = config(tmp_path)
    ended(run, {0: 0.5}, **{name: value})
    with pytest.raises(ConfigError) as caught:
        recorded(run)
    assert f"was made with {flag(name)} {value}, this run needs {scheme_has}" in caught.value.what
    assert caught.value.remedy == "give another directory: a local run is made where there is none"


def test_what_a_scheme_would_choose_may_be_said(tmp_path: Path) -> None:
    run = config(tmp_path)
    ended(run, {0: 0.5}, grouping="singletons", training="sgd", aggregation="mean")
    assert recorded(run) == {0: 0.5}


@pytest.mark.parametrize(
    "summary",
    [
        None,
        "",
        "{",
        "[]",
        "{}",
        "null",
        '{"last": {}}',
        '{"last": []}',
        '{"last": {"per_client": [0.5]}}',
        '{"last": {"per_client": null}}',
        '{"last": {"per_client": {"0": null}}}',
        '{"last": {"per_client": {"0": "good"}}}',
        '{"last": {"per_client": {"zero": 0.5}}}',
        '{"best": {"per_client": {"0": 0.5}}}',
    ],
)
def test_one_that_did_not_end_is_refused(summary: str | None, tmp_path: Path) -> None:
    run = config(tmp_path)
    directory = prepare(settings(run))
    if summary is not None:
        directory.summary.write_text(summary)
    with pytest.raises(
        ConfigError, match="holds a run that did not end; resume it if it can be, remove it, or give another directory"
    ):
        recorded(run)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("not TOML", r"alone/config\.toml is not TOML"),
        ('colour = "red"', "colour"),
        ('rounds = "many"', "rounds"),
    ],
)
def test_settings_that_cannot_be_read_are_refused_in_the_name_of_the_option(
    text: str, reason: str, tmp_path: Path
) -> None:
    run = config(tmp_path)
    ended(run, {0: 0.5}).config.write_text(text)
    with pytest.raises(ConfigError, match=f"--local-run .*alone holds no run: .*{reason}"):
        recorded(run)


def test_a_run_that_was_cut_off_before_its_last_round_did_not_end(tmp_path: Path) -> None:
    run = config(tmp_path)
    directory = ended(run, {0: 0.5})
    summary = json.loads(directory.summary.read_text())
    assert summary["last"]["round"] == run.rounds
    summary["last"]["round"] -= 1
    directory.summary.write_text(json.dumps(summary))
    with pytest.raises(ConfigError, match="holds a run that did not end"):
        recorded(run)


# --- one that was cut off


def cut_off(run: RunConfig, *more: str, run_id: str = "1234abcd.alone") -> RunDirectory:
    """The local run of a run as a top server leaves it that was ended meanwhile."""
    directory = prepare(settings(run))
    events = [{"event": "run_started", "run": run_id}, *({"event": kind} for kind in more)]
    directory.events.write_text("".join(f"{json.dumps(event)}\n" for event in events))
    directory.history.write_text('{"round": 1}\n')
    return directory


def test_an_interrupted_local_run_is_set_aside_and_made_again(tmp_path: Path) -> None:
    run = config(tmp_path)
    for number in (1, 2):
        cut_off(run, "round_started", "round_finished")
        check(run)
        assert recorded(run) is None
        set_aside(run)
        assert not (tmp_path / "alone").exists()
        assert (tmp_path / f"alone-unfinished-{number}" / "history.jsonl").read_text() == '{"round": 1}\n'
    assert prepare(settings(run)).path == tmp_path / "alone"


@pytest.mark.parametrize(
    ("run_id", "last"),
    [("1234abcd", "round_finished"), ("1234abcd.alone", "run_finished")],
    ids=["one that can be resumed", "one that ended and was damaged"],
)
def test_any_other_that_did_not_end_stays_where_it_is(run_id: str, last: str, tmp_path: Path) -> None:
    run = config(tmp_path)
    cut_off(run, last, run_id=run_id)
    with pytest.raises(ConfigError, match="holds a run that did not end; resume it if it can be"):
        check(run)
    set_aside(run)
    assert (tmp_path / "alone" / "history.jsonl").exists()


def test_one_that_a_top_server_still_makes_is_refused(tmp_path: Path) -> None:
    run = config(tmp_path)
    directory = cut_off(run)
    with Journal(directory):
        for refuses in (check, set_aside):
            with pytest.raises(ConfigError, match="another top server records in"):
                refuses(run)
    assert directory.config.exists()


def test_where_there_is_none_nothing_is_set_aside(tmp_path: Path) -> None:
    check(config(tmp_path))
    set_aside(config(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["alone"]


# --- before anybody is waited for


def test_without_a_local_run_there_is_nothing_to_check(tmp_path: Path) -> None:
    check(config(tmp_path, local_run=None, run_dir=tmp_path))


def test_one_that_is_still_to_be_made_or_can_be_compared_passes(tmp_path: Path) -> None:
    run = config(tmp_path, run_dir=tmp_path / "run")
    check(run)
    check(run)
    ended(run, {0: 0.5})
    check(run)
    check(config(tmp_path, scheme="fedfusion", run_dir=tmp_path / "run"))


def test_a_training_that_adds_tensors_needs_one_that_was_made_before(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is still to be made, and training fedfusion adds tensors"):
        check(config(tmp_path, scheme="fedfusion"))


def test_the_directory_of_one_that_is_still_to_be_made_is_there_and_empty(tmp_path: Path) -> None:
    check(config(tmp_path, local_run=tmp_path / "a" / "alone"))
    assert list((tmp_path / "a" / "alone").iterdir()) == []


@pytest.mark.parametrize("below", ["file", "file/alone", "n" * 300])
def test_a_path_where_no_local_run_can_be_made_is_refused_with_the_name_of_the_flag(
    below: str, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"--local-run .* cannot be used: .*; give a directory"):
        check(config(tmp_path, local_run=tmp_path / below))


def test_a_place_that_may_not_be_written_is_refused() -> None:
    with pytest.raises(ConfigError, match="--local-run /proc/fedgsp cannot be used"):
        check(config(Path(), local_run=Path("/proc/fedgsp")))


def test_what_another_run_left_without_its_settings_is_not_written_over(tmp_path: Path) -> None:
    (tmp_path / "alone").mkdir()
    (tmp_path / "alone" / "history.jsonl").write_text("precious")
    with pytest.raises(ConfigError, match=r"--local-run .*alone already holds a run \(history\.jsonl\)"):
        check(config(tmp_path))


def test_both_runs_need_directories_of_their_own(tmp_path: Path) -> None:
    for run_dir in (tmp_path / "alone", tmp_path / "x" / ".." / "alone"):
        with pytest.raises(ConfigError, match="--local-run and --run-dir are the same directory"):
            check(config(tmp_path, run_dir=run_dir))


def test_one_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    run = config(tmp_path)
    ended(run, {0: 0.5}, seed=9)
    with pytest.raises(ConfigError, match="was made with --seed 9, this run needs 0"):
        check(run)


# --- gains


def test_gains_are_those_of_the_worked_example() -> None:
    """Section 5.5; a sample deviation would be 0.0645497."""
    alone = dict(enumerate((0.8, 0.7, 0.6, 0.5)))
    together = dict(enumerate((0.85, 0.7, 0.55, 0.6)))
    found = gains(together, alone)
    expected: Any = (0.5, pytest.approx(0.0559017, abs=1e-7))
    assert found == expected


def test_gains_are_those_of_the_clients_that_are_in_both_runs() -> None:
    expected: Any = (0.5, pytest.approx(0.1))
    assert gains({0: 0.5, 1: 0.9}, {1: 0.8, 0: 0.6}) == expected
    assert gains({0: 0.5, 1: 0.9, 7: 1.0}, {1: 0.8, 0: 0.6, 2: 0.1}) == expected
    for reached, alone in ({0: 0.5, 1: 0.9}, {1: 0.8}), ({1: 0.9}, {0: 0.5, 1: 0.8}):
        assert gains(reached, alone) == (1, 0)
    for reached, alone in ({0: 0.5}, {1: 0.8}), ({}, {0: 0.5}), ({0: 0.5}, {}), ({}, {}):
        assert gains(reached, alone) is None


@hypothesis_settings(deadline=None, max_examples=40)
@given(st.dictionaries(st.integers(0, 9), st.tuples(st.integers(0, 20), st.integers(0, 20)), min_size=1))
def test_better_is_strictly_better(accuracies: dict[int, tuple[int, int]]) -> None:
    found = gains(
        {c: ours / 20 for c, (ours, _) in accuracies.items()}, {c: a / 20 for c, (_, a) in accuracies.items()}
    )
    assert found is not None
    better = [ours > alone for ours, alone in accuracies.values()]
    differences = [(ours - alone) / 20 for ours, alone in accuracies.values()]
    mean = sum(differences) / len(differences)
    assert found[0] == pytest.approx(sum(better) / len(better))
    assert found[1] ** 2 == pytest.approx(sum((d - mean) ** 2 for d in differences) / len(differences), abs=1e-12)


# --- who is in it


HOSTED = {client: HostedClient(client, 10, tested) for client, tested in ((0, 5), (4, 5), (7, 0))}


@pytest.mark.parametrize(
    ("alone", "told"),
    [
        ({0: 0.5, 4: 0.5}, []),
        ({0: 0.5}, [([4], "the local run has no score of them")]),
        ({0: 0.5, 4: 0.0, 9: 0.5}, [([9], "the local run has them, this run does not")]),
        (
            {4: 0.5, 9: 0.5, 8: 0.5},
            [
                ([0], "the local run has no score of them"),
                ([8, 9], "the local run has them, this run does not"),
            ],
        ),
    ],
)
def test_whose_gains_are_not_told_is_said_once(
    alone: dict[int, float], told: list[tuple[list[int], str]], tmp_path: Path
) -> None:
    journal = Recorder()
    tell_left_out(config(tmp_path), HOSTED, alone, journal)
    assert [(event["clients"], event["reason"]) for event in journal.of_kind("gains_not_told")] == told
    assert len(journal.events) == len(told)


@pytest.mark.parametrize("alone", [{9: 0.5}, {7: 0.5}])
def test_a_local_run_of_other_clients_altogether_is_refused(alone: dict[int, float], tmp_path: Path) -> None:
    reason = r"--local-run .*alone has no score of any client of this run; give another"
    with pytest.raises(ConfigError, match=reason):
        tell_left_out(config(tmp_path), HOSTED, alone, Recorder())
