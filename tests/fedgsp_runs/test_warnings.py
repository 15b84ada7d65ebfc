"""A caller who sees no progress is warned of what went wrong meanwhile."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest

from fedgsp_node.tasks.digits import Digits
from fedgsp_runs import Run, resume
from tests.support.run_directories import trained, write


@pytest.fixture
def found(tmp_path: Path) -> Run:
    return Run(write(tmp_path / "run", Digits(2), {"final": (trained(Digits(2), 1), ())}, scheme="fedavg"))


def record(run: Run, rows: list[dict[str, Any]], events: list[dict[str, Any]]) -> None:
    files = {"history.jsonl": rows, "events.jsonl": events}
    for name, lines in files.items():
        (run.directory / name).write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


SKIPPED = {"event": "client_skipped", "round": 1, "client": 0, "reason": "task raised: no\x1b"}
FULL = {"event": "group_failed", "round": 2, "group": 0, "reason": "the group manager is full"}
DIVERGED = {**SKIPPED, "reason": "diverged: lower --learning-rate"}
NO_AUC = {
    "event": "metric_left_out",
    "round": 1,
    "metric": "auc",
    "clients": [0],
    "reason": "it is not a finite number",
}
MISSED = {"event": "not_evaluated", "round": 1, "reason": "no client has test samples"}


@pytest.mark.parametrize(
    ("skipped", "evaluated", "events", "what"),
    [
        (2, 3, [SKIPPED] * 2, "2 trainings skipped, the last one because: task raised: no\\x1b"),
        (0, 0, [MISSED], "no round was evaluated: no client has test samples"),
        (1, 0, [SKIPPED, MISSED], "because: task raised: no\\x1b; no round was evaluated: no client has"),
        (4, 3, [SKIPPED, FULL], "4 trainings skipped, the last one because: the group manager is full"),
        (1, 3, [DIVERGED], "because: diverged: lower `learning_rate`"),
        (0, 3, [NO_AUC], "no round has the score 'auc': it is not a finite number"),
        (0, 3, [], ""),
    ],
)
def test_what_went_wrong_unseen_is_a_warning(
    skipped: int, evaluated: int, events: list[dict[str, Any]], what: str, found: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedgsp_runs.playing._play", lambda *_: None)
    row: dict[str, Any] = {"round": 1, "clients_trained": 1, "clients_skipped": skipped}
    row |= {"clients_evaluated": evaluated, "scored_by": "auc"}
    row["score"] = None if NO_AUC in events or not evaluated else 0.5
    record(found, [row, {**row, "round": 2, "clients_skipped": 0}], events)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        resume(found.directory)
        assert not told
        again = resume(found.directory, progress=False)
    assert [what in str(one.message) for one in told] == ([True] if what else [])
    assert all(one.filename == __file__ for one in told)
    assert (f", {skipped} training" in repr(again)) == bool(skipped)
