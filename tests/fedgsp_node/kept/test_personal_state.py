"""What clients keep to themselves: copies per run, client and purpose, found again after a restart."""

from __future__ import annotations

import errno
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from fedgsp.errors import DataError, RunError, UserError
from fedgsp.messages import FailureCode
from fedgsp_node.kept.personal_state import HEAD, MODEL, OPTIMIZER, PersonalState
from fedgsp_node.order_error import OrderError, failing
from tests.support.kept_state import disk_fails, keep, opened

ARRAYS = {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "seen": np.array(7)}


def same(found: tuple[str, object] | None) -> bool:
    assert found is not None
    arrays = found[1]
    assert isinstance(arrays, dict)
    assert arrays.keys() == ARRAYS.keys()
    return all(arrays[name].dtype == a.dtype and np.array_equal(arrays[name], a) for name, a in ARRAYS.items())


@pytest.mark.parametrize("on_disk", [False, True])
def test_what_is_kept_is_a_copy_per_client_and_purpose(tmp_path: Path, on_disk: bool) -> None:
    state = opened(tmp_path / "state" if on_disk else None)
    mine = {name: array.copy() for name, array in ARRAYS.items()}
    state.put(3, HEAD, mine, "m1")
    mine["w"][...] = 0
    found = state.get(3, HEAD)
    assert found is not None
    assert found[0] == "m1"
    assert same(found)
    assert state.get(3, MODEL) is None
    assert state.get(4, HEAD) is None


@pytest.mark.parametrize("on_disk", [False, True])
def test_what_is_kept_later_replaces_it(tmp_path: Path, on_disk: bool) -> None:
    state = opened(tmp_path if on_disk else None)
    state.put(3, HEAD, {"w": np.zeros(2)}, "m1")
    state.put(3, HEAD, ARRAYS, "m2")
    for reader in [state, opened(tmp_path)] if on_disk else [state]:
        found = reader.get(3, HEAD)
        assert found is not None
        assert found[0] == "m2"
        assert same(found)


def test_a_restarted_node_finds_what_it_kept_for_the_same_run_and_nothing_of_others(tmp_path: Path) -> None:
    opened(tmp_path).put(3, HEAD, ARRAYS)
    assert same(opened(tmp_path).get(3, HEAD))
    assert opened(tmp_path, "another run").get(3, HEAD) is None


@pytest.mark.parametrize("on_disk", [False, True])
def test_another_run_begins_with_nothing_and_the_same_run_goes_on(tmp_path: Path, on_disk: bool) -> None:
    state = opened(tmp_path if on_disk else None)
    state.put(3, HEAD, ARRAYS)
    state.open("run")
    assert same(state.get(3, HEAD))
    state.open("next")
    assert state.get(3, HEAD) is None


@pytest.mark.parametrize("on_disk", [False, True])
def test_of_rounds_the_last_is_kept_and_what_there_was_before_it(tmp_path: Path, on_disk: bool) -> None:
    def before(number: int) -> float | None:
        reader = opened(tmp_path) if on_disk else state
        found = reader.get_before(3, HEAD, number)
        return float(found["w"][0]) if found is not None else None

    state = opened(tmp_path if on_disk else None)
    assert before(1) is None
    keep(state, 3, HEAD, {"w": np.ones(1)}, 1)
    assert (before(1), before(2)) == (None, 1.0)
    keep(state, 3, HEAD, {"w": np.full(1, 4.0)}, 4)
    assert (before(4), before(5)) == (1.0, 4.0)
    keep(state, 3, HEAD, {"w": np.full(1, 4.5)}, 4)  # again: what there was before the round is still the same
    assert (before(4), before(5)) == (1.0, 4.5)
    assert state.get_before(3, MODEL, 5) is state.get_before(4, HEAD, 5) is None


def test_without_the_file_of_the_last_round_the_client_starts_afresh_and_not_from_the_one_before(
    tmp_path: Path,
) -> None:
    state = opened(tmp_path)
    for number in (1, 2):
        keep(state, 3, HEAD, {"w": np.full(1, number)}, number)
    (tmp_path / "run-client-3.head.safetensors").unlink()
    state = opened(tmp_path)
    assert state.get_before(3, HEAD, 3) is state.get_before(3, HEAD, None) is None
    keep(state, 3, HEAD, {"w": np.full(1, 3)}, 3)
    for reader in (state, opened(tmp_path)):
        assert reader.get_before(3, HEAD, 3) is None  # what the client began with, if it trains again
        assert reader.get_before(3, HEAD, 4) is not None


