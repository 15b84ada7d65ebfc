"""The pure judges of a check, at and around their limits."""

from __future__ import annotations

import datetime as dt
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgsp.errors import PeerError
from fedgsp.messages import About, WouldTake
from fedgsp.report import Report, State
from fedgsp_node.check.certificates import judge_own, judge_shown
from fedgsp_node.check.connection import (
    CLOCKS_DIFFER_S,
    CLOCKS_WRONG_S,
    judge_admission,
    judge_clocks,
    judge_manager,
    judge_pace,
    judge_versions,
)
from fedgsp_node.check.facts import Answered, Certificate, Facts, Memory, Model, Pace, Reached, Room, Shown, Unchecked
from fedgsp_node.check.machine import LEAST_FREE, judge_disk, judge_memory, memory, rooms
from fedgsp_node.check.table import CHECKS, line, lines

NOW = dt.datetime(2026, 11, 24, 12, tzinfo=dt.UTC)
DAY = dt.timedelta(days=1)


def facts(**known: Any) -> Facts:
    return Facts(
        **{"address": "top:7000", "now": NOW.timestamp(), "protocol": 3, "own_versions": {"fedgsp": "1"}, **known}
    )


def certificate(begins: float, ends: float, **more: Any) -> Certificate:
    """From so many days after now until so many days after now."""
    return Certificate(("top",), NOW + begins * DAY, NOW + ends * DAY, **more)


@pytest.mark.parametrize(
    ("begins", "ends", "state", "words"),
    [
        (-1, 6, State.GOOD, "valid until 2026-11-30 12:00 UTC"),
        (-300, 8, State.GOOD, "valid until"),
        (-300, 6, State.WARNING, "for 144 more hours"),
        (-6.7, 0.3, State.WARNING, "for 7 more hours"),
        (-6, 1, State.GOOD, "valid until"),
        (-9, 0, State.BAD, "it expired on 2026-11-24 12:00 UTC"),
        (0.04, 9, State.BAD, "it is not valid yet: it begins on 2026-11-24 12:57 UTC"),
    ],
)
def test_a_certificate_is_judged_by_its_dates(begins: float, ends: float, state: State, words: str) -> None:
    own = judge_own(certificate(begins, ends, identity="node n0"), facts())
    assert (own.state, words in own.words) == (state, True)
    shown = judge_shown(Shown(certificate(begins, ends)), facts())
    assert (shown.state, words in shown.words) == (state, True)
    assert (state is State.GOOD) == (not own.remedy)


def test_what_is_refused_for_its_name_is_told_with_its_names_and_after_its_dates() -> None:
    refused = PeerError("the certificate is refused", "dial a name that it has")
    assert "names that it has: top)" in judge_shown(Shown(certificate(-1, 6), refused), facts()).words
    assert "it expired on" in judge_shown(Shown(certificate(-9, -1), refused), facts()).words


def answered(ahead: float, trip: float = 0.0, **about: Any) -> Answered:
    at = NOW.timestamp()
    told = About(**{"protocol": 3, "versions": {"fedgsp": "1"}, "clock": at + ahead, **about})
    return Answered(told, at - trip / 2, at + trip / 2)


@given(st.floats(-1e7, 1e7), st.floats(0, 30))
def test_clocks_are_judged_by_what_is_certain_of_their_difference(ahead: float, trip: float) -> None:
    least = abs(ahead) - trip / 2
    wanted = State.BAD if least > CLOCKS_WRONG_S else State.WARNING if least > CLOCKS_DIFFER_S else State.GOOD
    if min(abs(least - CLOCKS_WRONG_S), abs(least - CLOCKS_DIFFER_S)) > 0.01:  # clocks since 1970 are rounded
        assert judge_clocks(answered(ahead, trip), facts()).state is wanted


@pytest.mark.parametrize("clock", [math.nan, math.inf, -math.inf, 1e300])
def test_a_clock_that_cannot_be_is_bad(clock: float) -> None:
    assert judge_clocks(answered(0, clock=clock), facts(own=certificate(-1, 1))).state is State.BAD


