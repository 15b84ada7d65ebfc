from __future__ import annotations

import io
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from tests.support.events import some
from top_server.record.directory import RunDirectory
from top_server.record.events.processes import NodeJoined
from top_server.record.events.rounds import HopFinished, RoundFinished
from top_server.record.events.run import Listening
from top_server.record.journal import Journal
from top_server.view.lines import describe, size
from top_server.view.state import ViewState
from top_server.view.watching import draw, duration, sparkline, watching

START = datetime(2025, 1, 2, 3, 4, 5, tzinfo=UTC)
ROW = {"accuracy": 0.5, "loss": 1.25, "seconds": 8.0, "bytes_direct": 1_500_000, "bytes_relayed": None}


def event(kind: str, **fields: Any) -> dict[str, Any]:
    return {"time": START.isoformat().replace("+00:00", "Z"), "event": kind, **fields}


def round_started(number: int, groups: int, members: int = 5) -> dict[str, Any]:
    return event("round_started", round=number, groups=groups, sampled_groups=groups, teams=[[9] * members] * groups)


def hop(group: int, position: int, members: int = 5, number: int = 1) -> dict[str, Any]:
    return event(
        "hop_finished", round=number, group=group, position=position, members=members, client=position, loss=0.1
    )


def state_after(*events: dict[str, Any]) -> ViewState:
    state = ViewState()
    for one in events:
        state.apply(one)
    return state


def started(rounds: int = 20) -> list[dict[str, Any]]:
    return [
        event("listening", address="127.0.0.1:7000"),
        event("node_joined", node="a", clients=list(range(20)), address=None),
        event("node_joined", node="b", clients=4, address="x"),
        event("run_started", clients=24, nodes=2, rounds=rounds, scheme="fedgsp"),
    ]


def drawn(state: ViewState, width: int = 80, height: int = 24, **options: bool) -> list[str]:
    file = io.StringIO()
    console = Console(file=file, width=width, height=height, force_terminal=True, color_system=None)
    console.print(draw(state, START + timedelta(seconds=90), width, height, **options))
    return file.getvalue().splitlines()


def test_a_resumed_run_is_shown_from_the_round_after_which_it_continues() -> None:
    begun = started()[:3]
    resumed = event("run_resumed", clients=24, nodes=2, rounds=20, round=15, scheme="fedgsp")
    state = state_after(*begun, event("waiting_for_clients", clients=24, timeout=120.0), resumed)
    assert "fedgsp  round 15 of 20" in drawn(state)[0]
    state.apply(event("round_finished", round=16, seconds=10.0))
    assert state.seconds_left == pytest.approx(40.0)
    assert describe(resumed) == "run resumed: fedgsp, after round 15 of 20, 24 clients"


def test_managers_that_start_are_counted_until_all_are_ready() -> None:
    state = state_after(*started(), event("managers_starting", managers=40))
    for ready in range(1, 13):
        state.apply(event("manager_spawned", manager=f"m{ready}", managers=40, ready=ready))
    assert "starting 40 group managers: 12 ready" in drawn(state)[1]
    state.apply(event("manager_spawned", manager="m39", managers=40, ready=40))
    assert "starting" not in drawn(state)[1]


def test_of_many_managers_the_start_and_each_quarter_is_a_line_and_of_few_nothing() -> None:
    def lines(managers: int) -> list[str | None]:
        starts = [event("managers_starting", managers=managers)]
        starts += [event("manager_spawned", managers=managers, ready=ready) for ready in range(1, managers + 1)]
        return [line for line in map(describe, starts) if line]

    ready = [f"starting 40 group managers: {number} ready" for number in (10, 20, 30, 40)]
    assert lines(40) == ["starting 40 group managers", *ready]
    assert lines(2) == []


