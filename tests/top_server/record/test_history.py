from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgsp.errors import DataError
from fedgsp.scoring import COLUMNS, taken_by
from top_server.record.events.base import ABSENT
from top_server.record.events.rounds import RoundFinished
from top_server.record.history import last_line, plain, read_lines, to_line


def test_a_row_has_every_column_in_order_but_for_those_that_it_may_lack() -> None:
    row = RoundFinished(loss=0.5, round=3).fields
    columns = [field.name for field in dataclasses.fields(RoundFinished) if field.default is not ABSENT]
    assert list(row) == columns
    assert (row["round"], row["loss"], row["accuracy"]) == (3, 0.5, None)


def test_optional_columns_stand_only_where_they_are_given() -> None:
    assert RoundFinished(round=1, partition=[[1, 2], [3]]).fields["partition"] == [[1, 2], [3]]
    assert "partition" not in RoundFinished(round=1).fields


NESTED = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()) | st.binary(),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.integers() | st.text(), inner),
)


@given(NESTED)
def test_any_value_becomes_one_line_of_strict_json(value: Any) -> None:
    line = to_line(plain({"value": value}))
    assert line.count("\n") == 1
    assert line.isascii()
    json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


def test_numbers_of_numpy_and_paths_are_plain_and_nan_is_null() -> None:
    value = {"a": np.float32(0.5), "b": np.arange(3), "c": float("nan"), 7: {2, 1}, "p": Path("x"), "i": np.inf}
    assert plain(value) == {"a": 0.5, "b": [0, 1, 2], "c": None, "7": [1, 2], "p": "x", "i": None}
    assert plain(np.array([[1.0, np.nan]])) == [[1.0, None]]


def test_a_cut_last_line_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    path.write_text('{"round": 1}\n{"round": 2}\n{"rou')
    assert read_lines(path) == [{"round": 1}, {"round": 2}]


def test_an_empty_file_has_no_rows(tmp_path: Path) -> None:
    (tmp_path / "history.jsonl").touch()
    assert read_lines(tmp_path / "history.jsonl") == []


@pytest.mark.parametrize("broken", ["{", "3", "[]", ""])
def test_a_broken_line_before_the_last_is_an_error(tmp_path: Path, broken: str) -> None:
    path = tmp_path / "history.jsonl"
    path.write_text(f'{{"round": 1}}\n{broken}\n{{"round": 3}}\n')
    with pytest.raises(DataError, match="line 2"):
        read_lines(path)


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="No such file"):
        read_lines(tmp_path / "history.jsonl")


def test_metrics_of_tasks_can_have_no_name_of_a_column() -> None:
    assert {field.name for field in dataclasses.fields(RoundFinished)} == COLUMNS
    assert all(map(taken_by, COLUMNS))
    assert taken_by("mae") is None


def test_of_the_last_line_alone_the_json_is_read(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    path.write_text('damaged\n{"round": 2}\n{"round": 3')
    assert last_line(path) == {"round": 2}
    path.write_text('{"round": 1')
    with pytest.raises(DataError, match=r"history\.jsonl has no line"):
        last_line(path)
