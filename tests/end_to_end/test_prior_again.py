"""A client that could not train its prior model in the first round trains it in the next one, and it is its own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedgsp.messages import Failure, FailureCode, Order, Train, Trained
from fedgsp_node.order_error import OrderError
from fedgsp_node.trainer import Trainer
from tests.support.cluster import play
from tests.support.gated_task import gated_settings, host
from tests.support.managers_here import managers_here
from tests.support.option_kinds import by_kind
from top_server.evidence import Evidence
from top_server.profiles import PROFILES
from top_server.schemes import SCHEMES

#: What tells of the prior models, by scheme.
TOLD = {"maxfl": "prior_loss", "kmeans": "gram"}


async def told(tmp_path: Path, scheme: str, failing: int | None) -> Mapping[str, np.ndarray]:
    """The evidence of the second round, of three clients on one node; one of them may fail in the first."""
    kept: dict[int, Mapping[str, np.ndarray]] = {}
    profile, train = PROFILES[SCHEMES[scheme].profile].load(), Trainer.carry_out

    async def fails_once(self: Trainer, order: Order, work: Train, *arguments: Any) -> Trained:
        nonlocal failing
        if order.client == failing:
            failing = None
            raise OrderError(Failure(FailureCode.TASK_RAISED, "the camera broke"))
        return await train(self, order, work, *arguments)

    gather = profile.gather

    async def noted(self: Any, number: int) -> Evidence:
        evidence = await gather(self, number)
        kept[number] = evidence.matrices
        return evidence

    with pytest.MonkeyPatch.context() as patch:
        managers_here(patch)
        patch.setattr(Trainer, "carry_out", fails_once)
        patch.setattr(profile, "gather", noted)
        options = {"prior_epochs": "3", **({"clusters": "2"} if scheme == "kmeans" else {})}
        config = gated_settings(tmp_path, scheme=scheme, rounds=2, evaluate_every=2, **by_kind(options))
        await play(config, [host("n0", 0, 1, 2)])
    return kept[2]


@pytest.mark.parametrize("scheme", TOLD)
async def test_a_prior_model_that_is_trained_in_a_later_round_is_that_of_its_client(
    tmp_path: Path, scheme: str
) -> None:
    name = TOLD[scheme]
    whole = await told(tmp_path / "whole", scheme, failing=None)
    again = await told(tmp_path / "again", scheme, failing=2)
    assert again[name].shape == whole[name].shape
    assert np.array_equal(again[name], whole[name])