def test_counts_say_of_how_many_and_one_is_singular() -> None:
    state = ViewState()
    wait = event("waiting_for_nodes", nodes=2, clients=1, timeout=120.0)
    assert state.apply(wait) == "waiting at most 120 s for 2 nodes and 1 client"
    one = event("node_joined", node="a", clients=[0])
    assert state.apply(one) == "node a joined with 1 client (1 of 2 nodes, 1 client)"
    assert state.apply(event("node_joined", node="b", clients=[1, 2])) == (
        "node b joined with 2 clients (2 nodes, 3 clients)"
    )
    assert state.apply(event("node_left", node="b", reason="lost")) == (
        "node b left: lost (1 of 2 nodes, 1 of 3 clients)"
    )
    row = event("round_finished", round=1, groups=1, sampled_groups=1, clients_trained=1)
    assert describe(row) == "round 1: 1 of 1 group, 1 client, accuracy -, loss -, - s, 0 B"


def test_nodes_come_and_go() -> None:
    state = state_after(*started())
    assert (len(state.nodes), state.clients) == (2, 24)
    state.apply(event("node_left", node="a", reason="connection lost"))
    assert (len(state.nodes), state.clients) == (1, 4)


def test_groups_advance_and_end() -> None:
    state = state_after(
        *started(),
        round_started(1, 3),
        hop(0, 0),
        hop(0, 1),
        event("client_skipped", round=1, group=1, client=3, reason="stalled"),
        event("group_finished", round=1, group=0),
        event("group_failed", round=1, group=2, reason="all gave up"),
    )
    assert [(group.hops, group.members, group.skipped, group.state) for group in state.groups.values()] == [
        (2, 5, 0, "finished"),
        (0, 5, 1, "training"),
        (0, 5, 0, "failed"),
    ]
    state.apply(round_started(2, 1))
    assert list(state.groups) == [0]
    assert state.groups[0].hops == 0


@pytest.mark.parametrize("kind", ["hop_finished", "client_skipped"])
def test_a_survey_is_no_group(kind: str) -> None:
    state = state_after(*started(), event(kind, round=0, group=0, client=3, members=5, reason="lost"))
    assert state.groups == {}


def test_time_left_is_told_from_recent_rounds() -> None:
    state = state_after(*started(rounds=20))
    assert state.seconds_left is None
    for number in range(1, 11):
        state.apply(event("round_finished", round=number, seconds=100.0 if number <= 5 else 10.0))
    assert state.seconds_left == pytest.approx(100.0)
    state.apply(event("run_finished", rounds=20, seconds=3.0))
    assert state.seconds_left is None


def alone(*rounds: int, of: int = 20) -> list[dict[str, Any]]:
    told = [
        event("local_round_finished", round=number, rounds=of, accuracy=number / 100, seconds=2.0) for number in rounds
    ]
    return [*started()[:3], event("local_run_started", rounds=of, directory="local"), *told]


def discriminators(exchanges: int, left: int = 28) -> dict[str, Any]:
    return event("discriminators", exchanges=exchanges, left=left, networks=28)


def test_a_local_run_is_followed_as_the_run_that_it_is() -> None:
    lines = drawn(state_after(*alone(1, 2)))
    assert "alone  round 3 of 20" in lines[0]
    assert "about 0:00:36 left" in lines[0]
    assert "accuracy 0.0200" in lines[1]
    assert "first every client trains alone for 20 rounds" in "\n".join(lines)
    assert "alone  round 1 of 20" in drawn(state_after(*alone()))[0]
    assert "alone  round 20 of 20" in drawn(state_after(*alone(20)))[0]


def test_a_local_run_leaves_nothing_to_the_run_it_is_for() -> None:
    after, fresh = state_after(*alone(1, 2), started()[3]), state_after(*started())
    after.last_events.clear()
    fresh.last_events.clear()
    assert after == fresh


def test_before_the_first_round_no_round_0_is_told() -> None:
    assert "fedgsp  before round 1 of 20" in drawn(state_after(*started()))[0]


def test_discriminators_are_counted_until_the_distances_are_found() -> None:
    state = state_after(*started(), discriminators(51, left=12))
    head, numbers, *events = drawn(state)
    assert "fedgsp  measuring distances" in head
    assert "51 exchanges, 12 of 28 networks left" in numbers
    assert not any("exchanges" in line for line in events)
    state.apply(event("distances_found", round=1, clients=[0, 1], seconds=3.0, bytes=10))
    assert "before round 1" in drawn(state)[0]


