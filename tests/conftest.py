"""What holds for every test: it leaves no process behind, and its examples are the same each time."""

from __future__ import annotations

import gc
import os
import sys
import uuid
from collections.abc import Iterator

import psutil
import pytest
from hypothesis import settings

from tests.support import forks
from tests.support.processes import end_those_left

#: Processes started by a test inherit it, and so say whose they are even when their parent is gone.
MARK = "FEDGSP_STARTED_BY_TEST"

# The same examples in every run, so that a test fails for a change and not for its luck; --hypothesis-profile=default
# draws others each time. No deadline: how long an example takes is the machine's affair.
settings.register_profile("same", derandomize=True, deadline=None)
settings.load_profile("same")

# Tests start hundreds of processes. Where the environment forbids bytecode files, each compiles the whole project.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


def pytest_collection_finish() -> None:
    """Takes modules and collected tests out of garbage collection, which otherwise looks at all of them each time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _no_process_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fails a test whose processes, or theirs, outlive it, and ends them. Those of wider fixtures may stay."""
    mark = uuid.uuid4().hex
    monkeypatch.setenv(MARK, mark)
    before = set(psutil.pids())
    yield
    new = set(psutil.pids()) - before - {forks.pid()}
    left = end_those_left([process for pid in new for process in _ours(pid, mark)])
    if left:
        pytest.fail(f"processes left behind, now ended: {left}", pytrace=False)


@pytest.fixture
def usual_umask() -> Iterator[None]:
    """Others may read what is made, unless whoever makes it says otherwise."""
    before = os.umask(0o022)
    yield
    os.umask(before)


def _ours(pid: int, mark: str) -> list[psutil.Process]:
    try:
        process = psutil.Process(pid)
        ours = process.environ().get(MARK) == mark or os.getpid() in [parent.pid for parent in process.parents()]
    except psutil.Error:  # gone, or of another user
        return []
    return [process] if ours else []
