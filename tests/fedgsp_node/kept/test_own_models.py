"""The models of clients that train alone: held while anybody may still start from them, and no longer."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgsp.errors import RunError
from fedgsp.messages import FailureCode
from fedgsp.transfers.model_store import ModelStore
from fedgsp_node.kept.own_models import OwnModels
from fedgsp_node.kept.personal_state import PersonalState
from fedgsp_node.order_error import OrderError
from tests.support.kept_state import disk_fails
from tests.support.weights import TENSORS, some_weights


class Node:
    """What a worker does with the result of a training order that is to be retained."""

    def __init__(self, directory: Path | None = None, run_id: str = "run") -> None:
        self.store, state = ModelStore(), PersonalState(directory)
        state.open(run_id)
        self.own = OwnModels(self.store, state, TENSORS)

    def train(self, client: int, start: str, produces: str, seed: int = 0) -> None:
        weights = some_weights(seed)
        self.own.save(client, produces, weights)
        self.own.settle(client, start, produces)
        self.own.hold(client, start, produces)
        self.store.put(produces, weights)

    def held(self, *model_ids: str) -> list[str]:
        return [model_id for model_id in model_ids if model_id in self.store]


def test_the_model_that_a_training_started_from_stays_until_the_next_one_starts_from_its_result() -> None:
    node = Node()
    node.train(0, "initial", "r1")
    assert node.held("r1") == ["r1"]
    node.train(0, "r1", "r2")
    assert node.held("r1", "r2") == ["r1", "r2"]
    node.train(0, "r2", "r3")
    assert node.held("r1", "r2", "r3") == ["r2", "r3"]


def test_a_result_that_nobody_heard_of_goes_when_the_training_begins_anew() -> None:
    node = Node()
    node.train(0, "initial", "r1")
    node.train(0, "r1", "r2 unheard")
    node.train(0, "r1", "r2 again")
    assert node.held("r1", "r2 unheard", "r2 again") == ["r1", "r2 again"]


def test_after_a_time_in_a_group_the_last_own_models_go() -> None:
    node = Node()
    node.train(0, "initial", "r1")
    node.train(0, "r1", "r2")
    node.train(0, "group's", "r5")
    assert node.held("r1", "r2", "r5") == ["r5"]


@given(st.lists(st.tuples(st.integers(0, 2), st.booleans()), max_size=25))
def test_at_most_two_models_of_each_client_are_held_whatever_is_heard(steps: list[tuple[int, bool]]) -> None:
    node = Node()
    current: dict[int, str] = {}
    for number, (client, heard) in enumerate(steps):
        node.train(client, current.get(client, "initial"), f"m{number}")
        if heard:
            current[client] = f"m{number}"
        assert len(node.store) <= 2 * len({client for client, _ in steps[: number + 1]})
        assert node.held(*current.values()) == list(current.values())  # what may be asked for is there


def test_a_restarted_node_has_the_newest_of_each_client_and_what_it_started_from_again(tmp_path: Path) -> None:
    before = Node(tmp_path)
    before.train(0, "initial", "r1", seed=1)
    before.train(0, "r1", "r2", seed=2)
    before.train(3, "initial", "other", seed=3)
    after = Node(tmp_path)
    after.own.reopen([0, 1, 3], frozenset)
    assert len(after.store) == 3
    assert after.held("r1", "r2", "other") == ["r1", "r2", "other"]
    after.train(0, "r2", "r3")
    after.train(0, "r3", "r4")
    assert after.held("r2", "r3", "r4") == ["r3", "r4"]  # found again, they are let go again


async def test_what_is_found_again_has_the_same_bits(tmp_path: Path) -> None:
    Node(tmp_path).train(0, "initial", "r1", seed=1)
    after = Node(tmp_path)
    after.own.reopen([0], frozenset)
    found = await after.store.get("r1")
    assert found.ref("r1") == some_weights(1).ref("r1")
    assert found.tensors == TENSORS


def test_models_of_another_run_are_none_of_this_ones(tmp_path: Path) -> None:
    Node(tmp_path, "first").train(0, "initial", "r1")
    second = Node(tmp_path, "second")
    second.own.reopen([0], frozenset)
    assert len(second.store) == 0


def test_a_client_whose_own_model_is_forgotten_has_none_and_begins_anew() -> None:
    node = Node()
    node.train(0, "initial", "r1")
    node.train(0, "r1", "r2")
    node.train(3, "initial", "other")
    node.own.forget(["r2", "never heard of"])
    assert node.held("r1", "r2", "other") == ["other"]
    node.train(0, "initial again", "s1")
    node.train(0, "s1", "s2")
    assert node.held("s1", "s2", "other") == ["s1", "s2", "other"]


def test_a_disk_that_takes_nothing_fails_the_order(tmp_path: Path) -> None:
    node = Node(tmp_path / "state")
    (tmp_path / "state").rmdir()
    with pytest.raises(OrderError) as caught:
        node.train(0, "initial", "r1")
    assert caught.value.failure.code is FailureCode.UNSPECIFIED
    assert "No such file or directory; make the folder that it belongs in" in caught.value.failure.detail


def test_a_result_of_a_round_is_kept_through_the_next_whatever_that_starts_from(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.train(0, "run/1/cluster", "run/1/0/parallel/0.0", seed=1)
    node.train(0, "run/2/cluster", "run/2/0/parallel/0.0", seed=2)
    node.train(0, "run/2/cluster", "run/2/0/parallel/0.4", seed=3)  # ordered again: nobody heard of the one before
    kept = ["run/1/0/parallel/0.0", "run/2/0/parallel/0.4"]
    assert node.held(*kept, "run/2/0/parallel/0.0") == kept
    after = Node(tmp_path)
    after.own.reopen([0], frozenset)
    assert after.held(*kept) == kept


@pytest.mark.parametrize("what", ["pathlib.Path.replace", "fedgsp_node.kept.personal_state.sync"])
def test_a_result_with_a_receipt_is_not_written_over_although_the_disk_failed(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Node(tmp_path)
    node.train(0, "initial", "r1", seed=1)
    node.own.save(0, "r2", some_weights(2))
    with monkeypatch.context() as here:
        here.setattr(what, disk_fails)
        with pytest.raises(RunError, match="cannot be written"):
            node.own.settle(0, "r1", "r2")
        node.own.hold(0, "r1", "r2")
        with pytest.raises(OrderError, match="cannot be written"):
            node.own.save(0, "r3", some_weights(3))
    node.own.save(0, "r3", some_weights(3))  # has no receipt
    after = Node(tmp_path)
    after.own.reopen([0], frozenset)
    assert after.held("r1", "r2", "r3") == ["r1", "r2"]
