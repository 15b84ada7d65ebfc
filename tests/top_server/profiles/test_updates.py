"""What clients may show of their updates, and who is a newcomer."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedgsp.errors import ConfigError, TaskError
from fedgsp.messages import TensorSpec
from fedgsp.tensors.updates import LENGTH_BYTES
from tests.support.surveyed import surveyed
from top_server.nodes.membership import Membership
from top_server.reveals.updates import most_bytes


@pytest.mark.parametrize(
    ("dtype", "values", "sketch", "most"),
    [
        ("float32", 1000, 16, 4000),
        ("float16", 1000, 16, 4000),  # the update is twice as large as the model
        ("float64", 1000, 16, 8000),
        ("float32", 1000, 65536, LENGTH_BYTES + 65536),
    ],
)
def test_as_much_may_come_as_the_largest_view_has(dtype: str, values: int, sketch: int, most: int) -> None:
    assert most <= most_bytes((TensorSpec("w", dtype, (values,)),), sketch) <= most + 8


async def test_a_client_whose_model_is_lost_is_a_newcomer_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with surveyed(monkeypatch, 4, "none", run_dir=tmp_path) as surveys:
        surveys.answers["alone"] = surveys.outcome
        profile = surveys.stage.profile("updates")
        try:
            assert (await profile.gather(1)).newcomers == ()
            assert (await profile.gather(2)).newcomers == ()
            surveys.stage.progress.afresh.add(1)
            assert (await profile.gather(3)).newcomers == (1,)
            assert [task.clients for task in surveys.of("alone")] == [(1,)]
            surveys.stage.progress.afresh.clear()
            assert (await profile.gather(4)).newcomers == ()
        finally:
            profile.close()


async def test_a_model_without_layers_to_choose_from_is_refused_before_the_first_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Membership, "tensors", (TensorSpec("embedding", "float32", (2,)),))
    async with surveyed(monkeypatch, 2, "none", {"similarity": "layer"}, run_dir=tmp_path) as surveys:
        with pytest.raises(TaskError, match=r"no trainable dense .* layer; give --profile-option similarity=exact"):
            surveys.stage.profile("updates")


async def test_updates_without_the_head_of_a_model_of_which_only_that_is_trained_say_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors = (TensorSpec("body", "float32", (2,), False), TensorSpec("head", "float32", (2,), head=True))
    monkeypatch.setattr(Membership, "tensors", tensors)
    async with surveyed(monkeypatch, 2, "none", {"similarity_of": "shared"}, run_dir=tmp_path) as surveys:
        with pytest.raises(ConfigError, match=r"outside its head is trained.*similarity_of=all"):
            surveys.stage.profile("updates")
    async with surveyed(monkeypatch, 2, "none", {"similarity_of": "all"}, run_dir=tmp_path) as surveys:
        surveys.stage.profile("updates").close()
