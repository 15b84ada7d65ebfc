from __future__ import annotations

import pytest

from fedgsp.errors import ConfigError
from fedgsp.options import MOST_LENGTH, options, same, shortened


def test_options_may_hold_any_text_after_the_first_sign() -> None:
    assert options("--task-option", ["a=b=c", "d="]) == {"a": "b=c", "d": ""}
    for wrong in (["a"], ["=a"], ["a=1", "a=2"]):
        with pytest.raises(ConfigError, match="--task-option"):
            options("--task-option", wrong)


@pytest.mark.parametrize(
    ("one", "other", "alike"),
    [
        ("0.1", "1e-1", True),
        ("4", "4.0", True),
        ("yes", "True", True),
        ("1", "true", True),
        (" shards", "shards", True),
        ("None", "None", True),
        ("none", "None", True),
        ("", "None", True),
        ("nan", "nan", True),
        ("nan", "NaN", True),
        ("nan", "0", False),
        ("", "0", False),
        ("0", "1", False),
        ("no", "on", False),
        ("4", "5", False),
        ("4", "four", False),
        ("Shards", "shards", False),
    ],
)
def test_values_are_the_same_however_they_are_written(one: str, other: str, alike: bool) -> None:
    assert same(one, other) is same(other, one) is alike


def test_long_values_travel_as_a_digest_that_tells_them_apart() -> None:
    long, other = "x" * 300, "x" * 299 + "y"
    assert shortened("x" * MOST_LENGTH) == "x" * MOST_LENGTH
    assert len(shortened(long)) == MOST_LENGTH
    assert same(long, shortened(long))
    assert not same(shortened(other), long)
