"""Lines that are chained by hashes: written, continued after a crash, and found if somebody changed them."""

from __future__ import annotations

import errno
import io
import os
import resource
from collections.abc import Callable
from pathlib import Path

import pytest

from fedgsp.errors import ConfigError, RunError
from fedgsp.security.chained import BrokenError, ChainedFile, TornError, line_of, links


def written(path: Path, *texts: str) -> list[bytes]:
    with ChainedFile(path) as file:
        for text in texts:
            file.append({"text": text})
    return path.read_bytes().splitlines(keepends=True)


def read(lines: list[bytes]) -> list[str]:
    return [link.fields["text"] for link in links(io.BytesIO(b"".join(lines)))]


def test_lines_are_read_back_and_continued(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    written(path, "a", "b")
    assert path.stat().st_mode & 0o777 == 0o600
    assert read(written(path, "c")) == ["a", "b", "c"]


def test_a_file_that_others_could_read_is_closed_to_them(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    written(path, "a")
    path.chmod(0o644)
    written(path, "b")
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_half_written_line_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    lines = written(path, "a", "b")
    with pytest.raises(TornError, match="line 2: it has no end"):
        read([lines[0], lines[1][:-3]])
    path.write_bytes(lines[0] + lines[1][:-3])
    assert read(written(path, "c")) == ["a", "c"]


@pytest.mark.parametrize("room", [0, 1, 40])
def test_a_line_that_did_not_fit_on_the_disk_leaves_the_chain_whole(tmp_path: Path, room: int) -> None:
    path = tmp_path / "log.jsonl"
    written(path, "a")
    before, (_, most) = path.stat().st_size, resource.getrlimit(resource.RLIMIT_FSIZE)
    with ChainedFile(path) as file:
        resource.setrlimit(resource.RLIMIT_FSIZE, (before + room, most))
        try:
            for _ in range(2):
                with pytest.raises(RunError, match=r"raise the size that a file may have \(ulimit -f\)"):
                    file.append({"text": "b" * 99})
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
        file.append({"text": "c"})
        assert read(path.read_bytes().splitlines(keepends=True)) == ["a", "c"]
    assert read(written(path, "d")) == ["a", "c", "d"]


CHANGES: dict[str, tuple[Callable[[list[bytes]], list[bytes]], int]] = {
    "changed": (lambda lines: [lines[0], lines[1].replace(b'"b"', b'"x"'), *lines[2:]], 3),
    "removed": (lambda lines: [*lines[:1], *lines[2:]], 2),
    "inserted": (lambda lines: [*lines[:1], lines[0], *lines[1:]], 2),
    "put between": (lambda lines: [*lines[:1], line_of(2, "0" * 64, {"text": "x"}), *lines[1:]], 2),
    "exchanged": (lambda lines: [lines[0], lines[2], lines[1], lines[3]], 2),
    "first lost": (lambda lines: lines[1:], 1),
    "no object": (lambda lines: [lines[0], b"[]\n", *lines[2:]], 2),
    "no JSON": (lambda lines: [lines[0], b"\xff\n", *lines[2:]], 2),
    "too deep": (lambda lines: [lines[0], b"[" * 100_000 + b"\n", *lines[2:]], 2),
    "repeated": (lambda lines: [lines[0], lines[1].replace(b"{", b'{"line": 2, '), *lines[2:]], 2),
}


@pytest.mark.parametrize("kind", CHANGES)
def test_the_first_line_that_does_not_fit_is_named(tmp_path: Path, kind: str) -> None:
    change, number = CHANGES[kind]
    path = tmp_path / "log.jsonl"
    lines = change(written(path, "a", "b", "c", "d"))
    with pytest.raises(BrokenError) as broken:
        read(lines)
    assert broken.value.number == number
    path.write_bytes(b"".join(lines))
    with pytest.raises(BrokenError):
        ChainedFile(path)


def test_a_lasting_line_that_cannot_be_synced_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever reads the file, such as the next start, must not take it for written: its writer was told otherwise."""

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    path = tmp_path / "log.jsonl"
    with ChainedFile(path) as file:
        file.append({"text": "a"}, lasting=True)
        with monkeypatch.context() as here:
            here.setattr(os, "fsync", full)
            with pytest.raises(RunError, match="cannot be written"):
                file.append({"text": "b"}, lasting=True)
        assert read(path.read_bytes().splitlines(keepends=True)) == ["a"]
        file.append({"text": "c"}, lasting=True)
    assert read(path.read_bytes().splitlines(keepends=True)) == ["a", "c"]


def test_two_processes_cannot_write_one_file(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    with ChainedFile(path), pytest.raises(ConfigError, match="another process writes"):
        ChainedFile(path)
    written(path, "a")


def test_a_link_to_another_file_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "other").write_bytes(b"precious")
    (tmp_path / "log.jsonl").symlink_to(tmp_path / "other")
    with pytest.raises(RunError, match="cannot be written"):
        ChainedFile(tmp_path / "log.jsonl")
    assert (tmp_path / "other").read_bytes() == b"precious"


def test_a_line_that_no_reader_would_take_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedgsp.files.MOST_LINE", 500)
    path = tmp_path / "log.jsonl"
    written(path, "a")
    with pytest.raises(RunError, match=r"log\.jsonl gets no line of \d+ bytes: a reader takes fewer than 500"):
        written(path, "b" * 500)
    assert read(written(path, "c")) == ["a", "c"]