def test_discriminators_of_newcomers_hide_the_groups_of_the_round_before() -> None:
    state = state_after(*started(), event("round_finished", round=1, **ROW), round_started(2, 3), discriminators(1))
    text = "\n".join(drawn(state))
    assert "3 groups" not in text
    assert "left" not in text.splitlines()[0]  # a time of rounds says nothing about discriminators


@pytest.mark.parametrize(("left", "filled"), [(28, None), (14, 10), (0, 20)])
def test_the_bar_is_of_pairs_that_stopped_and_moves_before_the_first(left: int, filled: int | None) -> None:
    bar = drawn(state_after(*started(), discriminators(1, left)))[0].split("distances")[1].split()[0]
    assert filled is None or bar.count("━") + bar.count("╸") == filled
    assert filled is not None or len(bar) == 20


def lines_alone(rounds: int) -> list[int]:
    return [number for number in range(1, rounds + 1) if describe(alone(number, of=rounds)[-1])]


@settings(deadline=None)
@given(st.integers(1, 400))
def test_a_local_run_is_ten_lines_at_most_and_the_last_of_them_its_end(rounds: int) -> None:
    told = lines_alone(rounds)
    assert min(rounds, 6) <= len(told) <= 10
    assert told[-1] == rounds


def test_lines_of_a_local_run_are_spread_evenly() -> None:
    assert lines_alone(4) == [1, 2, 3, 4]
    assert lines_alone(200) == list(range(20, 201, 20))
    assert lines_alone(25) == [3, 6, 9, 12, 15, 18, 21, 24, 25]


def test_lines_about_discriminators_become_rarer() -> None:
    told = [exchanges for exchanges in range(1, 2000, 10) if describe(discriminators(exchanges))]
    assert told == [1, *range(11, 101, 10), *range(101, 1000, 100), 1001]


def test_a_client_that_is_not_compared_is_a_line_with_the_reason() -> None:
    line = describe(event("not_compared", round=2, client=7, reason="it has less than 2 training samples"))
    assert line is not None
    assert "round 2" in line
    assert "client 7 is not compared with the others: it has less than 2 training samples" in line


def test_a_round_without_an_evaluation_keeps_the_last_accuracy() -> None:
    state = state_after(*started(), event("round_finished", round=1, **ROW), event("round_finished", round=2))
    assert (state.rated_by, state.ratings) == ("accuracy", [0.5])
    assert state.finished_rounds == 2


def test_unknown_events_change_nothing() -> None:
    state, same = state_after(*started()), state_after(*started())
    state.apply(event("weather_changed", group="everywhere"))
    assert state == same


def test_a_round_is_one_line() -> None:
    row = event("round_finished", round=3, groups=30, sampled_groups=9, clients_trained=45, **ROW)
    assert describe(row) == "round 3: 9 of 30 groups, 45 clients, accuracy 0.5000, loss 1.2500, 8.0 s, 1.5 MB"
    assert (
        describe(event("round_finished", round=3)) == "round 3: - of - groups, - clients, accuracy -, loss -, - s, 0 B"
    )
    assert describe(hop(0, 0)) is None


@pytest.mark.parametrize(("count", "text"), [(0, "0 B"), (999, "999 B"), (1500, "1.5 kB"), (2.5e9, "2.5 GB")])
def test_sizes_have_units(count: float, text: str) -> None:
    assert size(count) == text


def test_the_display_says_what_matters() -> None:
    state = state_after(
        *started(),
        event("round_finished", round=1, **ROW),
        round_started(2, 3),
        hop(0, 0, number=2),
        event("node_refused", node="c", reason="another [task]"),
    )
    text = "\n".join(drawn(state))
    for part in (
        "fedgsp  round 2 of 20",
        "0:01:30 elapsed",
        "about 0:02:32 left",
        "2 nodes, 24 clients",
        "accuracy 0.5000",
        "loss 1.2500",
        "3 groups: 3 training",
        "1/5",
        "node c was refused: another [task]",
    ):
        assert part in text


def test_the_bar_makes_room_for_what_is_written() -> None:
    state = state_after(*started(rounds=200), event("run_started", scheme="fedcollab", rounds=200))
    for number in range(1, 101):
        state.apply(event("round_finished", round=number, seconds=90.0))
    head = drawn(state)[0]
    for part in ("fedcollab  round 100 of 200", "0:01:30 elapsed", "about 2:30:00 left"):
        assert part in head


