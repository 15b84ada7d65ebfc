"""The pages and the data of the web page, as a browser gets them."""

from __future__ import annotations

import asyncio
import json
import os
import struct
import threading
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w

from fedgsp.errors import DataError
from fedgsp.settings.files import dump, parse
from fedgsp.settings.run import RunConfig
from tests.support.finished_runs import finished, history, row
from tests.support.recordings import long_run
from tests.support.web import client
from top_server.pictures.distances import read_distances
from top_server.record.directory import RunDirectory
from top_server.report.story import Story
from top_server.web.pictures import pairs, png
from top_server.web.runs import Runs, glance

SHORT: dict[str, Any] = {"rounds": 3, "clients": 20, "nodes": 2}


async def got(folder: Path, path: str) -> Any:
    async with client(folder) as browser:
        answer = await browser.get(path)
    assert answer.status_code == 200, answer.text
    return answer


async def test_a_folder_lists_its_runs_with_what_became_of_them(tmp_path: Path) -> None:
    long_run(tmp_path / "sweep" / "a", **SHORT)
    long_run(tmp_path / "b", **SHORT, finished=False)
    os.utime(tmp_path / "b" / "events.jsonl", (1, 1))
    (tmp_path / "other").mkdir()
    listed = (await got(tmp_path, "runs.json")).json()
    assert [(one["run"], one["kind"], one["round"], one["rounds"]) for one in listed] == [
        ("sweep/a", "finished", 3, 3),
        ("b", "failed", 3, 3),
    ]
    assert listed[0]["score"].startswith("accuracy ")
    assert "ended without a word" in listed[1]["title"]  # nobody has the lock of its record


async def test_folders_are_searched_beside_the_event_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    threads = []
    found = Runs.found

    def watched(runs: Runs) -> dict[str, RunDirectory]:
        threads.append(threading.get_ident())
        return found(runs)

    monkeypatch.setattr(Runs, "found", watched)
    long_run(tmp_path / "a", **SHORT)
    paths = ("run", "run.json", "round.json", "events", "pictures/groups.png", "compare.json")
    async with client(tmp_path) as browser:
        answers = await asyncio.gather(*(browser.get(f"{path}?run={name}") for path in paths for name in ("b", "c")))
        assert {answer.status_code for answer in answers} == {404}
        answers = await asyncio.gather(*(browser.get("run.json?run=a") for _ in range(9)), browser.get("runs.json"))
        assert {answer.status_code for answer in answers} == {200}
    assert len(threads) == 2 * len(paths) + 2  # a run that was found is not searched again
    assert threading.get_ident() not in threads


async def test_a_run_whose_name_is_not_utf_8_is_listed_and_shown(tmp_path: Path) -> None:
    long_run(tmp_path / "a", **SHORT)
    strange = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9"))
    long_run(strange, **SHORT)
    names = [one["run"] for one in (await got(tmp_path, "runs.json")).json()]
    assert sorted(names) == ["a", r"caf\xe9"]
    for path in ("run", "run.json", "pictures/groups.png", "compare.json"):
        await got(tmp_path, f"{path}?run=caf%5Cxe9")
    assert [one["run"] for one in (await got(strange, "runs.json")).json()] == [r"caf\xe9"]
    await got(strange, "")
    (strange / "events.jsonl").write_text("[]\n")
    async with client(tmp_path) as browser:
        answer = await browser.get("run.json?run=caf%5Cxe9")
    assert answer.status_code == 409
    assert "events.jsonl, byte 0" in answer.json()["error"]


async def test_a_folder_that_is_a_run_is_the_only_run(tmp_path: Path) -> None:
    long_run(tmp_path / "a", **SHORT)
    assert [one["run"] for one in (await got(tmp_path / "a", "runs.json")).json()] == ["a"]


def test_a_folder_that_is_missing_is_told(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="nowhere is no folder; give the directory of a run"):
        Runs(tmp_path / "nowhere")


def test_a_damaged_run_stays_in_the_list(tmp_path: Path) -> None:
    long_run(tmp_path / "a", **SHORT)
    (tmp_path / "a" / "history.jsonl").write_text('{"round": "x"}\n{]\n')
    assert "cannot be read" in glance("a", RunDirectory(tmp_path / "a")).title


def test_a_run_of_many_clients_is_listed_with_its_rounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = finished(tmp_path / "a", {"rounds": 2})
    history(run, [row(number, dict.fromkeys(range(40000), number / 4)) for number in (1, 2)])
    last = (run / "history.jsonl").read_bytes().splitlines()[-1]
    assert len(last) > 1 << 19
    found = glance("a", RunDirectory(run))
    assert (found.kind, found.round, found.score) == ("finished", 2, "accuracy 50.00 %")
    assert found.title == "The run is finished, after 2 rounds."
    monkeypatch.setattr("top_server.web.runs._MOST_TAIL", 1 << 19)
    assert glance("a", RunDirectory(run)).title == (
        "The record cannot be read: the last line of history.jsonl has more than 524,288 bytes"
    )


