"""What some schemes need of the model: a head and something beside it, or a layer that returns features."""

from __future__ import annotations

from typing import Any

import pytest

from fedgsp.errors import ConfigError
from fedgsp.messages import Additions, TensorSpec
from fedgsp.settings.run import RunConfig
from top_server.choosing import additions, check_additions, check_head, choose
from top_server.schemes import SCHEMES


def specs(*heads: bool) -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec(f"{number}", "float32", (2,), head=head) for number, head in enumerate(heads))


@pytest.mark.parametrize(
    ("heads", "what"), [((False, False), "has no classifier head"), ((True, True), "is all classifier head")]
)
def test_a_model_without_a_head_or_without_anything_else_is_refused(heads: tuple[bool, ...], what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        check_head(SCHEMES["hcct-p"], specs(*heads))
    check_head(SCHEMES["hcct"], specs(*heads))


def test_a_head_beside_shared_layers_is_what_they_need() -> None:
    check_head(SCHEMES["hcct-p"], specs(False, True))


def test_a_model_without_features_or_with_tensors_of_the_same_names_cannot_be_extended() -> None:
    features = TensorSpec("5", "float32", (64,))
    with pytest.raises(ConfigError, match="the task names no layer that returns them") as caught:
        check_additions(SCHEMES["fedfusion"], None, specs(False, True), specs(False, True))
    assert "set `extractor` in the task" in caught.value.remedy
    own = specs(False, True)
    gamma = TensorSpec("fusion_gamma", "float32", (64,))
    with pytest.raises(ConfigError, match="training fedfusion adds a tensor 'fusion_gamma', and the model has one"):
        check_additions(SCHEMES["fedfusion"], features, (*own, gamma), (*own, gamma, gamma))
    check_additions(SCHEMES["fedfusion"], features, own, (*own, gamma))
    check_additions(SCHEMES["fedavg"], None, own, own)


def test_a_model_with_a_name_of_the_state_of_an_optimiser_is_refused() -> None:
    own = (*specs(False, True), TensorSpec("optimizer/odd", "float32", (2,)))
    added = TensorSpec("optimizer/step/0", "float64", ())
    with pytest.raises(ConfigError, match="the state of the optimiser adds a tensor 'optimizer/odd'"):
        check_additions(SCHEMES["fedavg"], None, own, (*own, added))
    check_additions(SCHEMES["fedavg"], None, own, own)


def test_what_adds_tensors_is_told_to_nodes() -> None:
    def told(**changed: Any) -> Additions:
        config = RunConfig(**changed)
        return additions(config, choose(config))

    assert told(scheme="fedfusion", training_option={"operator": "multi"}) == Additions(
        "fedfusion", {"operator": "multi"}
    )
    assert told(scheme="fedprox", training_option={"mu": "1"}) == Additions()
    assert told(optimizer="adam", optimizer_option={"beta1": "0.8"}) == Additions()
    relayed = told(optimizer="adam", optimizer_option={"beta1": "0.8"}, optimizer_state="relayed")
    assert relayed == Additions("", {}, "adam", {"beta1": "0.8"})
