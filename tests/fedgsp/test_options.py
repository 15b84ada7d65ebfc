from __future__ import annotations

import pytest

from fedgsp.errors import ConfigError
from fedgsp.options import options


def test_options_may_hold_any_text_after_the_first_sign() -> None:
    assert options("--task-option", ["a=b=c", "d="]) == {"a": "b=c", "d": ""}
    for wrong in (["a"], ["=a"], ["a=1", "a=2"]):
        with pytest.raises(ConfigError, match="--task-option"):
            options("--task-option", wrong)