async def test_the_whole_of_a_run_has_curves_sites_clients_and_troubles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("top_server.web.following.COUNT_AFTER_S", 0.0)
    long_run(tmp_path / "a", rounds=40, clients=30, nodes=2)
    async with client(tmp_path) as browser:
        first = (await browser.get("run.json?run=a")).json()
        while not (whole := (await browser.get("run.json?run=a")).json())["counted"]:
            pass
    assert first["ending"]["kind"] == "finished"
    assert first["curves"]["round"] == [*range(1, 41)]
    assert first["curves"]["score"][0] == pytest.approx(10.0)  # accuracy in percent
    assert [row[0] for row in whole["nodes"]["rows"]] == ["site-0", "site-1"]
    assert "site-0.example.org:7001" in whole["nodes"]["rows"][0]
    assert len(whole["clients"]["rows"]) == 30
    trained = sum(int(row[3]) for row in whole["clients"]["rows"])
    assert trained == sum(whole["curves"]["clients_trained"])
    assert {one["remedy"] for one in whole["troubles"]} >= {
        "see the log of its node, and start the node again if it has ended"
    }


async def test_a_round_has_its_own_events_and_where_the_next_one_begins(tmp_path: Path) -> None:
    long_run(tmp_path / "a", **SHORT)
    async with client(tmp_path) as browser:
        second, third = [(await browser.get(f"round.json?run=a&round={number}")).json() for number in (2, 3)]
    assert {event["round"] for event in second["events"]} == {2}
    assert second["events"][0]["event"] == "round_started"
    assert len([event for event in second["events"] if event["event"] == "hop_finished"]) == 20
    assert third["end"] == (tmp_path / "a" / "events.jsonl").stat().st_size


async def test_events_with_fields_of_other_types_stand_beside_those_that_can_be_told(tmp_path: Path) -> None:
    events = long_run(tmp_path / "a", **SHORT, finished=False) / "events.jsonl"
    with events.open("a") as file:
        file.write('{"time": "", "event": "listening", "address": "127.0.0.1:1", "metrics": "127.0.0.1:2"}\n')
        file.write('{"time": "", "event": "round_finished", "accuracy": {}}\n')
        file.write('{"time": "", "event": "client_left_out", "client": 1, "reason": "gone"}\n')
    told = (await got(tmp_path, "round.json?run=a&round=3")).json()["told"]
    assert [one["text"] for one in told[-3:]] == [
        "listening on 127.0.0.1:1",
        "this line of events.jsonl cannot be read",
        "client 1 (Writer 1) is left out of the run: gone",
    ]


@pytest.mark.parametrize(
    ("path", "status", "what"),
    [
        ("run.json?run=b", 404, "there is no run 'b' here"),
        ("run.json?run=../a", 404, "there is no run '../a' here"),
        ("run.json", 404, "there is no run '' here"),
        ("round.json?run=a&round=9", 409, "round 9 has not begun"),
        ("round.json?run=a&round=x", 400, "round is no number"),
        ("events?run=a&from=-1", 400, "from is no number"),
        ("pictures/distances.png?run=a", 404, "the run has no such picture"),
        ("pictures/other.png?run=a", 404, "the run has no such picture"),
    ],
)
async def test_what_is_not_there_is_told(tmp_path: Path, path: str, status: int, what: str) -> None:
    long_run(tmp_path / "a", **SHORT)
    async with client(tmp_path) as browser:
        answer = await browser.get(path)
        asked = await browser.get(path, headers={"sec-fetch-dest": "document"})
    assert answer.status_code == status
    assert what in answer.json()["error"]
    if asked.headers["content-type"].startswith("text/html"):
        assert "All runs" in asked.text


async def test_a_damaged_record_is_told_with_its_file_and_place(tmp_path: Path) -> None:
    long_run(tmp_path / "a", **SHORT)
    with (tmp_path / "a" / "events.jsonl").open("a") as file:
        file.write("{]\n")
    async with client(tmp_path) as browser:
        answer = await browser.get("run.json?run=a")
    assert answer.status_code == 409
    assert "events.jsonl, byte" in answer.json()["error"]


