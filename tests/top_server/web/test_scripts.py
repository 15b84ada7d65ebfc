"""What scripts of the pages decide without a browser, played by Node.js."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

import top_server.web

STATIC = Path(top_server.web.__file__).parent / "static"
pytestmark = pytest.mark.skipif(shutil.which("node") is None, reason="there is no Node.js")


def played(tmp_path: Path, script: str, value: Any) -> Any:
    """What the script writes for `value`, as JSON."""
    shutil.copytree(STATIC, tmp_path / "static")
    (tmp_path / "package.json").write_text('{"type": "module"}')
    (tmp_path / "script.js").write_text(f"const value = {json.dumps(value)};\n{script}")
    command = ["node", "script.js"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


SORT = """import { compare } from "./static/dom.js";
console.log(JSON.stringify(value.map((column) => [...column].sort(compare))));"""
#: Columns of tables in the order in which people read them.
SORTED = [
    ["2026-10-30 23:00:00", "2026-11-02 08:00:00", "2026-11-02 11:48:46", "2026-11-02 11:54:25"],
    ["accuracy 9.50 %", "accuracy 85.00 %", "accuracy 100.00 %", "mae 0.25", "mae 0.5", "mae 2.5", "mae 12.1", ""],
    ["client 1", "client 2", "client 10", "node site-2", "node site-10"],
    ["2 (Ghent)", "3", "10 (Berlin)", "11"],
    ["r2 -1.5", "r2 -0.25", "r2 1e-06", "r2 0.5", "r2 1.2e+05"],
    ["-1.5", "-0.25", "1e-06", "0.5", "1,234", "12,345", "no number", ""],
    ["1.2 s", "119.9 s", "3.0 min", "1.5 h"],
    ["999 B", "1.5 kB", "20.0 kB", "1.1 MB", "1,200.0 GB"],
    ["9.50 %", "85.00 %", "85.50 %, from 3.00 % to 90.00 %", "100.00 %", "not evaluated"],
    ["2.2.0", "2.13.0", "2.13.1+cpu", "10.0.0.2:7001", "10.0.0.10:7001", "10.0.0.10:17001"],
    ["20261125T020308Z-hcct", "20261125T030308Z-fedgsp", "20261125T120308Z-fedgsp"],
    ["3 of 20", "20 of 20", "100 of 200"],
]


def test_tables_are_sorted_as_people_read_numbers_dates_units_and_names(tmp_path: Path) -> None:
    assert played(tmp_path, SORT, [column[::-1] for column in SORTED]) == SORTED


ROUND = """import { Round } from "./static/live.js";
const round = new Round(1);
for (const event of value) round.take(event);
const said = (group) => [group.program, group.last?.client ?? null,
  [...group.members.values()].map((one) => one.state)];
console.log(JSON.stringify(round.groups.map(said)));"""
BEGUN: dict[str, Any] = {"event": "round_started", "teams": [[0, 1, 2, 5], [3, 4]], "reason": "first"}
DONE: list[dict[str, Any]] = [
    *({"event": "hop_finished", "group": 0, "program": "relay", "client": one, "position": one} for one in (0, 1, 2)),
    {"event": "client_skipped", "group": 0, "client": 5, "reason": "lost"},
    {"event": "hop_finished", "group": 1, "program": "parallel", "client": 3, "position": 0},
]


@pytest.mark.parametrize(
    "again", [{"hops": 2, "kept": [0, 1]}, {"hops": 3}, {"hops": 0, "kept": []}, {"hops": 0}, None]
)
def test_a_round_that_is_resumed_keeps_what_was_done(tmp_path: Path, again: dict[str, Any] | None) -> None:
    resumed = [] if again is None else [{"event": "round_resumed", **again}]
    kept = (again or {}).get("hops", 0)
    more = [] if kept == 3 else DONE[2:3]
    found = played(tmp_path, ROUND, [{"round": 1, **one} for one in (BEGUN, *DONE, *resumed, BEGUN, *more)])
    before = ["done" if client < kept else "waiting" for client in (0, 1)]
    assert found == [["relay", 2, [*before, "done", "skipped" if kept else "waiting"]], ["", None, ["waiting"] * 2]]
