"""A local run is compared only with a run that rates its models by the same score."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedgsp.errors import ConfigError
from tests.top_server.baseline.test_local_run import config, ended
from top_server.baseline.local_run import check_score
from top_server.record.figures import summarise


def test_a_local_run_that_was_rated_by_something_else_is_refused(tmp_path: Path) -> None:
    run = config(tmp_path)
    directory = ended(run, {0: 0.5})
    check_score(run, "accuracy")
    with pytest.raises(ConfigError, match="is scored by accuracy, and this task by -mae; give another directory"):
        check_score(run, "-mae")
    summary = summarise([{"round": 1, "scored_by": "-mae", "score": -1.0, "score_per_client": {"0": -1.0}}])
    directory.summary.write_text(json.dumps(summary))
    check_score(run, "-mae")
