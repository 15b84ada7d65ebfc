"""The progress of a run saves and restores itself, and no field can be forgotten."""

from __future__ import annotations

import dataclasses
import json
from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgsp.messages import ModelRef
from top_server.grouping import Plan
from top_server.models import Held
from top_server.progress import Progress

CLIENTS = st.integers(0, 2**32)
MODELS = st.builds(
    Held,
    st.builds(ModelRef, st.text(min_size=1), st.integers(0, 2**40), st.binary(min_size=16, max_size=16)),
    st.none() | CLIENTS,
)
#: Clients in groups of two, and those that are left.
PLANS = st.lists(CLIENTS, unique=True).map(
    lambda them: Plan(tuple(zip(them[::4], them[1::4], strict=False)), tuple(them[2::4]))
)
PROGRESS = st.builds(
    Progress,
    plan=st.none() | PLANS,
    first_clients=st.frozensets(CLIENTS),
    afresh=st.sets(CLIENTS),
    local_models=st.dictionaries(CLIENTS, MODELS),
    update_lengths=st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=200).map(
        lambda lengths: deque(lengths, maxlen=200)
    ),
    began=st.dictionaries(CLIENTS, st.integers(1, 10_000)),
)


def test_every_field_says_how_it_is_saved_and_restored() -> None:
    for field in dataclasses.fields(Progress):
        assert {"write", "read"} <= field.metadata.keys(), f"{field.name} would be lost on --resume"


@given(PROGRESS)
def test_what_is_saved_as_json_is_restored(progress: Progress) -> None:
    drawn = {field.name for field in dataclasses.fields(Progress)}
    assert progress.save().keys() == drawn
    again = Progress()
    again.restore(json.loads(json.dumps(progress.save())))
    assert again == progress


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(Progress)])
def test_a_field_that_is_missing_in_a_saved_state_is_noticed(name: str) -> None:
    saved = Progress().save()
    del saved[name]
    with pytest.raises(KeyError, match=name):
        Progress().restore(saved)


def test_only_recent_norms_are_kept_also_after_a_resume() -> None:
    progress = Progress()
    for _ in range(2):
        progress.update_lengths.extend(range(150))
        progress.restore(progress.save())
    assert list(progress.update_lengths) == [*range(100, 150), *range(150)]


def test_tensors_that_stay_on_a_node_are_lost_if_a_later_round_begins_them_anew() -> None:
    progress = Progress()
    assert not progress.note_kept(3, 1, afresh=True)
    assert not progress.note_kept(3, 1, afresh=True)  # the same round again
    assert not progress.note_kept(3, 2, afresh=False)
    assert progress.note_kept(3, 3, afresh=True)
    assert progress.began == {3: 3}
    assert progress.note_missing(3)
    assert not progress.note_missing(3)
