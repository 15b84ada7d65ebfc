"""Trackers as people name them."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedgsp.errors import ConfigError
from top_server.tracking import TRACKERS, chosen
from top_server.tracking.base import Tracker


def test_a_name_may_have_a_value_and_options() -> None:
    texts = ["tensorboard=there", "mlflow=http://127.0.0.1:5000"]
    found = chosen("--track", texts, {"mlflow.experiment": "ours", "tensorboard.clients": "no"})
    assert [tracker.name for tracker, _ in found] == ["tensorboard", "mlflow"]
    (_, board), (_, mlflow) = found
    assert (board.to, board.clients) == (Path("there"), False)
    assert (mlflow.to, mlflow.experiment, mlflow.clients) == ("http://127.0.0.1:5000", "ours", True)


@pytest.mark.parametrize(
    ("texts", "options", "told"),
    [
        (["tensorbord"], {}, "--track cannot be 'tensorbord'; did you mean 'tensorboard'?"),
        (["tensorboard", "tensorboard=x"], {}, "--track tensorboard is given twice"),
        (["tensorboard=x"], {"tensorboard.to": "y"}, "option tensorboard.to differ"),
        (["tensorboard"], {"tensorboard.two": "y"}, "tracker tensorboard has no option 'two'"),
        (["tensorboard"], {"mlflow.to": "y"}, "option mlflow.to is for no tracker of --track"),
        (["mlflow"], {}, "tracker mlflow needs the URI of a tracking server; write mlflow=URI"),
        (["mlflow=http://me:secret@there"], {}, "has a password in its URL; give it by the environment"),
        (["mlflow=http://[there"], {}, "is no URL"),
        (["mlflow=http://there"], {"mlflow.experiment": " "}, "option experiment of tracker mlflow is empty"),
    ],
)
def test_a_mistake_is_told_before_anything_is_tracked(texts: list[str], options: dict[str, str], told: str) -> None:
    with pytest.raises(ConfigError) as error:
        chosen("--track", texts, options)
    assert told in str(error.value)
    assert "secret" not in str(error.value)


def test_a_package_that_is_missing_is_named_with_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    needs = Tracker(help="needs much", code=lambda _: None, packages={"no_such_module": "fedgsp[much]"})
    monkeypatch.setitem(TRACKERS.built_in, "much", needs)
    with pytest.raises(ConfigError, match=r"needs a package that is not installed; pip install 'fedgsp\[much\]'"):
        chosen("--track", ["much"], {})
