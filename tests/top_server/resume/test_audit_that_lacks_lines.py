"""A run does not go on with an audit log that lacks what its record has: it could never be verified."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedgsp.errors import DataError
from top_server.record.directory import RunDirectory
from top_server.resume.audit import opened


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    """A run of three rounds, which are sealed in lines 2, 3 and 4."""
    found = RunDirectory(tmp_path)
    found.config.write_text("")
    with opened(found, "run", None, None, resumed=False) as log:
        for number in (1, 2, 3):
            log.seal("run", number)
        log.note("refused", node="stranger")
    return found


def keep(directory: RunDirectory, lines: int, torn: bytes = b"") -> None:
    kept = directory.audit.read_bytes().splitlines(keepends=True)[:lines]
    directory.audit.write_bytes(b"".join(kept) + torn)


def go_on(directory: RunDirectory, done: int, extends: bool = False, run: str = "run") -> None:
    with opened(directory, run, None, None, resumed=True, done=done, extends=extends):
        pass


@pytest.mark.parametrize("extends", [False, True])
@pytest.mark.parametrize(
    ("lines", "torn", "what"),
    [
        (None, b"", "is missing"),
        (0, b"", "is empty"),
        (0, b'{"line": 1', "is empty"),
        (3, b"", "lacks round 3, which history.jsonl has"),
        (2, b'{"line": 3', "lacks rounds 2-3, which history.jsonl has"),
    ],
)
def test_a_log_that_is_missing_empty_or_cut_off_is_refused_as_it_is(
    directory: RunDirectory, lines: int | None, torn: bytes, what: str, extends: bool
) -> None:
    if lines is None:
        directory.audit.unlink()
    else:
        keep(directory, lines, torn)
    before = directory.audit.read_bytes() if lines is not None else None
    with pytest.raises(DataError) as caught:
        go_on(directory, 3, extends)
    assert str(caught.value) == f"{directory.audit} {what}; restore it from a copy, or start the run again"
    assert (directory.audit.read_bytes() if directory.audit.exists() else None) == before


@pytest.mark.parametrize(
    ("lines", "torn", "done"),
    [
        (5, b"", 3),
        (4, b"", 3),  # killed after the seal of a round
        (4, b'{"line": 5', 3),
        (5, b"", 2),  # killed before the state of round 3: it is played again
        (3, b"", 2),
        (1, b"", 0),  # killed in the first round
    ],
)
def test_whatever_a_top_server_that_was_killed_leaves_is_continued(
    directory: RunDirectory, lines: int, torn: bytes, done: int
) -> None:
    keep(directory, lines, torn)
    go_on(directory, done)
    assert len(directory.audit.read_bytes().splitlines()) == lines + 1


def test_a_run_is_extended_only_if_its_log_has_its_end(directory: RunDirectory) -> None:
    with pytest.raises(DataError, match=r"lacks the end of the run, which events\.jsonl has"):
        go_on(directory, 3, extends=True)
    with opened(directory, "run", None, None, resumed=True, done=3) as log:
        log.close(True, "the run is finished")
    for _ in range(2):  # killed at once, and extended again
        go_on(directory, 3, extends=True)


def test_a_log_of_another_run_or_without_a_beginning_is_refused(directory: RunDirectory) -> None:
    with pytest.raises(DataError, match=r"is of run 'run', and events\.jsonl of 'other'"):
        go_on(directory, 3, run="other")
    text = directory.audit.read_text().splitlines()[0].replace('"began"', '"resumed"')
    directory.audit.write_text(f"{text}\n")
    with pytest.raises(DataError, match="its beginning is lost"):
        go_on(directory, 0)
