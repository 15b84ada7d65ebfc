"""Tables, values and pictures of pages: made from made-up summaries, and held against what a page has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tomli_w

from benchmarks.results import pages, site
from benchmarks.results.partitions import sizes, structures
from benchmarks.results.pictures import picture
from benchmarks.results.store import Kept
from benchmarks.results.tables import table, value
from benchmarks.results.text import to_text
from fedgsp.errors import ConfigError
from top_server.grouping.request import ranges


def summary(variant: str, seed: int, *accuracies: float, partition: str = "0-1 2") -> dict[str, Any]:
    rounds = list(range(1, len(accuracies) + 1))
    history = {"round": rounds, "accuracy": list(accuracies), "loss": [1 - one for one in accuracies]}
    return {
        "experiment": "tried",
        "variant": variant,
        "seed": seed,
        "settings": {},
        "rounds": len(accuracies),
        "history": {**history, "seconds": [2.0] * len(rounds)},
        "totals": {"seconds": 2.0 * len(rounds)},
        "clients": {"client": [0, 1, 2], "last": [0.5, 0.25, 0.75]},
        "partitions": {"1": "0-2", "2": partition},
        "models": {},
    }


RUNS = [
    summary("fedavg", 0, 0.25, 0.5),
    summary("fedavg", 1, 0.5, 0.75),
    summary("fedyogi", 0, 0.5, 0.75),
    summary("fedyogi", 1, 0.5, 1.0, partition="0-2"),
    summary("once", 1, 0.5, 0.875),
]
TABLE: dict[str, Any] = {
    "experiment": "tried",
    "head": "scheme",
    "seeds": [0, 1],
    "columns": {
        "seeds": "seeds",
        "printed": "printed",
        "accuracy": {"figure": "accuracy"},
        "round 1": {"figure": "accuracy", "round": 1, "show": "mean", "decimals": 0},
        "to 75 %": {"figure": "rounds-to", "level": 0.75, "show": "each"},
        "to 50 %": {"figure": "seconds", "level": 0.5, "show": "each"},
        "in s": {"figure": "seconds", "level": 0.75, "show": "each"},
        "above FedAvg": {"figure": "accuracy", "against": "fedavg"},
        "loss below FedAvg's": {"figure": "loss", "against": "fedavg", "claim": "lower", "show": "verdict"},
    },
    "rows": {
        "FedAvg": {"variant": "fedavg", "printed": "80.1"},
        "FedYogi": {"variant": "fedyogi"},
        "once": {"variant": "once"},
        "gone": {"variant": "gone"},
    },
}
MADE = """\
| scheme | seeds | printed | accuracy | round 1 | to 75 % | to 50 % | in s | above FedAvg | loss below FedAvg's |
|---|---|---|---|---|---|---|---|---|---|
| FedAvg | 2 | 80.1 | 62.50 +- 17.68 | 38 | 2 (1 of 2 seeds) | 4, 2 | 4 (1 of 2 seeds) |  |  |
| FedYogi | 2 |  | 87.50 +- 17.68 | 50 | 2, 2 | 2, 2 | 4, 4 | +25.00: holds | holds |
| once | 1 |  | 87.50 | 50 | 2 | 2 | 4 | +12.50: open | open |
| gone | 0 |  | - | - | - | - | - | - | - |

Missing, because no summary is kept: once (seeds 0); gone (seeds 0, 1)."""
VALUE = {"experiment": "tried", "variant": "fedyogi", "figure": "accuracy", "decimals": 1}
PAGE = """\
# Tried

FedYogi reaches <!-- value: yogi -->0<!-- end --> %.

<!-- results: all -->
<!-- end -->

![by round](curves.png)

<!-- not recomputable: the runs of this table were not kept -->

| a | b |
|---|---|
| 1 | 2 |

