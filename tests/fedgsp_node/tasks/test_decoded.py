from __future__ import annotations

import logging
import mmap
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedgsp.errors import DataError
from fedgsp_node.tasks import decoded as module
from fedgsp_node.tasks.decoded import decoded, rows_of
from fedgsp_node.tasks.grey_images import GreyImages


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "kept"
    monkeypatch.setenv("FEDGSP_CACHE", str(folder))
    monkeypatch.setattr(module, "SMALL", 10)
    return folder


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source.bin"
    path.write_bytes(bytes(range(100)))
    return path


class Decoding:
    """Counts how often it is asked to decode."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.count = 0

    def __call__(self) -> dict[str, Any]:
        self.count += 1
        return {"x": np.frombuffer(self.path.read_bytes(), np.uint8).reshape(-1, 2), "y": np.arange(3)}


def mapped(array: np.ndarray | mmap.mmap | None) -> bool:
    while isinstance(array, np.ndarray):
        array = array.base
    return isinstance(array, mmap.mmap)


def entries(place: Path) -> list[str]:
    return sorted(path.name for path in place.glob("*/*"))


def test_a_file_is_decoded_once_and_mapped_by_all(place: Path, source: Path) -> None:
    decode = Decoding(source)
    first, again = (decoded("some", [source], decode) for _ in range(2))
    assert decode.count == 1
    for held in (first, again):
        assert mapped(held["x"])
        assert not held["x"].flags.writeable
        assert held["x"].tobytes() == bytes(range(100))
        assert held["y"].tolist() == [0, 1, 2]


def test_another_decoding_of_the_same_file_has_an_entry_of_its_own(place: Path, source: Path) -> None:
    decode = Decoding(source)
    for kind in ("some", "other", "some"):
        decoded(kind, [source], decode)
    assert decode.count == 2


@pytest.mark.parametrize("what", ["contents", "version"])
def test_an_entry_of_earlier_contents_is_replaced_and_those_who_map_it_keep_it(
    place: Path, source: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    decode = Decoding(source)
    before = decoded("some", [source], decode)
    if what == "version":
        monkeypatch.setattr(module, "VERSION", 2)
    else:
        source.write_bytes(bytes(range(100, 200)))
        os.utime(source, ns=(0, 5))
    after = decoded("some", [source], decode)
    assert decode.count == 2
    assert len(entries(place)) == 1
    assert before["x"].tobytes() == bytes(range(100))
    assert after["x"].tobytes() == source.read_bytes()


def test_a_damaged_entry_is_decoded_again(place: Path, source: Path) -> None:
    decode = Decoding(source)
    decoded("some", [source], decode)
    (path,) = place.glob("*/*/x.npy")
    path.write_bytes(path.read_bytes()[:-1])
    assert decoded("some", [source], decode)["x"].tobytes() == bytes(range(100))
    assert decode.count == 2


def test_what_a_killed_process_left_is_cleared_away(place: Path, source: Path) -> None:
    decode = Decoding(source)
    decoded("some", [source], decode)
    (own,) = place.iterdir()
    (own / "tmpleft").mkdir()
    os.utime(source, ns=(0, 5))
    decoded("some", [source], decode)
    assert len(entries(place)) == 1


def test_a_directory_that_cannot_be_used_is_said_and_done_without(
    tmp_path: Path, place: Path, source: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("FEDGSP_CACHE", str(tmp_path / "file"))
    with caplog.at_level(logging.WARNING):
        held = decoded("some", [source], Decoding(source))
    assert held["x"].tobytes() == bytes(range(100))
    assert "set FEDGSP_CACHE to another directory" in caplog.text


def test_one_waits_for_another_no_longer_than_it_may(
    place: Path, source: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    decoded("some", [source], Decoding(source))
    (own,) = place.iterdir()
    os.utime(source, ns=(0, 5))
    monkeypatch.setattr(module, "WAIT_S", 0.0)
    decode = Decoding(source)
    with module._turn(own), caplog.at_level(logging.WARNING):
        held = decoded("some", [source], decode)
    assert not mapped(held["x"])
    assert "another process has been decoding" in caplog.text


def test_small_files_are_decoded_by_every_process(place: Path, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SMALL", 101)
    decode = Decoding(source)
    for _ in range(2):
        assert not mapped(decoded("some", [source], decode)["x"])
    assert decode.count == 2
    assert not place.exists()


def test_what_is_wrong_with_a_file_is_told_and_nothing_kept(place: Path, source: Path) -> None:
    def refuse() -> dict[str, Any]:
        raise DataError("it is wrong", "mend it")

    for path in (source, source.with_name("absent")):
        with pytest.raises(DataError, match="it is wrong"):
            decoded("some", [path], refuse)
    assert entries(place) == []


@pytest.mark.parametrize(("variable", "ends"), [("FEDGSP_CACHE", ""), ("XDG_CACHE_HOME", "fedgsp")])
def test_the_directory_is_the_one_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, ends: str
) -> None:
    for name in ("FEDGSP_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, str(tmp_path))
    assert module._directory() == tmp_path / ends


def test_processes_that_begin_together_decode_once(tmp_path: Path, place: Path, source: Path) -> None:
    program = """
