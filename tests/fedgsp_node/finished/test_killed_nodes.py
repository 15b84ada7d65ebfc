"""What a node that was killed, and never came back, had not put in its place yet."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file
from typer.testing import CliRunner

from fedgsp_node.cli import app
from fedgsp_node.kept.personal_state import PERSONAL_MODEL
from fedgsp_node.tasks.digits import Digits
from tests.support.kept_state import keep, opened
from tests.support.run_directories import RUN, trained, write


def own(number: int) -> dict[str, np.ndarray]:
    """The personal model of a round."""
    return dict(trained(Digits(3), number).arrays)


def exported(tmp_path: Path, model: str) -> int:
    """The round of the personal model that is exported with a model of the run."""
    out = tmp_path / f"{len(list(tmp_path.iterdir()))}.safetensors"
    words = ("export", tmp_path / "run", "--client", "1", "--state-dir", tmp_path / "state", "--model", model)
    result = CliRunner().invoke(app, [*map(str, words), "--out", str(out)])
    assert result.exit_code == 0, (result.output, result.exception)
    found = load_file(out)
    (number,) = (
        number
        for number in (1, 2, 3)
        if all(np.array_equal(found[name].numpy(), array) for name, array in own(number).items())
    )
    return number


@pytest.mark.parametrize("halfway", [False, True])
def test_its_last_training_counts_if_there_is_a_receipt_and_no_file_is_changed(halfway: bool, tmp_path: Path) -> None:
    models = {name: (trained(Digits(3), 9), ()) for name in ("final", "round-0002", "round-0001")}
    write(tmp_path / "run", Digits(3), models, scheme="ditto", task_option={"clients": "3"})
    state, receipts = tmp_path / "state", tmp_path / "state" / "receipts.jsonl"
    kept = opened(state, RUN)
    for number in (1, 2):
        keep(kept, 1, PERSONAL_MODEL, own(number), number)
    kept.prepare(1, {PERSONAL_MODEL: own(3)}, 3, "made/3")
    if not halfway:
        assert (exported(tmp_path, "final"), exported(tmp_path, "round-0001")) == (2, 1)
    receipts.write_text('{"answered": "trained", "makes": "made/3"}\n')
    if halfway:
        path = state / f"{RUN}-client-1.personal-model.safetensors"
        path.replace(path.with_name(f"{RUN}-client-1.personal-model-before.safetensors"))
    before = {path: path.read_bytes() for path in state.iterdir()}
    assert (exported(tmp_path, "final"), exported(tmp_path, "round-0002")) == (3, 2)
    assert {path: path.read_bytes() for path in state.iterdir()} == before
