"""Trackers of the top server."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from fedgsp.settings.fields import described
from tests.contracts.declarations import check_declaration
from top_server.tracking import TO, TRACKERS
from top_server.tracking.base import About, Outcome, Points, Tracker, Tracking

BEGAN = datetime(2026, 1, 1, tzinfo=UTC)


async def check_tracker(name: str) -> None:
    """It takes a run round by round, also one that another object has begun, and says how far it is."""
    part = check_declaration(TRACKERS, name)
    assert isinstance(part, Tracker)
    with tempfile.TemporaryDirectory() as folder, somewhere(part, Path(folder)) as options:
        part.check(options)
        about = about_run(Path(folder))
        first = _made(part, options)
        assert first.begin(about) == 0, "it has rounds of a run that is new to it"
        first.add(points_of(1))
        first.end(Outcome("stopped", BEGAN))
        second = _made(part, options)
        has = second.begin(about)
        assert has in (0, 1), "it has rounds that it never got"
        for number in range(has + 1, 3):
            second.add(points_of(number))
        for outcome in (Outcome(), Outcome("failed", BEGAN, "the disk is full"), Outcome("finished", BEGAN)):
            second.end(outcome)
        assert _made(part, options).begin(about) in (0, 2), "it does not know how far it is"


def _made(part: Tracker, options: Any) -> Tracking:
    made = part.load()(options)
    assert isinstance(made, Tracking)
    return made


@contextmanager
def somewhere(part: Tracker, folder: Path) -> Iterator[Any]:
    """The options with which a tracker writes below a folder."""
    has_to = any(one.name == TO for one in described(part.options).values())
    before = os.environ.get("MLFLOW_ALLOW_FILE_STORE")
    os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"  # the store of a server is used without the server
    target = (folder / "tracked").as_uri() if part.name == "mlflow" else str(folder / "tracked")
    try:
        yield part.read({TO: target} if has_to else {})
    finally:
        if before is None:
            del os.environ["MLFLOW_ALLOW_FILE_STORE"]


def about_run(folder: Path) -> About:
    """A run with settings and names that are not easy to keep."""
    directory = folder / "a run"
    directory.mkdir(exist_ok=True)
    parameters = {"learning_rate": "0.1", "task_option.sites": "a|b <i>c</i>", **{f"p{i}": "x" for i in range(120)}}
    return About("abcd1234", directory, BEGAN, parameters, {"scheme": "hcct", "seed": "0", "commit": "f" * 40})


def points_of(number: int, clients: int = 3) -> Points:
    """The points of a round."""
    values = {"score": number / 10, "metrics/AUC (macro) \u00d7 %": 0.5, "group/0/train_loss": 1.0 / number}
    values |= {f"client/{client}/train_loss": client / 10 for client in range(clients)}
    return Points(number, BEGAN + timedelta(seconds=number), values)
