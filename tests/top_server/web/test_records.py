"""Records that are unlike most, as the pages show them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.recordings import long_run
from tests.top_server.web.test_pages import SHORT, got


async def test_texts_of_a_record_that_are_not_utf_8_are_shown_with_escapes(tmp_path: Path) -> None:
    """As of a run that was started in a folder of such a name; here all texts of its events and rows are like that."""
    run = long_run(tmp_path / "a", **SHORT)
    for path in (run / "events.jsonl", run / "history.jsonl"):
        text = path.read_text().replace('"directory": ""', r'"directory": "/caf\udce9"')
        for word in ("Writer", "gave no sign", "clients with similar", ".example.org", '"cpu"'):
            text = text.replace(word, rf"\udce9{word}" if word[0] != '"' else r'"\udce9"')
        path.write_text(text)
    shown = (await got(tmp_path, "run.json?run=a")).json()
    assert shown["names"]["3"] == r"\udce9Writer 3"
    assert (await got(tmp_path, "round.json?run=a&round=3")).json()["told"]
    assert [one["kind"] for one in (await got(tmp_path, "runs.json")).json()] == ["finished"]
    for address in ("pictures/groups.png?run=a", "compare.json?run=a"):
        await got(tmp_path, address)


@pytest.mark.parametrize("again", [True, False])
async def test_a_round_that_a_resumed_run_continues_has_the_events_from_before_too(
    tmp_path: Path, again: bool
) -> None:
    events = long_run(tmp_path / "a", **SHORT, finished=False) / "events.jsonl"
    begun = next(line for line in events.read_text().splitlines() if '"event": "round_started", "round": 3' in line)
    resumed = json.dumps({"time": "", "event": "round_resumed", "round": 3, "hops": 1, "kept": [0]})
    with events.open("a") as file:
        file.write(f"{resumed}\n{begun}\n" if again else f"{begun}\n")
    told = (await got(tmp_path, "round.json?run=a&round=3")).json()["events"]
    assert [event["event"] for event in told].count("round_started") == (2 if again else 1)
