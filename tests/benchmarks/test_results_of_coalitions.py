"""FedCollab's coalitions in result pages: figures, the table of all seeds, and the picture."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from benchmarks.results.coalitions import chosen, distance, figure_of, numbers, of_types
from benchmarks.results.figures import mean_of
from benchmarks.results.partitions import structures
from benchmarks.results.store import Kept
from benchmarks.results.tables import table
from fedgsp.errors import ConfigError

#: Two clients of each type: types 1 and 2 are near each other, and so are types 3 and 4.
BLOCKS = np.array([[0, 0.1, 0.9, 0.9], [0.1, 0, 0.9, 0.9], [0.9, 0.9, 0, 0.2], [0.9, 0.9, 0.2, 0]])

#: The objective of {0-1} {2-3} of 200 samples and {4-5} {6-7} of 20, without distances inside.
ALONE = 4 / 200**0.5 + 4 / 20**0.5


def summary(seed: int = 0, error: float = 0.01) -> dict[str, Any]:
    matrix = BLOCKS.repeat(2, axis=0).repeat(2, axis=1)
    errors = np.full(matrix.shape, error)
    np.fill_diagonal(errors, 0)
    return {
        "experiment": "coalitions",
        "variant": "fedcollab",
        "seed": seed,
        "settings": {"grouping_option": {"c": "1"}},
        "distances": {
            "clients": list(range(8)),
            "sizes": [100] * 4 + [10] * 4,
            "matrix": matrix.tolist(),
            "errors": errors.tolist(),
        },
        "partitions": {"1": "0-1 2-3 4-5 6-7"},
    }


def test_the_distance_of_two_types_is_a_mean_without_the_diagonal() -> None:
    assert [distance(summary(), 1, other) for other in (1, 2, 3)] == pytest.approx([0, 0.1, 0.9])
    assert distance({**summary(), "distances": {}}, 1, 2) is None


def test_the_margin_is_that_of_the_grouping() -> None:
    found = chosen(summary())
    assert found is not None
    # {0, 1} and {2, 3} of 200 samples, {4, 5} and {6, 7} of 20, without distances inside.
    assert found.objective == pytest.approx(4 / 200**0.5 + 4 / 20**0.5)
    assert numbers(summary(), "objective") == found.objective
    assert numbers(summary(), "errors") == pytest.approx(found.more / found.error)
    assert numbers({**summary(), "distances": {}}, "more") is None


def test_the_margin_of_types_is_against_the_best_other_partition_of_whole_types() -> None:
    one = {"1 2 3 4": 4 / 200**0.5 + 4 / 20**0.5, "12 3 4": 4 / 400**0.5 + 0.1 * 800 / 400 + 4 / 20**0.5}
    assert of_types(summary()) == pytest.approx(one["12 3 4"] - one["1 2 3 4"])


def test_texts_name_the_groups_and_what_the_next_best_has_instead() -> None:
    assert structures({0: summary()}, "groups", "here") == "{0-1} {2-3} {4-5} {6-7}"
    assert structures({0: summary()}, "next-best", "here") == chosen(summary()).instead  # type: ignore[union-attr]


def test_a_table_can_have_a_row_for_each_seed_and_names_those_that_are_missing() -> None:
    kept = Kept(read={"coalitions": {"fedcollab": {0: summary(0), 2: summary(2)}}})
    lines = table(
        {
            "experiment": "coalitions",
            "head": "seed",
            "seeds": [0, 1, 2],
            "each_seed": True,
            "rows": {"": "fedcollab"},
            "columns": {"coalitions": {"text": "groups"}, "1-2": {"figure": "distance", "one": 1, "other": 2}},
        },
        kept,
        "here",
    )
    assert lines[2:5] == [
        "| 0 | {0-1} {2-3} {4-5} {6-7} | 0.100 |",
        "| 1 | - | - |",
        "| 2 | {0-1} {2-3} {4-5} {6-7} | 0.100 |",
    ]
    assert lines[-1] == "Missing, because no summary is kept: 1."


def test_the_picture_has_the_distances_by_type_and_the_objectives_by_seed() -> None:
    drawn = figure_of({"published": {"1 2": 0.157}}, {"a row": {0: summary(0), 1: summary(1)}}, "here")
    left, right = drawn.axes
    assert [text.get_text() for text in left.get_xticklabels()][:3] == ["1-1", "1-2", "1-3"]
    assert right.get_xlabel() == "seed"
    assert np.shape(right.collections[0].get_offsets()) == (2, 2)


def test_the_coalitions_of_another_c_are_told_with_their_objective() -> None:
    # at a high C all clients together cost least: 8 C / sqrt(440) and a mean distance
    assert structures({0: summary()}, "coalitions", "here", c=1) == f"{{0-1}} {{2-3}} {{4-5}} {{6-7}}: {ALONE:.3f}"
    assert structures({0: summary()}, "coalitions", "here", c=100).startswith("{0-7}: ")
    assert structures({0: {**summary(), "distances": {}}}, "coalitions", "here", c=1) == "-"


@pytest.mark.parametrize(("text", "options"), [("coalitions", {}), ("coalitions", {"d": 1}), ("groups", {"c": 1})])
def test_options_that_a_text_does_not_have_are_refused(text: str, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"here: text {text} has options"):
        structures({0: summary()}, text, "here", **options)


def test_means_over_clients_can_be_those_of_a_type() -> None:
    clients = {"last": [0.1] * 2 + [0.2] * 2 + [0.3] * 2 + [0.4] * 2, "alone": [0.5] * 8, "last_evaluated": 1}
    one = {**summary(), "rounds": 1, "clients": {**clients, "best": clients["last"]}}
    assert mean_of(one) == pytest.approx(0.25)
    assert [mean_of(one, type=number) for number in range(1, 5)] == pytest.approx([0.1, 0.2, 0.3, 0.4])
    assert mean_of(one, of="alone") == 0.5
    assert mean_of(one, of="auc") is None
    assert mean_of({**one, "rounds": 2}) is None  # not evaluated after the last round
    assert mean_of({**one, "clients": {**one["clients"], "alone": [None] * 8}}, of="alone") is None