@pytest.mark.parametrize(
    ("name", "part", "damage"),
    [
        ("events.jsonl", '"event": "round_started", "round": 2', '{"torn\0\0\n'),
        ("events.jsonl", '"event": "hop_finished", "round": 2', '{"torn\0\0\n'),
        ("events.jsonl", '"event": "hop_finished", "round": 2', '{"event": "hop_finished", "seconds": "long"}\n'),
        ("history.jsonl", '"round": 2', '{"torn\0\0\n'),
        ("history.jsonl", '"round": 2', '{"round": "x", "accuracy": "x"}\n'),
        ("history.jsonl", '"round": 2', '{"round": 2, "accuracy": 0.5, "loss": 1.0, "metrics": "x"}\n'),
    ],
)
async def test_every_request_is_told_of_a_damaged_record_until_it_is_restored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, part: str, damage: str
) -> None:
    monkeypatch.setattr("top_server.web.following.COUNT_AFTER_S", 0.0)
    file = long_run(tmp_path / "a", **SHORT) / name
    whole = file.read_text()
    async with client(tmp_path) as browser, asyncio.timeout(60):
        while not (found := (await browser.get("run.json?run=a")).json())["counted"]:
            pass
    lines = whole.splitlines(keepends=True)
    place = next(number for number, line in enumerate(lines) if part in line)
    file.write_text("".join([*lines[:place], damage, *lines[place + 1 :]]))
    async with client(tmp_path) as browser, asyncio.timeout(60):
        await browser.get("run?run=a")  # which reads the run before anybody asks for it
        while (answer := await browser.get("run.json?run=a")).status_code == 200:
            assert not answer.json()["counted"]
        for _ in range(3):
            answer = await browser.get("run.json?run=a")
            assert answer.status_code == 409
            assert name in answer.json()["error"] or "is damaged" in answer.json()["error"]
        file.write_text(whole)
        while not (restored := (await browser.get("run.json?run=a")).json())["counted"]:
            pass
        assert restored == found


async def test_names_with_markup_stay_text_on_the_pages(tmp_path: Path) -> None:
    name = "<img src=x onerror=alert(1)>"
    long_run(tmp_path / name, **SHORT)
    page = await got(tmp_path, "run?run=%3Cimg%20src%3Dx%20onerror%3Dalert(1)%3E")
    assert "<img src=x" not in page.text
    assert "&lt;img src=x onerror=alert(1)&gt;" in page.text


@pytest.mark.parametrize("path", ["", "run?run=a", "compare?run=a", "static/page.css", "static/uPlot.LICENSE.txt"])
async def test_pages_name_nothing_of_another_host(tmp_path: Path, path: str) -> None:
    long_run(tmp_path / "a", **SHORT)
    page = await got(tmp_path, path)
    assert "//" not in page.text.replace("// ", "").replace("http://www.w3.org", "")


async def test_runs_are_compared_with_their_curves_and_a_row_for_each_variant(tmp_path: Path) -> None:
    for seed, mean in ((0, 0.5), (1, 0.7)):
        finished(tmp_path / f"s{seed}", {"rounds": 1, "seed": seed}, mean)
    finished(tmp_path / "other", {"rounds": 1, "scheme": "hcct"}, 0.9)
    found = (await got(tmp_path, "compare.json?run=s0&run=s1&run=other")).json()
    assert [one["curves"]["score"] for one in found["runs"]] == [[50.0], [70.0], [90.0]]
    assert [(row[0], row[1]) for row in found["rows"]] == [("--scheme fedgsp", "0, 1"), ("--scheme hcct", "0")]


async def test_of_many_chosen_runs_the_first_are_compared_and_the_page_hears_of_how_many(tmp_path: Path) -> None:
    for seed in range(13):
        finished(tmp_path / f"s{seed}", {"rounds": 1, "seed": seed})
    found = (await got(tmp_path, f"compare.json?{'&'.join(f'run=s{seed}' for seed in range(13))}")).json()
    assert ([one["run"] for one in found["runs"]], found["chosen"]) == ([f"s{seed}" for seed in range(12)], 13)


def test_a_png_has_the_points_that_were_drawn() -> None:
    points = np.array([[0, 1, 2], [2, 1, 0]], np.uint8)
    made = png(points, [(0, 0, 0), (1, 2, 3), (4, 5, 6)])
    assert struct.unpack(">II", made[16:24]) == (3, 2)
    begin = made.index(b"IDAT") + 4
    lines = zlib.decompress(made[begin:])
    assert lines == bytes([0, 0, 1, 2, 0, 2, 1, 0])
    assert b"PLTE" + bytes([0, 0, 0, 1, 2, 3, 4, 5, 6]) in made


async def test_who_trained_with_whom_is_a_picture(tmp_path: Path) -> None:
    long_run(tmp_path / "a", **SHORT)
    for name, size in (("groups", (3, 20)), ("pairs", (20, 20))):
        image = (await got(tmp_path, f"pictures/{name}.png?run=a")).content
        assert struct.unpack(">II", image[16:24]) == size


