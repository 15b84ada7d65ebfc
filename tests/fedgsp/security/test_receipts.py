"""The canonical text of a receipt stands for one statement alone."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgsp.messages import Discriminated, ModelRef, OrderKey, Trained
from fedgsp.security.receipts import Statement

#: Text that a reader could take for the end of a value.
WORDS = st.text(st.sampled_from('ab01",[]\\\n: é\x00'), max_size=6)
NUMBERS = st.integers(0, 2**64 - 1)
STATEMENTS = st.builds(
    Statement,
    **{field.name: NUMBERS if field.type is int else WORDS for field in dataclasses.fields(Statement)},
)
KEY = OrderKey(3, "train", 1, 2, 4, "run", 9)


@settings(max_examples=300, deadline=None)
@given(some=STATEMENTS, other=STATEMENTS, data=st.data())
def test_no_two_statements_have_the_same_text(some: Statement, other: Statement, data: st.DataObject) -> None:
    # Also of statements that differ in one or two values only, or in which two values changed places.
    first, second = data.draw(st.permutations([field.name for field in dataclasses.fields(Statement)]))[:2]
    near: dict[str, Any] = {first: getattr(other, first)}
    moved: dict[str, Any] = {}
    if type(getattr(some, first)) is type(getattr(some, second)):
        moved = {first: getattr(some, second), second: getattr(some, first)}
    for one in (other, dataclasses.replace(some, **near), dataclasses.replace(some, **moved)):
        assert (one.text == some.text) is (one == some)


@settings(max_examples=100, deadline=None)
@given(some=STATEMENTS)
def test_a_statement_is_read_back_from_its_fields(some: Statement) -> None:
    assert Statement.read(dataclasses.asdict(some)) == some


@pytest.mark.parametrize(
    "change",
    [{"round": "3"}, {"round": True}, {"model": 3}, {"more": 1}, {"samples": None}],
    ids=["text for a number", "truth for a number", "number for a text", "too much", "nothing"],
)
def test_fields_of_other_kinds_are_refused(change: dict[str, Any]) -> None:
    said = Statement.of(KEY, 5, "n0", Trained(ModelRef("m", 40, b"made"), 7))
    with pytest.raises(ValueError, match="not the fields of a statement"):
        Statement.read({**dataclasses.asdict(said), **change})


def test_a_statement_tells_what_came_and_what_was_made() -> None:
    made = Trained(ModelRef("m", 40, b"\1"), 7, update=ModelRef("m.update", 8, b"\2"), start=ModelRef("s", 0, b"\3"))
    said = Statement.of(KEY, 5, "n0", made)
    assert said == Statement("run", 3, "train", 1, 2, 4, 9, 5, "n0", "s", "03", "m", "01", "02", 7)
    without = dataclasses.replace(made, update=None)
    assert Statement.of(KEY, 5, "n0", without).update_digest == ""
    assert Statement.of(KEY, 5, "n0", without, b"\2") == said
    networks = Discriminated(ModelRef("n", 40, b"\1"), (), 7, start=ModelRef("s", 0, b"\3"))
    assert Statement.of(KEY, 5, "n0", networks) == dataclasses.replace(said, model="n", update_digest="")
