"""What holds for the scripts as such."""

from __future__ import annotations

import re
from pathlib import Path

from benchmarks.performance.__main__ import LONG, MEASURES

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "results"


def test_every_measure_that_a_page_names_can_be_called() -> None:
    pages = [path.read_text(encoding="utf-8") for path in (ROOT / "docs").rglob("*.md")]
    named = {name for page in pages for name in re.findall(r"BENCH=(\w+)", page)}
    assert "web" in named
    assert named - set(MEASURES) == set()
    assert set(LONG) - set(MEASURES) == set()


def test_every_script_and_every_figure_is_in_the_table_of_what_makes_the_results() -> None:
    page = (RESULTS / "README.md").read_text(encoding="utf-8")
    named = set(re.findall(r"[\w-]+\.\w+", page))
    named |= {f"{module}.py" for module in re.findall(r"python -m benchmarks\.(\w+)", page)}
    for begin, middle, end in re.findall(r"([\w-]*){([\w,]+)}(\.\w+)", page):  # hcct-{fmnist,digits}.png
        named |= {f"{begin}{name}{end}" for name in middle.split(",")}
    scripts = [path for path in (ROOT / "benchmarks").glob("*.py") if "__main__" in path.read_text(encoding="utf-8")]
    assert scripts
    assert sorted(path.name for path in (*scripts, *RESULTS.glob("*.png")) if path.name not in named) == []