import sys, numpy as np, pathlib
from fedgsp_node.tasks import decoded as module
module.SMALL = 10
source, log = map(pathlib.Path, sys.argv[1:])
def decode():
    with log.open("a") as file:
        file.write("decoded ")
    return {"x": np.frombuffer(source.read_bytes(), np.uint8)}
sys.stdin.readline()
assert module.decoded("some", [source], decode)["x"].tobytes() == bytes(range(100))
"""
    log = tmp_path / "log"
    command = [sys.executable, "-c", program, str(source), str(log)]
    children = [subprocess.Popen(command, stdin=subprocess.PIPE) for _ in range(3)]
    for child in children:
        assert child.stdin is not None
        child.stdin.write(b"go\n")
        child.stdin.close()
    assert [child.wait(30) for child in children] == [0, 0, 0]
    assert log.read_text() == "decoded "


def test_rows_are_copies_whether_mapped_or_not(place: Path, source: Path) -> None:
    rows = np.array([3, 0, 49])
    for array in (decoded("some", [source], Decoding(source))["x"], Decoding(source)()["x"]):
        for _ in range(2):
            found = rows_of(array, rows)
            assert found.tolist() == [[6, 7], [0, 1], [98, 99]]
            assert found.flags.writeable


@pytest.mark.parametrize("partition", ["iid", "concept_shift"])
def test_clients_have_the_same_bits_from_mapped_files(
    place: Path, grey_npz: Path, monkeypatch: pytest.MonkeyPatch, partition: str
) -> None:
    decay = 1.0 if partition == "concept_shift" else None
    mapped_task = GreyImages(grey_npz, 4, partition, decay=decay)
    assert len(entries(place)) == 2
    monkeypatch.setattr(module, "SMALL", 1 << 30)
    for client in range(4):
        ours, theirs = mapped_task.data(client), GreyImages(grey_npz, 4, partition, decay=decay).data(client)
        for part in ("train", "test"):
            assert getattr(ours, part).x.tobytes() == getattr(theirs, part).x.tobytes()
            assert getattr(ours, part).y.tobytes() == getattr(theirs, part).y.tobytes()


@pytest.mark.parametrize("damage", ["empty", "gone", "no names"])
def test_an_entry_that_lacks_something_is_decoded_again(place: Path, source: Path, damage: str) -> None:
    decode = Decoding(source)
    decoded("some", [source], decode)
    (array,) = place.glob("*/*/x.npy")
    if damage == "empty":
        array.write_bytes(b"")
    elif damage == "gone":
        array.unlink()
    else:
        (array.parent / "names").unlink()
    assert sorted(decoded("some", [source], decode)) == ["x", "y"]
    assert decode.count == 2