```
<!-- results: an example in a block of code -->
```
"""


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """A folder like docs/results, with one page that is not made yet."""
    for one in RUNS:
        path = tmp_path / "data" / "tried" / f"{one['variant']}-{one['seed']}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(to_text(one), encoding="utf-8")
    described = {
        "tables": {"all": TABLE},
        "values": {"yogi": VALUE},
        "pictures": {"curves": {"experiment": "tried"}},
    }
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables" / "page.toml").write_text(tomli_w.dumps(described), encoding="utf-8")
    (tmp_path / "page.md").write_text(PAGE, encoding="utf-8")
    return tmp_path


@pytest.fixture
def kept(results: Path) -> Kept:
    return Kept(results / "data")


def test_a_table_has_the_figures_of_the_seeds_and_names_what_is_missing(kept: Kept) -> None:
    assert "\n".join(table(TABLE, kept, "here")) == MADE


def test_without_rows_every_variant_is_a_row_and_without_seeds_every_seed_counts(kept: Kept) -> None:
    lines = table({"experiment": "tried", "columns": {"seeds": "seeds"}}, kept, "here")
    assert lines[2:] == ["| fedavg | 2 |", "| fedyogi | 2 |", "| once | 1 |"]


def test_a_table_without_any_summary_says_so_in_place_of_numbers(kept: Kept) -> None:
    other = {**TABLE, "experiment": "other"}
    assert table(other, kept, "here") == ["No summary of experiment other is kept."]
    assert value({**VALUE, "variant": "gone"}, kept, "here") == "(no summary of tried/gone is kept)"


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({}, "87.5"),
        ({"show": "each"}, "75.0, 100.0"),
        ({"against": "fedavg"}, "+25.0"),
        ({"against": "fedavg", "show": "verdict"}, "holds"),
        ({"against": "fedavg", "show": "verdict", "claim": "lower"}, "fails"),
        ({"against": "fedavg", "show": "verdict", "claim": "lower", "margin": 10}, "fails"),
        ({"against": "fedavg", "show": "verdict", "claim": "lower", "margin": 60}, "holds"),
        ({"seeds": [1]}, "100.0"),
        ({"figure": "client", "client": 2}, "75.0"),
        ({"figure": "seconds", "round": 1}, "2.0"),
        ({"figure": "ipr"}, "-"),
    ],
)
def test_a_value_in_a_sentence(changes: dict[str, Any], text: str, kept: Kept) -> None:
    assert value({**VALUE, **changes}, kept, "here") == text


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"columns": {"a": {"figure": "colour"}}}, "here: there is no figure 'colour'; use one of: accuracy, "),
        ({"columns": {"a": {"figure": "loss", "level": 1}}}, "figure loss has no option 'level'; its options: round"),
        ({"columns": {"a": {"figure": "rounds-to"}}}, "figure rounds-to needs a level"),
        ({"columns": {"a": {"figure": "loss", "show": "all"}}}, "show is 'all'; use one of"),
        ({"columns": {"a": {"text": "colour"}}}, "there is no text 'colour'"),
        ({"rows": {"a": {"printed": "1"}}}, "here, row 'a' has no `variant`"),
    ],
)
def test_a_mistake_in_a_description_is_told_with_its_place(changes: dict[str, Any], said: str, kept: Kept) -> None:
    with pytest.raises(ConfigError) as caught:
        table({**TABLE, **changes}, kept, "here")
    assert said in str(caught.value)


def test_groups_as_text(kept: Kept) -> None:
    assert ranges([0, 1, 2, 5, 7, 8]) == "0-2,5,7-8"
    assert sizes("0-2,5 4 6,7-8") == "3: 1 3 4"
    assert structures(kept.runs("tried", "fedavg"), "groups", "") == "{0-1} {2}"
    both = structures(kept.runs("tried", "fedyogi"), "group-sizes", "")
    assert both == "2: 1 2 (1 of 2), 1: 3 (1 of 2)"


def test_what_is_made_is_right_and_making_it_again_changes_nothing(results: Path) -> None:
    assert site.make(results) == []
    page = (results / "page.md").read_text(encoding="utf-8")
    assert "FedYogi reaches <!-- value: yogi -->87.5<!-- end --> %." in page
    assert f"<!-- results: all -->\n\n{MADE}\n\n<!-- end -->" in page
    assert "\n*Not recomputable: the runs of this table were not kept.*\n\n| a | b |" in page
    assert site.check(results) == []
    picture = (results / "curves.png").read_bytes()
    assert site.make(results) == []
    assert (results / "page.md").read_text(encoding="utf-8") == page
    assert (results / "curves.png").read_bytes() == picture


@pytest.mark.parametrize(
    ("right", "wrong", "said"),
    [
        (
            "| FedYogi | 2 |  | 87.50",
            "| FedYogi | 2 |  | 88.50",
            "page.md:10: table all: found '| FedYogi | 2 |  | 88.50",
        ),
        (">87.5<", ">88.5<", "page.md:3: value yogi: found '88.5', and '87.5' is what belongs there"),
        (
            "*Not recomputable: the runs of this table were not kept.*\n\n",
            "\n",
            "page.md:21: mark: found nothing, and '*Not recomputable: the runs",
        ),
        ("<!-- not", "<!-- it is not", "page.md:23: this table is neither made from summaries nor marked"),
    ],
)
def test_a_changed_page_is_found_by_block_and_line(right: str, wrong: str, said: str, results: Path) -> None:
    site.make(results)
    page = results / "page.md"
    text = page.read_text(encoding="utf-8")
    assert text.count(right) == 1
    page.write_text(text.replace(right, wrong), encoding="utf-8")
    (problem,) = site.check(results)
    assert str(problem).startswith(said)
    assert page.read_text(encoding="utf-8") == text.replace(right, wrong)


def test_a_changed_summary_is_found_in_the_page_and_in_the_picture(results: Path) -> None:
    site.make(results)
    path = results / "data" / "tried" / "fedyogi-0.json"
    path.write_text(path.read_text(encoding="utf-8").replace("0.75", "0.8"), encoding="utf-8")
    assert [problem.page for problem in site.check(results)] == ["page.md", "page.md", "curves.png"]
    assert site.make(results) == []
    assert site.check(results) == []


def test_a_marked_table_stays_as_it_is_until_a_summary_of_it_is_kept(kept: Kept) -> None:
    text = (
        "<!-- not recomputable: lost -->\n*Not recomputable: lost.*\n\n<!-- results: all -->\n| old |\n<!-- end -->\n"
    )
    lost: dict[str, Any] = {"tables": {"all": {**TABLE, "experiment": "other"}}}
    assert pages.applied(text, pages.changes("page.md", text, lost, kept)) == text
    with pytest.raises(ConfigError, match="table all has summaries and is marked as not recomputable"):
        pages.changes("page.md", text, {"tables": {"all": TABLE}}, kept)


def test_a_mark_of_a_page_is_for_all_its_tables() -> None:
    table = "\n| a |\n|---|\n| 1 |\n"
    assert list(pages.bare(table + table)) == [2, 6]
    assert list(pages.bare("<!-- page not recomputable from summaries: measured -->\n" + table + table)) == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("<!-- results: all -->\n", "results all has no end"),
        ("<!-- results: all -->\n<!-- results: all -->\n<!-- end -->\n", "results all has no end before"),
        ("<!-- value: yogi -->1\n", "value yogi has no end"),
        ("<!-- results: other -->\n<!-- end -->\n", "no table is called other"),
        ("nothing\n", "page.md has no table all"),
    ],
)
def test_a_mistake_in_a_page_is_told(text: str, said: str, kept: Kept) -> None:
    described = {"tables": {"all": TABLE}, "values": {"yogi": VALUE} if "yogi" in text else {}}
    with pytest.raises(ConfigError, match=said):
        pages.changes("page.md", text, described, kept)


@pytest.mark.parametrize("kind", ["curves", "bars"])
def test_the_same_summaries_give_the_same_bytes(kind: str, kept: Kept) -> None:
    one, two = (picture({"experiment": "tried", "kind": kind}, kept, "here") for _ in range(2))
    assert one is not None
    assert one == two
    assert picture({"experiment": "other", "kind": kind}, kept, "here") is None


@pytest.mark.slow  # make check does the same
def test_the_pages_of_this_project_are_what_their_summaries_say() -> None:
    assert [str(problem) for problem in site.check()] == []
