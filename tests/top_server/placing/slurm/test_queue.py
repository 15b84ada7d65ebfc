from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from top_server.placing.slurm.queue import FORGOTTEN, Change, Task, changes, merged, parse, waiting

#: What squeue of Slurm 22.05 prints for FIELDS, while task 0 waits after a requeue and task 1 runs.
SEEN = "0|PENDING|BeginTime||1|0|\n1|RUNNING|None|n1|0|0|\n\n"
RUNS = Task("RUNNING", "None", "n1")


def test_the_queue_is_read_as_squeue_prints_it() -> None:
    assert parse(SEEN) == {0: Task("PENDING", "BeginTime", "", 1), 1: RUNS}
    assert parse("") == {}
    reason = "ReqNodeNotAvail, UnavailableNodes:n[1-2]"
    assert parse(f"3|PENDING|{reason}||0|0|\n")[3].reason == reason


@pytest.mark.parametrize("text", ["slurm is down", "0|RUNNING|None|n1|x|0|", "0|RUNNING|"])
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse(text)


@pytest.mark.parametrize(
    ("state", "status", "code", "says"),
    [
        ("COMPLETED", 0, 0, ""),
        ("FAILED", 3 << 8, 3, ""),
        ("FAILED", 9, -9, ""),
        ("CANCELLED", 143 << 8, None, "cancelled"),
        ("NODE_FAIL", 0, None, "machine is lost"),
        ("OUT_OF_MEMORY", 125 << 8, None, "place option memory"),
        ("TIMEOUT", 0, None, "place option time"),
        ("DEADLINE", 0, None, "DEADLINE"),
    ],
)
def test_the_end_of_a_task_is_told_once_with_its_exit_code_or_the_reason(
    state: str, status: int, code: int | None, says: str
) -> None:
    over = Task(state, "None", "n1", 0, status)
    (change,) = changes({0: RUNS}, {0: over})
    assert (change.number, change.code, change.returns) == (0, code, False)
    assert says in change.reason
    assert bool(says) == bool(change.reason)
    assert changes({0: over}, {0: over}) == []
    assert changes({0: over}, {}) == []


def test_a_task_that_is_in_the_queue_again_returns_however_fast_it_runs_again() -> None:
    for now in (Task("PENDING", "BeginTime", "", 1), Task("RUNNING", "None", "n2", 1)):
        (change,) = changes({0: RUNS}, {0: now})
        assert change.returns
        assert "on n1" in change.reason
    assert changes({0: Task("PENDING", "BeginTime", "", 1)}, {0: Task("RUNNING", "None", "n2", 1)}) == []
    assert changes({0: Task("PENDING", "Resources", "", 0)}, {0: Task("PENDING", "Priority", "", 0)}) == []


def test_a_task_that_the_queue_forgets_has_ended_for_a_reason_that_nobody_knows() -> None:
    assert changes({0: RUNS}, {}) == [Change(0, None, "Slurm does not know its task any more")]
    assert changes({0: FORGOTTEN}, {}) == []
    assert changes({0: RUNS}, {0: Task("COMPLETING", "None", "n1")}) == []


def test_a_task_that_has_ended_stays_ended_and_others_are_as_they_were_seen() -> None:
    over = Task("COMPLETED")
    assert merged({0: over, 1: RUNS}, {1: Task("COMPLETING")}, [0, 1, 2]) == {
        0: over,
        1: Task("COMPLETING"),
        2: FORGOTTEN,
    }


def test_why_tasks_wait_is_told_by_reason() -> None:
    tasks = {2: Task("PENDING", "Priority"), 0: Task("PENDING", "Priority"), 1: Task("REQUEUED", "BeginTime"), 3: RUNS}
    assert waiting(tasks) == {"Priority": [0, 2], "BeginTime": [1]}


STATES = st.sampled_from(["PENDING", "RUNNING", "COMPLETING", "COMPLETED", "FAILED", "CANCELLED", "NODE_FAIL"])
TASKS = st.builds(Task, STATES, st.just("None"), st.just("n1"), st.integers(0, 3), st.sampled_from([0, 9, 256]))


@given(st.lists(st.dictionaries(st.integers(0, 2), TASKS), max_size=8))
def test_whatever_the_queue_shows_no_task_ends_for_good_twice(looks: list[dict[int, Task]]) -> None:
    before = dict.fromkeys(range(3), Task("PENDING"))
    ends = []
    for look in looks:
        now = merged(before, look, range(3))
        ends += [change.number for change in changes(before, now) if not change.returns]
        before = now
        if any(task == FORGOTTEN for task in before.values()):
            break
    assert len(ends) == len(set(ends))