async def test_a_picture_shows_the_last_rounds_and_some_clients_and_the_page_says_of_how_many(tmp_path: Path) -> None:
    run = finished(tmp_path / "a", {"rounds": 1200})
    rows = [{"round": number, "accuracy": None, "loss": 1.0, "partition": [[0], [1]]} for number in range(1, 1201)]
    rows[-1]["partition"] = [list(range(700)), list(range(700, 1301))]
    history(run, rows)
    image = (await got(tmp_path, "pictures/groups.png?run=a")).content
    assert struct.unpack(">II", image[16:24]) == (1000, 1000)
    told = (await got(tmp_path, "run.json?run=a")).json()["pictures"]
    assert (told["first"], told["last"], told["all_rounds"]) == (201, 1200, 1200)
    assert (len(told["clients"]), told["clients"][-1], told["all_clients"]) == (1000, 1300, 1301)
    assert told["pairs"] == [*range(150)]


def with_distances(directory: Path, clients: int) -> Path:
    run = finished(directory, {"rounds": 1})
    measured = {"clients": [*range(clients)], "distances": np.eye(clients).tolist()}
    (run / "distances.json").write_text(json.dumps(measured))
    return run


async def test_a_picture_of_many_distances_has_fewer_points_for_each_client(tmp_path: Path) -> None:
    with_distances(tmp_path / "few", 300)
    with_distances(tmp_path / "many", 480)
    for name, side in (("few", 8 * 300), ("many", 5 * 480)):
        image = (await got(tmp_path, f"pictures/distances.png?run={name}")).content
        assert struct.unpack(">II", image[16:24]) == (side, side)


@pytest.fixture
def times(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files of distances that were read so far."""
    read: list[Path] = []

    def counted(path: Path) -> Any:
        read.append(path)
        return read_distances(path)

    monkeypatch.setattr("top_server.web.pictures.read_distances", counted)
    return read


async def test_distances_are_read_once_for_all_requests(tmp_path: Path, times: list[Path]) -> None:
    run = with_distances(tmp_path / "a", 3)
    for _ in range(2):
        await got(tmp_path, "pictures/distances.png?run=a")
        assert (await got(tmp_path, "run.json?run=a")).json()["pictures"]["distances"] == [0, 1, 2]
    assert len(times) == 1
    (run / "distances.json").write_text(json.dumps({"clients": [0, 1], "distances": [[0, 1], [1, 0]]}))
    assert (await got(tmp_path, "run.json?run=a")).json()["pictures"]["distances"] == [0, 1]


async def test_the_page_says_that_distances_are_too_many_to_be_drawn(
    tmp_path: Path, times: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("top_server.pictures.distances.MOST_CLIENTS", 2)
    run = with_distances(tmp_path / "a", 3)
    told = (await got(tmp_path, "run.json?run=a")).json()["pictures"]
    assert told["distances"] == told["coalitions"] == []
    assert "distances.json are not drawn: it has more than" in told["undrawn"]
    for _ in range(2):
        async with client(tmp_path) as browser:
            assert (await browser.get("pictures/distances.png?run=a")).status_code == 404
    assert len(times) == 1  # they take as long to read as those that are drawn
    (run / "distances.json").write_text(json.dumps({"clients": [0, 1], "distances": [[0, 1], [1, 0]]}))
    assert (await got(tmp_path, "run.json?run=a")).json()["pictures"]["distances"] == [0, 1]


@pytest.mark.parametrize("path", ["run.json", "pictures/groups.png", "pictures/pairs.png", "compare.json"])
async def test_wrong_types_in_a_row_are_a_fault_of_the_record(tmp_path: Path, path: str) -> None:
    run = finished(tmp_path / "a", {"rounds": 1})
    history(run, [row(1, {0: 0.5}), row(2, {0: 0.5}, partition=[["a"]])])
    async with client(tmp_path) as browser:
        answer = await browser.get(f"{path}?run=a")
    assert answer.status_code == 409
    assert "history.jsonl, byte" in answer.json()["error"]
    assert "partition is [['a']]" in answer.json()["error"]


def test_a_run_without_a_round_has_no_pictures(tmp_path: Path) -> None:
    tmp_path.joinpath("config.toml").write_text(dump(parse(RunConfig, tomli_w.dumps({"rounds": 1}), tmp_path)))
    tmp_path.joinpath("events.jsonl").write_text("")
    history(tmp_path, [])
    story = Story(RunDirectory(tmp_path))
    story.read()
    assert pairs(story) is None


async def test_a_score_of_the_task_is_told_as_it_is(tmp_path: Path) -> None:
    run = finished(tmp_path / "a", {"rounds": 1})
    history(run, [row(1, {0: 0.5}, scored_by="-mae", score=-2.0, score_per_client={"0": -2.0})])
    whole = (await got(tmp_path, "run.json?run=a")).json()
    assert (whole["curves"]["rated_by"], whole["curves"]["score"]) == ("mae", [2.0])
