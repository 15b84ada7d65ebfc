"""What a run records of its clients' distances, and what it takes from the record of another."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedgsp.errors import ConfigError, RunError
from tests.support.measured import ERROR, matrix, measuring, same, truth
from top_server.profiles import PROFILES
from top_server.profiles.distance_file import read_file

GOOD: dict[str, Any] = {"clients": [0, 1], "distances": [[0, 0.5], [0.5, 0]]}
DISTANCES: list[Any] = [
    None,
    0.5,
    {},
    [],
    [0, 0.5],
    [[0, 0.5]],
    [[0, 0.5], [0.5]],
    [[0, "far"], ["far", 0]],
    [[0, None], [0.5, 0]],
    [[0, float("nan")], [0.5, 0]],
    [[0, float("inf")], [0.5, 0]],
    [[0, 1.01], [1.01, 0]],
    [[0, 0.5], [-1.5, 0]],
    [[[0], [0.5]], [[0.5], [0]]],
]


async def test_what_was_found_is_recorded_and_journalled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with measuring(monkeypatch, tmp_path, clients=3) as (surveys, profile):
        await profile.gather(1)
        record = json.loads((tmp_path / "distances.json").read_text())
        assert record.pop("seconds") >= 0
        assert record == {
            "clients": [0, 1, 2],
            "sizes": [10, 11, 12],
            "distances": matrix((0, 1, 2)).tolist(),
            "errors": [[0, ERROR, ERROR], [ERROR, 0, ERROR], [ERROR, ERROR, 0]],
            "estimate": "cross-fitted",
            "shared": False,
            "bytes": 345,
        }
        (event,) = surveys.stage.journal.of_kind("distances_found")
        assert (event["round"], event["clients"], event["bytes"]) == (1, [0, 1, 2], 345)


async def test_the_record_grows_with_newcomers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with measuring(monkeypatch, tmp_path, clients=2) as (surveys, profile):
        await profile.gather(1)
        await surveys.join("late", c7=40)
        await profile.gather(2)
        record = json.loads((tmp_path / "distances.json").read_text())
        assert (record["clients"], record["bytes"]) == ([0, 1, 7], 690)
        assert record["distances"] == matrix((0, 1, 7)).tolist()


async def test_a_record_that_cannot_be_written_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with measuring(monkeypatch, tmp_path / "run") as (_, profile):
        with pytest.raises(RunError, match=r"distances\.json cannot be written"):
            await profile.gather(1)


# --- files of other runs


async def test_what_a_run_recorded_another_need_not_measure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with measuring(monkeypatch, tmp_path, rule=lambda a, b: truth(a, b) - 0.01 * (a != b)) as (_, profile):
        first = await profile.gather(1)
    assert first.matrices["distances"].min() < 0
    shutil.copy(tmp_path / "distances.json", tmp_path / "kept.json")
    async with measuring(monkeypatch, tmp_path, distances=str(tmp_path / "kept.json")) as (surveys, profile):
        again = await profile.gather(1)
        assert np.array_equal(again.matrices["distances"], first.matrices["distances"])
        assert surveys.asked == []
    records = [json.loads((tmp_path / name).read_text()) for name in ("kept.json", "distances.json")]
    for name in ("clients", "distances", "sizes"):
        assert records[0][name] == records[1][name]
    assert records[1]["bytes"] == 0


async def test_a_file_that_names_none_of_the_clients_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "kept.json"
    for clients, told in (([0, 91], False), ([90, 91], True)):
        file.write_text(json.dumps({**GOOD, "clients": clients}))
        async with measuring(monkeypatch, tmp_path, distances=str(file)) as (_, profile):
            await profile.gather(1)
        assert (f"{file} has none of this run's clients" in caplog.text) is told


async def test_clients_that_a_file_does_not_name_are_measured_as_newcomers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "kept.json"
    path.write_text(json.dumps({"clients": [2, 0], "distances": [[0, 0.75], [0.75, 0]]}))
    async with measuring(monkeypatch, tmp_path, clients=3, distances=str(path)) as (surveys, profile):
        evidence = await profile.gather(1)
        assert [task.discrimination and task.discrimination.newcomers for task in surveys.asked] == [(1,)]
        expected = matrix((0, 1, 2))
        expected[0, 2] = expected[2, 0] = 0.75
        assert np.array_equal(evidence.matrices["distances"], expected)
        assert json.loads((tmp_path / "distances.json").read_text())["distances"] == expected.tolist()


def test_a_good_file_is_read_both_ways(tmp_path: Path) -> None:
    path = tmp_path / "distances.json"
    path.write_text(json.dumps({"clients": [4, 9], "distances": [[0, -0.5], [-0.5, 0]], "more": 1}))
    assert PROFILES["distances"].read({"distances": str(path)}).distances.path == str(path)


async def test_pairs_that_a_file_does_not_tell_are_not_known_and_its_clients_not_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "kept.json"
    path.write_text(json.dumps({"clients": [0, 1, 2], "distances": [[0, 0.5, 0.5], [0.5, 0, None], [0.5, None, 0]]}))
    recorded = read_file(path)
    assert {pair: distance.found for pair, distance in recorded.known.items()} == dict.fromkeys(
        [(0, 1), (1, 0), (0, 2), (2, 0)], 0.5
    )
    assert all(np.isnan(distance.error) for distance in recorded.known.values())
    async with measuring(monkeypatch, tmp_path, clients=3, distances=str(path)) as (surveys, profile):
        expected = np.array([[0, 0.5, 0.5], [0.5, 0, np.nan], [0.5, np.nan, 0]])
        assert same(await profile.gather(1), expected)
        assert surveys.asked == []


async def test_distances_of_clients_that_had_other_sizes_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "kept.json"
    path.write_text(json.dumps({**GOOD, "sizes": [10, 12]}))
    async with measuring(monkeypatch, tmp_path, clients=2, distances=str(path)) as (surveys, profile):
        with pytest.raises(ConfigError) as caught:
            await profile.gather(1)
        assert surveys.asked == []
    assert caught.value.what == (
        f"option distances: {path} is of other data: client 1 had 12 training samples, and has 11"
    )
    assert "give the distances.json of a run with the same task options" in caught.value.remedy


async def test_a_client_that_comes_later_with_another_size_is_measured_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "kept.json"
    far = (np.ones((3, 3)) - np.eye(3)).tolist()
    path.write_text(json.dumps({"clients": [0, 1, 7], "distances": far, "sizes": [10, 11, 39]}))
    async with measuring(monkeypatch, tmp_path, clients=2, distances=str(path)) as (surveys, profile):
        await profile.gather(1)
        await surveys.join("late", c7=40)
        evidence = await profile.gather(2)
        expected = matrix((0, 1, 7))
        expected[0, 1] = expected[1, 0] = 1
        assert same(evidence, expected)
        assert evidence.newcomers == (7,)
        assert [task.clients for task in surveys.asked] == [(0, 1, 7)]
        assert same(await profile.gather(3), expected)
        assert len(surveys.asked) == 1
        assert json.loads((tmp_path / "distances.json").read_text())["sizes"] == [10, 11, 40]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[" * 100_000,
        json.dumps({"clients": [0, 1], "distances": [[0, 10**400], [10**400, 0]]}),
        "{",
        "[]",
        "3",
        '"clients"',
        "null",
        "{}",
        json.dumps({"clients": [0, 1]}),
        json.dumps({"distances": [[0, 1], [1, 0]]}),
        *(
            json.dumps({**GOOD, "clients": clients})
            for clients in (None, 3, [0], [0, 1, 2], ["a", "b"], [[0], [1]], [None, 1], [{}, 1])
        ),
        *(json.dumps({**GOOD, "sizes": sizes}) for sizes in (None, 3, [10], [10, "many"], [10, None], [10, 11, 12])),
        *(json.dumps({**GOOD, "distances": distances}) for distances in DISTANCES),
    ],
)
def test_a_file_that_holds_no_distances_is_refused_before_anybody_is_waited_for(text: str, tmp_path: Path) -> None:
    path = tmp_path / "distances.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"option distances: .*distances\.json holds no distances"):
        PROFILES["distances"].read({"distances": str(path)})


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe\x00")
    for path in (tmp_path / "missing.json", tmp_path, tmp_path / "binary.json", tmp_path / "binary.json" / "x"):
        with pytest.raises(ConfigError, match="holds no distances"):
            PROFILES["distances"].read({"distances": str(path)})