def test_before_the_run_it_says_whom_it_waits_for() -> None:
    waits = event("waiting_for_nodes", nodes=4, clients=30, timeout=120.0)
    joined = started()[:2]
    assert drawn(ViewState())[0] == "starting: 0 nodes, 0 clients"
    state = state_after(joined[0], waits, joined[1])
    assert "waiting for nodes at 127.0.0.1:7000: 1 of 4 nodes, 20 of 30 clients" in drawn(state)[0]


@pytest.mark.parametrize(("width", "height"), [(80, 24), (40, 15), (200, 60), (20, 10)])
@pytest.mark.parametrize("groups", [0, 1, 50, 500])
def test_it_never_outgrows_the_screen(width: int, height: int, groups: int) -> None:
    state = state_after(*started(), round_started(1, groups), *(hop(0, i) for i in range(3)))
    for _ in range(9):
        state.apply(event("node_refused", node="n" * 300, reason="too long"))
    lines = drawn(state, width, height)
    assert len(lines) < height
    assert max(map(len, lines)) <= width


def test_groups_at_work_are_shown_before_the_others() -> None:
    state = state_after(
        *started(),
        round_started(1, 50),
        *(event("group_finished", round=1, group=group) for group in range(49)),
        hop(49, 0),
    )
    lines = drawn(state, 40, 12)
    assert "49" in lines[3]
    assert "1/5" in lines[3]
    assert any("and 47 more" in line for line in lines)


def test_a_terminal_without_unicode_is_served() -> None:
    state = state_after(*started(), event("round_finished", round=1, accuracy=0.1))
    state.apply(event("round_finished", round=2, accuracy=0.9))
    assert "_@" in "\n".join(drawn(state, ascii_only=True))


def test_a_sparkline_spans_its_values_and_fits() -> None:
    assert sparkline([0.0, 1.0, 0.5], 10) == "▁█▅"
    assert sparkline([0.3, 0.3], 10) == "▁▁"
    assert sparkline([-1.7e308, 0.0, 1.7e308], 10) == "▁▅█"
    assert len(sparkline([float(i) for i in range(100)], 30)) == 30


def test_durations_are_never_negative() -> None:
    assert duration(-3) == "0:00:00"
    assert duration(3661.4) == "1:01:01"


def test_json_is_every_event_and_nothing_else(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    directory = RunDirectory(tmp_path)
    with Journal(directory) as journal, watching(journal, directory, json=True):
        journal.record(Listening(address="x"))
        journal.finish_round(RoundFinished(round=1))
    lines = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert [line["event"] for line in lines] == ["listening", "round_finished"]
    assert lines[1]["round"] == 1


def test_where_no_terminal_is_each_round_is_a_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    directory = RunDirectory(tmp_path)
    with Journal(directory, now=lambda _: START) as journal, watching(journal, directory, json=False):
        journal.record(Listening(address="127.0.0.1:7000"))
        journal.record(some(HopFinished, round=1, group=0))
        journal.record(RoundFinished(round=1))
    lines = capfd.readouterr().out.splitlines()
    assert lines[0] == "03:04:05 listening on 127.0.0.1:7000"
    assert lines[1].startswith("03:04:05 round 1: ")
    assert lines[2:] == [f"recorded in {tmp_path}"]


def test_a_name_that_stdout_cannot_spell_is_escaped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    directory = RunDirectory(tmp_path)
    with open(1, "w", encoding="ascii", closefd=False) as ascii_only:
        monkeypatch.setattr("sys.stdout", ascii_only)
        with Journal(directory, now=lambda _: START) as journal, watching(journal, directory, json=False):
            journal.record(some(NodeJoined, node="Klinik Süd", clients=1))
            journal.record(RoundFinished(round=1))
    lines = capfd.readouterr().out.splitlines()
    assert "Klinik S\\xfcd" in lines[0]
    assert "round 1" in lines[1]


def test_without_a_stdout_a_run_is_watched_by_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = RunDirectory(tmp_path)
    monkeypatch.setattr("sys.stdout", None)
    for json_lines in (True, False):
        with Journal(directory) as journal, watching(journal, directory, json=json_lines):
            journal.record(RoundFinished(round=1))
