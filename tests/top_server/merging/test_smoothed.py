"""The mean of the groups' models in which gamma is smoothed over the rounds."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from fedgsp.messages import TensorSpec
from fedgsp.tensors.weights import Weights
from top_server.evidence import Evidence
from top_server.merging import MERGES, MergeSettings, Merging
from top_server.merging.base import GroupModel
from top_server.models import GLOBAL, Made

NOBODY = Evidence(())


def merging(**options: str) -> Merging:
    part = MERGES["smoothed-mean"]
    made: Merging = part.load()(MergeSettings("run", 0, False, part.read(options)))
    return made


def model(gamma: tuple[float, ...], weight: float = 0.0, name: str = "fusion_gamma") -> Weights:
    specs = TensorSpec("w", "float32", (1,)), TensorSpec(name, "float32", (len(gamma),))
    return Weights.of({"w": np.array([weight]), name: np.array(gamma)}, specs)


def begin(merging: Merging, number: int, start: Weights) -> None:
    merging.begin(number, NOBODY, dict.fromkeys(merging.reads(NOBODY), start))


def merged(
    merging: Merging, number: int, *models: tuple[Weights, int], start: Weights | None = None
) -> dict[str, Any]:
    """The tensors of the global model after a round in which these were trained on so many samples.

    The round begins with the model `start`; None: one like theirs, of zeros.
    """
    tensors = models[0][0].tensors
    begin(merging, number, start or Weights.of({spec.name: np.zeros(spec.shape) for spec in tensors}, tensors))
    for place, (weights, samples) in enumerate(models):
        merging.fold(number, GroupModel(place, (place,), frozenset({place}), samples, weights, {}))
    made = merging.finish(number)[GLOBAL]
    assert isinstance(made, Made)
    return dict(made.weights.arrays)


def f32(*values: float) -> list[float]:
    return [float(np.float32(value)) for value in values]


def test_a_tenth_of_the_mean_is_added_to_nine_tenths_of_what_was() -> None:
    smoothed = merging()
    smoothed.restore({}, {"fusion_gamma": np.array([0.2, 0.5])})
    found = merged(smoothed, 1, (model((0.6, -0.2)), 1), (model((0.2, 0.2)), 1))
    assert found["fusion_gamma"] == pytest.approx([0.22, 0.45], abs=1e-7)


def test_gamma_begins_at_0() -> None:
    smoothed = merging()
    found = [
        merged(smoothed, n, (model((mean,)), 7))["fusion_gamma"].item() for n, mean in enumerate((0.5, 0.4, 0.6), 1)
    ]
    assert found == pytest.approx([0.05, 0.085, 0.1365], abs=1e-7)


def test_gamma_of_a_start_file_is_the_past_of_the_first_round() -> None:
    start = model((0.5, -1.0))
    assert merged(merging(), 1, (model((0.5, -1.0)), 7), start=start)["fusion_gamma"].tolist() == [0.5, -1.0]
    smoothed = merging()
    found = merged(smoothed, 1, (model((0.4, 0.0)), 7), start=start)["fusion_gamma"]
    assert found == pytest.approx([0.49, -0.9], abs=1e-7)
    later = merged(smoothed, 2, (model((0.4, 0.0)), 7), start=model((9.0, 9.0)))["fusion_gamma"]
    assert later == pytest.approx([0.481, -0.81], abs=1e-7)


def test_a_round_that_is_tried_again_begins_with_the_same_past() -> None:
    smoothed, start = merging(), model((0.5,))
    begin(smoothed, 1, start)
    smoothed.fold(1, GroupModel(0, (0,), frozenset({0}), 7, model((9.0,)), {}))
    assert merged(smoothed, 1, (model((0.4,)), 7), start=start)["fusion_gamma"].item() == pytest.approx(0.49)


@pytest.mark.parametrize(("options", "share"), [({}, 0.25), ({"weighted": "false"}, 0.5)])
def test_other_tensors_are_the_mean_by_samples_or_the_plain_one(options: dict[str, str], share: float) -> None:
    found = merged(merging(**options), 1, (model((1.0,), 8.0), 1), (model((0.0,), 4.0), 3))
    assert found["w"].tolist() == [4 + 4 * share]
    assert found["fusion_gamma"].tolist() == f32((1 - 0.9) * share)


def test_without_a_past_it_is_the_mean() -> None:
    smoothed = merging(mu="0")
    assert merged(smoothed, 1, (model((0.5,)), 1))["fusion_gamma"].tolist() == [0.5]
    assert merged(smoothed, 2, (model((0.25,)), 1))["fusion_gamma"].tolist() == [0.25]


def test_a_model_without_gamma_is_the_mean() -> None:
    smoothed = merging()
    for number in (1, 2):
        found = merged(smoothed, number, (model((3.0,), 1.0, "fusion_weight"), 1))
        assert (found["fusion_weight"].tolist(), found["w"].tolist()) == ([3.0], [1.0])
    assert smoothed.state() == ({}, {})


def test_gamma_is_kept_in_float64_across_rounds_and_resumes() -> None:
    rng = np.random.default_rng(0)
    undisturbed, resumed, gamma = merging(), merging(), np.zeros(3)
    for number in range(1, 30):
        own = rng.normal(size=3).astype(np.float32)
        saved, tensors = resumed.state()
        resumed = merging()
        resumed.restore(json.loads(json.dumps(saved)), {name: array.copy() for name, array in tensors.items()})
        found = [merged(one, number, (model(tuple(own)), 5))["fusion_gamma"] for one in (undisturbed, resumed)]
        gamma = (1 - 0.9) * own.astype(np.float64) + 0.9 * gamma
        assert found[0].tobytes() == found[1].tobytes() == gamma.astype(np.float32).tobytes()
        (kept,) = resumed.state()[1].values()
        assert kept.tobytes() == gamma.tobytes()


def test_a_round_in_which_nobody_trained_leaves_gamma_as_it_was() -> None:
    smoothed = merging()
    merged(smoothed, 1, (model((0.5,)), 1))
    begin(smoothed, 2, model((0.05,)))
    begin(smoothed, 3, model((0.05,)))
    assert merged(smoothed, 3, (model((0.4,)), 1))["fusion_gamma"].item() == pytest.approx(0.085)
