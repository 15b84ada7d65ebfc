"""Which clients missed which rounds, and why."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from top_server.absences import AWAY, Absence, Absences, Missed

LOST = Missed(AWAY, "node n0 was away: its stream was lost", 2.0)
RAISED = Missed("TASK_RAISED", "ValueError")
ROUNDS = st.lists(
    st.dictionaries(st.integers(0, 5), st.sampled_from([LOST, RAISED, Missed("STALLED", "no progress")])), max_size=12
)


def noted(rounds: list[dict[int, Missed]]) -> Absences:
    absences = Absences()
    for number, missed in enumerate(rounds, start=1):
        absences.note(number, missed)
    return absences


def test_rounds_in_a_row_with_one_reason_are_one_absence_and_clients_with_the_same_absence_are_together() -> None:
    absences = noted([{1: LOST, 5: LOST}, {1: LOST, 5: LOST, 2: RAISED}, {2: RAISED}, {}, {1: LOST}])
    assert absences.together() == [
        Absence((1, 5), 1, 2, LOST),
        Absence((2,), 2, 3, RAISED),
        Absence((1,), 5, 5, LOST),
    ]


def test_the_last_absence_of_a_client_that_came_back_has_its_duration() -> None:
    absences = noted([{1: LOST}, {1: LOST}])
    absences.came_back(3, {1: 35.24, 7: 1.0})
    absences.came_back(3, {1: 0.9})  # a moment later, without missing a round
    absences.came_back(4, {1: 99.0})
    [absence] = absences.together()
    assert absence.to_json() == {
        **{"clients": [1], "first": 1, "last": 2, "code": AWAY, "reason": LOST.reason},
        "seconds": 35.2,
    }


def test_another_reason_has_no_duration() -> None:
    absences = noted([{1: RAISED}])
    absences.came_back(1, {1: 35.0})
    assert "seconds" not in absences.together()[0].to_json()


@given(ROUNDS)
def test_every_missed_round_is_in_exactly_one_absence(rounds: list[dict[int, Missed]]) -> None:
    found = [
        (client, number, absence.why.code)
        for absence in noted(rounds).together()
        for client in absence.clients
        for number in range(absence.first, absence.last + 1)
    ]
    missed = [(client, number, why.code) for number, of in enumerate(rounds, start=1) for client, why in of.items()]
    assert sorted(found) == sorted(missed)


@given(ROUNDS)
def test_absences_are_read_as_they_were_saved(rounds: list[dict[int, Missed]]) -> None:
    absences = noted(rounds)
    again = Absences.from_json(json.loads(json.dumps(absences.to_json())))
    assert again.together() == absences.together()