def test_a_disk_that_takes_no_result_of_a_round_leaves_that_of_the_one_before(tmp_path: Path) -> None:
    state = opened(tmp_path)
    keep(state, 3, HEAD, ARRAYS, 1)
    (tmp_path / ".run-client-3.head-next.safetensors.tmp").mkdir()  # where the new one is to be written aside
    with pytest.raises(RunError, match=r"cannot be written"):
        keep(state, 3, HEAD, {"w": np.zeros(2)}, 2)
    for reader in (state, opened(tmp_path)):
        assert same(reader.get(3, HEAD))
        assert same(("", reader.get_before(3, HEAD, 2)))


def test_a_directory_that_cannot_be_made_is_told_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"--state-dir .*file/state cannot be used.*give a directory"):
        PersonalState(tmp_path / "file" / "state")


@pytest.mark.parametrize("damage", [lambda data: data[: len(data) // 2], lambda data: b"", lambda data: b"junk" * 9])
def test_a_damaged_file_is_told_and_not_taken_for_nothing(tmp_path: Path, damage: object) -> None:
    opened(tmp_path).put(3, HEAD, ARRAYS)
    (path,) = tmp_path.iterdir()
    path.write_bytes(damage(path.read_bytes()))  # type: ignore[operator]
    with pytest.raises(DataError, match=r"client-3\.head\.safetensors cannot be read.*remove it to start afresh"):
        opened(tmp_path).get(3, HEAD)


def test_a_file_of_which_a_byte_has_changed_is_told_and_one_without_a_digest_is_read(tmp_path: Path) -> None:
    opened(tmp_path).put(3, HEAD, ARRAYS, "m1")
    (path,) = tmp_path.iterdir()
    whole = bytearray(path.read_bytes())
    for place in (len(whole) - 1, whole.index(b'"m1"') + 2):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(DataError, match=r"client-3\.head\.safetensors has changed .*remove it to start afresh"):
            opened(tmp_path).get(3, HEAD)
    path.write_bytes(safetensors.numpy.save(ARRAYS, {"label": "m1"}))  # as an earlier version wrote it
    assert same(opened(tmp_path).get(3, HEAD))


def test_a_disk_that_takes_nothing_is_told_and_what_was_kept_before_stays(tmp_path: Path) -> None:
    state = opened(tmp_path)
    state.put(3, HEAD, ARRAYS, "m1")
    (tmp_path / f".{next(tmp_path.iterdir()).name}.tmp").mkdir()  # where the new one is to be written aside
    with pytest.raises(RunError, match=r"cannot be written"):
        state.put(3, HEAD, {"w": np.zeros(2)}, "m2")
    for reader in (state, opened(tmp_path)):
        found = reader.get(3, HEAD)
        assert found is not None
        assert found[0] == "m1"


def test_a_full_disk_fails_the_order_by_its_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    state = opened(tmp_path)
    monkeypatch.setattr("fedgsp_node.kept.personal_state.sync", full)
    with pytest.raises(OrderError) as caught, failing(FailureCode.UNSPECIFIED, UserError):
        state.put(3, HEAD, ARRAYS)
    assert caught.value.failure.code is FailureCode.NO_ROOM
    assert "client-3.head.safetensors cannot be written" in caught.value.failure.detail


def test_a_run_that_was_resumed_two_rounds_back_gets_nothing_of_later_rounds() -> None:
    state = opened(None)
    for number in (1, 2, 3):
        keep(state, 3, HEAD, {"w": np.full(2, number)}, number)
    for asked, expected in ((4, 3), (3, 2), (2, None), (None, 3)):
        found = state.get_before(3, HEAD, asked)
        assert (None if found is None else int(found["w"][0])) == expected


def test_a_client_that_trains_again_in_a_resumed_run_has_what_it_began_with() -> None:
    """It was skipped in round 6. Then the run is resumed at round 6, and a group is repeated."""
    state = opened(None)
    for number in (5, 7, 6, 6):
        if number == 6:
            found = state.get_before(3, HEAD, 6)
            assert found is not None
            assert found["w"][0] == 5
        keep(state, 3, HEAD, {"w": np.full(2, number)}, number)
    found = state.get_before(3, HEAD, 7)
    assert found is not None
    assert found["w"][0] == 6


@pytest.mark.parametrize("on_disk", [False, True])
def test_what_a_training_has_left_is_kept_when_it_is_settled(tmp_path: Path, on_disk: bool) -> None:
    state = opened(tmp_path if on_disk else None)
    keep(state, 3, HEAD, ARRAYS, 1)
    state.prepare(3, {HEAD: {"w": np.full(2, 2)}}, 2, "made/2")
    for training in ("made/1", "made/3"):
        state.settle(3, training)
    state.settle(4, "made/2")
    for reader in (state, opened(tmp_path)) if on_disk else (state,):
        assert same(("", reader.get_before(3, HEAD, 3)))
        assert same(("", reader.get_before(3, HEAD, None)))
    state.settle(3, "made/2")
    for reader in (state, opened(tmp_path)) if on_disk else (state,):
        found = reader.get(3, HEAD)
        assert found is not None
        assert found[1]["w"].tolist() == [2, 2]
        assert same(("", reader.get_before(3, HEAD, 2)))


@pytest.mark.parametrize("on_disk", [False, True])
def test_what_was_not_settled_is_given_up_when_the_client_trains_again(tmp_path: Path, on_disk: bool) -> None:
    state = opened(tmp_path if on_disk else None)
    state.prepare(3, {HEAD: {"w": np.full(2, 2)}, MODEL: {"w": np.zeros(1)}}, 2, "made/2")
    state.prepare(3, {OPTIMIZER: ARRAYS}, 2, "again/2")
    for training in ("made/2", "again/2"):
        state.settle(3, training)
    for reader in (state, opened(tmp_path)) if on_disk else (state,):
        assert reader.get(3, HEAD) is None
        assert same(reader.get(3, OPTIMIZER))


def test_a_process_that_begins_settles_what_has_a_receipt(tmp_path: Path) -> None:
    for run_id in ("run", "other"):
        for client, training in ((3, "made/3"), (12, "made/12")):
            opened(tmp_path, run_id).prepare(client, {HEAD: ARRAYS, OPTIMIZER: ARRAYS}, 2, training)
    state = opened(tmp_path)
    state.settle_those_of(lambda: {"made/3"})
    assert same(state.get(3, HEAD))
    assert same(state.get(3, OPTIMIZER))
    assert state.get(12, HEAD) is state.get(12, OPTIMIZER) is None
    assert opened(tmp_path, "other").get(3, HEAD) is None


def test_receipts_are_not_read_if_nothing_was_prepared(tmp_path: Path) -> None:
    keep(opened(tmp_path), 3, HEAD, ARRAYS, 1)
    for state in (opened(tmp_path), opened(None)):
        state.settle_those_of(lambda: pytest.fail("receipts were read"))


@pytest.mark.parametrize("on_disk", [False, True])
def test_a_training_without_a_receipt_leaves_also_what_there_was_before_the_last_round(
    tmp_path: Path, on_disk: bool
) -> None:
    """The run may be resumed at that round."""
    state = opened(tmp_path if on_disk else None)
    for number in (1, 2):
        keep(state, 3, HEAD, {"w": np.full(1, number)}, number)
    state.prepare(3, {HEAD: {"w": np.full(1, 3)}}, 3, "lost")
    for reader in (state, opened(tmp_path)) if on_disk else (state,):
        assert [w_before(reader, asked) for asked in (2, 3, 4)] == [1, 2, 2]


def test_a_process_that_ended_between_the_two_steps_of_settling_is_followed_by_one_that_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class EndedError(Exception):
        pass

    def ended(*_: object) -> None:
        raise EndedError

    state = opened(tmp_path)
    for number in (1, 2):
        keep(state, 3, HEAD, {"w": np.full(1, number)}, number)
    state.prepare(3, {HEAD: {"w": np.full(1, 3)}}, 3, "made/3")
    with monkeypatch.context() as here:
        here.setattr("fedgsp_node.kept.personal_state.sync", ended)  # after the first file got its name
        with pytest.raises(EndedError):
            state.settle(3, "made/3")
    state = opened(tmp_path)
    state.settle_those_of(lambda: {"made/3"})
    for reader in (state, opened(tmp_path)):
        assert [w_before(reader, asked) for asked in (3, 4)] == [2, 3]


@pytest.mark.parametrize("what", ["pathlib.Path.replace", "fedgsp_node.kept.personal_state.sync"])
def test_a_client_goes_on_from_a_training_with_a_receipt_although_the_disk_fails(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = with_a_second_result(tmp_path)
    with monkeypatch.context() as here:
        here.setattr(what, disk_fails)
        with pytest.raises(RunError, match="cannot be written"):
            state.settle(3, "made/2")
    after = opened(tmp_path)
    after.settle_those_of(lambda: {"made/2"})
    for reader in (state, after):
        assert [w_before(reader, asked) for asked in (2, 3)] == [1, 2]


@pytest.mark.parametrize("restarted", [False, True])
def test_a_result_that_was_handed_out_by_halves_is_handed_out_whole_the_next_time(
    tmp_path: Path, restarted: bool
) -> None:
    state = opened(tmp_path)
    state.prepare(3, {HEAD: ARRAYS, OPTIMIZER: ARRAYS}, 2, "made/2")
    (tmp_path / ".run-client-3.optimizer-next.safetensors.tmp").mkdir()  # where it is to be written aside
    with pytest.raises(RunError, match="cannot be written"):
        state.hand_out(3, "made/2", "again 2")
    (tmp_path / ".run-client-3.optimizer-next.safetensors.tmp").rmdir()
    if restarted:
        state = opened(tmp_path)
        state.settle_those_of(lambda: {"made/1"})
    state.hand_out(3, "made/2", "third 2")
    state.settle(3, "third 2")
    for reader in (state, opened(tmp_path)):
        assert same(reader.get(3, HEAD))
        assert same(reader.get(3, OPTIMIZER))


@pytest.mark.parametrize("what", ["pathlib.Path.replace", "fedgsp_node.kept.personal_state.sync"])
@pytest.mark.parametrize("then", ["trains", "is asked again"])
def test_what_counts_is_at_its_place_before_more_is_written_although_the_disk_failed(
    then: str, what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def go_on() -> None:
        if then == "trains":
            state.prepare(3, {HEAD: {"w": np.full(1, 3)}}, 3, "lost")
        else:
            state.hand_out(3, "made/2", "lost")

    state = with_a_second_result(tmp_path)
    with monkeypatch.context() as here:
        here.setattr(what, disk_fails)
        with pytest.raises(RunError, match="cannot be written"):
            state.settle(3, "made/2")
        with pytest.raises(RunError, match="cannot be written"):
            go_on()
    go_on()
    after = opened(tmp_path)
    after.settle_those_of(lambda: {"made/2"})
    for reader in (state, after):
        assert [w_before(reader, asked) for asked in (2, 3)] == [1, 2]


def test_a_node_that_opens_its_run_once_more_makes_the_moves_that_have_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = with_a_second_result(tmp_path)
    with monkeypatch.context() as here:
        here.setattr(Path, "replace", disk_fails)
        with pytest.raises(RunError, match="cannot be written"):
            state.settle(3, "made/2")
    state.open("run")
    state.settle_those_of(lambda: {"made/2"})
    assert [w_before(opened(tmp_path), asked) for asked in (2, 3)] == [1, 2]


def with_a_second_result(directory: Path) -> PersonalState:
    """Client 3 keeps what its training in round 1 has left; what that of round 2 has left is to be settled."""
    state = opened(directory)
    keep(state, 3, HEAD, {"w": np.full(1, 1)}, 1)
    state.prepare(3, {HEAD: {"w": np.full(1, 2)}}, 2, "made/2")
    return state


def w_before(state: PersonalState, round_number: int) -> float:
    found = state.get_before(3, HEAD, round_number)
    assert found is not None
    return float(found["w"][0])