def test_a_small_difference_is_bad_if_the_certificate_is_not_valid_by_the_other_clock() -> None:
    young = certificate(-10 / 86400, 1)
    assert judge_clocks(answered(-4), facts(own=young)).state is State.GOOD
    finding = judge_clocks(answered(-20), facts(own=young))
    assert (finding.state, "certificate of this node is not valid" in finding.words) == (State.BAD, True)


@pytest.mark.parametrize(
    ("about", "state"),
    [
        ({}, State.GOOD),
        ({"versions": {"fedgsp": "2"}}, State.WARNING),
        ({"protocol": 4}, State.BAD),
        ({"versions": {}}, State.WARNING),
    ],
)
def test_versions_are_judged_by_protocol_first(about: dict[str, Any], state: State) -> None:
    assert judge_versions(answered(0, **about), facts()).state is state


def test_a_slow_connection_is_told_with_the_time_of_the_model() -> None:
    large = facts(model=Model(10**9, 4))
    assert judge_pace(Pace(0.01, 1e8), large).state is State.GOOD
    slow = judge_pace(Pace(0.01, 1e6), large)
    assert (slow.state, "takes about 17 min each way" in slow.words) == (State.WARNING, True)
    assert judge_pace(Pace(2.0, 1e9), facts()).state is State.WARNING
    assert "at most 0.05 MB/s" in judge_pace(Pace(0.1, 5e4, at_most=True), facts()).words


def test_another_version_of_torch_is_a_warning() -> None:
    assert judge_admission(WouldTake(False, True), facts()).state is State.WARNING


@pytest.mark.parametrize("ports", ["", "7100-7199"])
def test_an_open_port_of_managers_is_told_with_the_range(ports: str) -> None:
    about = answered(0, manager_ports=ports)
    words = judge_manager(Reached("10.0.0.1:7150", 0.01), facts(answered=about)).words
    assert (f"one of {ports}" if ports else "no --manager-ports") in words


@pytest.mark.parametrize(
    ("free", "state"), [(LEAST_FREE - 1, State.BAD), (LEAST_FREE, State.WARNING), (2 * LEAST_FREE, State.GOOD)]
)
def test_a_disk_is_judged_by_what_the_node_needs(free: int, state: State) -> None:
    room = Room(Path("state"), "--state-dir", free, LEAST_FREE)
    other = Room(Path("tmp"), "large models", 10**12, LEAST_FREE)
    finding = judge_disk((other, room), facts())
    assert finding.state is state
    assert ("--state-dir" in finding.remedy, "TMPDIR" in finding.remedy) == (state is not State.GOOD, False)


def test_a_node_needs_room_for_the_models_of_its_clients(tmp_path: Path) -> None:
    spilled, kept = rooms(tmp_path / "new" / "state", 10**9, 3)
    assert (spilled.needed, kept.needed) == (8 * 10**9, 6 * 10**9)
    assert not (tmp_path / "new").exists()
    (small,) = rooms(None, 1000, 3)
    assert small.needed == LEAST_FREE


@pytest.mark.parametrize(("free", "state"), [(99, State.BAD), (100, State.WARNING), (200, State.GOOD)])
def test_memory_is_judged_by_what_training_takes(free: int, state: State) -> None:
    assert judge_memory(Memory(free, 100), facts()).state is state


def test_the_memory_of_this_machine_is_known() -> None:
    found = memory(10**6, 2)
    assert found is None or (found.available > 0 and found.needed == (6 + 2 * 2) * 10**6)


def test_every_line_can_be_unchecked_bad_or_missing() -> None:
    for name, check in CHECKS.items():
        known = facts()
        for fact, state in ((Unchecked("why"), State.UNCHECKED), (None, None), (PeerError("it", "do"), State.BAD)):
            setattr(known, check.fact, fact)
            made = line(name, known)
            first = next(other for other in CHECKS if CHECKS[other].fact == check.fact)
            if state is State.BAD and name != first:
                assert made is not None
                assert made.words == f"see {first}"  # one error has one line
            else:
                assert (made.state if made else None) is state


def test_a_report_is_good_only_if_every_line_is() -> None:
    assert not Report(lines(facts())).good
    assert Report([]).good
    assert "0 checks" in str(Report([]))
