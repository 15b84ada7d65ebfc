"""What some schemes need of the model: a head and something beside it, or a layer that returns features."""

from __future__ import annotations

import pytest

from fedgsp.errors import ConfigError
from fedgsp.messages import TensorSpec
from fedgsp.settings.run import RunConfig
from top_server.choosing import check_extractor, check_head, choose, extending
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
        check_extractor(SCHEMES["fedfusion"], None, specs(False, True))
    assert "set `extractor` in the task" in caught.value.remedy
    twice = (*specs(False, True), *specs(False))
    with pytest.raises(ConfigError, match="training fedfusion adds a tensor '0', and the model has one of that name"):
        check_extractor(SCHEMES["fedfusion"], features, twice)
    check_extractor(SCHEMES["fedfusion"], features, specs(False, True))
    check_extractor(SCHEMES["fedavg"], None, twice)


def test_only_a_training_that_adds_tensors_is_told_to_nodes() -> None:
    chosen = choose(RunConfig(scheme="fedfusion", training_option={"operator": "multi"}))
    assert extending(chosen) == ("fedfusion", {"operator": "multi"})
    assert extending(choose(RunConfig(scheme="fedprox", training_option={"mu": "1"}))) == ("", {})
