"""A chained file without an end: its parts are one chain, and a missing one is found."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fedgsp.errors import ConfigError, RunError
from fedgsp.security.chained import BrokenError, ChainedFile, TornError
from fedgsp.security.chained_parts import ChainedParts, links_of_parts, part_of, parts_of
from tests.support.power import Disk

SMALL = 300  # three lines


def write(path: Path, first: int, last: int) -> None:
    with ChainedParts(path, SMALL) as file:
        for number in range(first, last + 1):
            file.append({"text": number})


def read(path: Path) -> list[int]:
    return [link.fields["text"] for link in links_of_parts(path)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "log.jsonl"
    write(found, 1, 10)
    return found


def test_all_lines_are_kept_in_parts_of_one_chain(path: Path) -> None:
    assert [first for first, _ in parts_of(path)] == [1, 4, 7]
    assert part_of(path, 1).name == "log-0000000001.jsonl"
    assert all(part.stat().st_mode & 0o777 == 0o600 for _, part in (*parts_of(path), (0, path)))
    assert read(path) == [*range(1, 11)]


@pytest.mark.parametrize("each", [1, 2, 3, 5])
def test_a_file_that_is_continued_after_each_start_is_the_same(path: Path, each: int) -> None:
    for first in range(11, 31, each):
        write(path, first, min(first + each - 1, 30))
    assert read(path) == [*range(1, 31)]
    assert len(parts_of(path)) == 9


def test_a_start_reads_the_newest_file_alone(path: Path) -> None:
    """Whatever is wrong in an older part is for the command that verifies all of them."""
    oldest = part_of(path, 1)
    oldest.write_bytes(oldest.read_bytes().replace(b"1", b"2"))
    write(path, 11, 11)
    with pytest.raises(BrokenError, match=r"log-0000000001\.jsonl"):
        read(path)


@pytest.mark.parametrize(("first", "missing"), [(1, 1), (4, 4), (7, 7)])
def test_a_missing_part_is_noticed_and_the_node_goes_on(path: Path, first: int, missing: int) -> None:
    part_of(path, first).unlink()
    write(path, 11, 14)
    with pytest.raises(BrokenError, match=f"line {missing}: it is missing, with all lines up to line {missing + 2}"):
        read(path)


def test_parts_that_were_moved_elsewhere_fit_together_with_the_rest(path: Path, tmp_path: Path) -> None:
    archive = tmp_path / "archive"
    archive.mkdir()
    for last in (14, 20):
        for _, part in parts_of(path):
            part.rename(archive / part.name)
        write(path, last - 3 if last == 14 else 15, last)
    for _, part in (*parts_of(path), (0, path)):
        part.rename(archive / part.name)
    assert read(archive / path.name) == [*range(1, 21)]


def test_a_part_that_does_not_fit_to_the_newest_file_is_found_at_the_start(path: Path) -> None:
    part = part_of(path, 7)
    lines = part.read_bytes().splitlines(keepends=True)
    part.write_bytes(b"".join([*lines[:-1], lines[-1].replace(b"9}", b"8}")]))
    with pytest.raises(BrokenError, match="does not continue the line before"):
        write(path, 11, 11)
    part.write_bytes(b"".join(lines)[:-3])
    with pytest.raises(BrokenError, match="is not whole"):
        write(path, 11, 11)
    with pytest.raises(BrokenError) as found:
        read(path)
    assert not isinstance(found.value, TornError)


def test_a_crash_between_the_two_files_loses_no_line(path: Path) -> None:
    path.rename(part_of(path, 10))  # and the new file was not made, or has no whole line
    write(path, 11, 12)
    assert read(path) == [*range(1, 13)]
    path.rename(part_of(path, 11))
    path.write_bytes(b'{"line": 13')
    write(path, 13, 13)
    assert read(path) == [*range(1, 14)]


def test_a_power_cut_takes_no_line_of_an_older_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A start takes the last line of a part for whole."""
    disk, path = Disk(monkeypatch), tmp_path / "log.jsonl"
    write(path, 1, 11)
    disk.cut(tmp_path)
    write(path, 10, 12)
    assert read(path) == [*range(1, 13)]


def test_a_lasting_line_survives_a_power_cut_with_those_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, path = Disk(monkeypatch), tmp_path / "log.jsonl"
    with ChainedParts(path) as file:
        for number in (1, 2, 3):
            file.append({"text": number}, lasting=number == 2)
    disk.cut(tmp_path)
    assert read(path) == [1, 2]


def test_a_file_that_cannot_be_put_aside_is_tried_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ChainedParts(path, SMALL) as file:
        for number in (11, 12):
            file.append({"text": number})
        opened = file._opened

        def full(*_: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(file, "_opened", full)
        for _ in range(2):
            with pytest.raises(RunError, match="No space left on device"):
                file.append({"text": 13})
        monkeypatch.setattr(file, "_opened", opened)
        file.append({"text": 13})
        with pytest.raises(ConfigError, match="another process writes"):
            ChainedParts(path, SMALL)
    assert read(path) == [*range(1, 14)]


def test_an_old_file_of_any_size_is_put_aside_with_its_next_line(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    with ChainedFile(path) as file:
        for number in range(1, 9):
            file.append({"text": number})
    write(path, 9, 9)
    assert [first for first, _ in parts_of(path)] == [1]
    assert read(path) == [*range(1, 10)]


def test_other_files_beside_it_are_no_parts(path: Path) -> None:
    for name in ("log-1.jsonl", "log-000000000a.jsonl", "xlog-0000000099.jsonl", "log-0000000099.jsonl.bak"):
        (path.parent / name).write_text("x")
    assert read(path) == [*range(1, 11)]
    assert os.path.exists(path)
