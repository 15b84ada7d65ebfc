"""Steps that a policy requires: nothing of a training leaves the node but through all of them, in their order."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from fedgsp.messages import Additions, OptimizerSettings, OutgoingStep, Reveal, Train
from fedgsp_node.policies.policy import refusal, refused_run
from fedgsp_node.policies.required import Wanted, wanted_steps
from tests.fedgsp_node.policies.test_policy import KNOWN, SETTINGS, TRAIN, order, policy
from tests.support.outgoing_steps import install

REQUIRED = "clip.norm=1.0,noise.scale=0.5"
CLIP, NOISE, MASK = (
    OutgoingStep("clip", {"norm": "1.0"}),
    OutgoingStep("noise", {"scale": "0.5"}),
    OutgoingStep("mask"),
)
HEAD, ROUNDING = OutgoingStep("head"), OutgoingStep("rounding")


@pytest.fixture(autouse=True)
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch)


def reason(*steps: OutgoingStep, require: str = REQUIRED, **changes: Any) -> str:
    """Why an order with these steps is refused; empty if it is not."""
    work = dataclasses.replace(TRAIN, outgoing=steps, **changes)
    return str(refusal(order(work), policy(require=require), KNOWN) or "")


@pytest.mark.parametrize(
    "steps", [(CLIP, NOISE), (HEAD, MASK, CLIP, NOISE, ROUNDING), (CLIP, NOISE, MASK), (NOISE, CLIP, CLIP, NOISE)]
)
def test_required_steps_pass_directly_one_after_another_with_others_before_and_after(
    steps: tuple[OutgoingStep, ...],
) -> None:
    assert reason(*steps) == ""


@pytest.mark.parametrize("steps", [(NOISE, CLIP), (CLIP, MASK, NOISE), (NOISE, MASK, CLIP), (CLIP, CLIP, MASK, NOISE)])
def test_required_steps_in_another_order_or_with_others_between_are_refused(steps: tuple[OutgoingStep, ...]) -> None:
    why = reason(*steps)
    assert "would not pass clip.norm=1.0, noise.scale=0.5 directly one after another, and require of" in why
    assert why.endswith("(--policy)")


def test_a_step_that_is_taken_after_the_reveal_stands_between_no_others() -> None:
    assert reason(CLIP, ROUNDING, NOISE) == ""


def test_all_options_of_a_step_are_those_of_one_instance() -> None:
    both = "clip.norm=1.0,noise.scale=0.5,noise.other=1"
    assert "without step noise.scale=0.5,noise.other=1" in reason(CLIP, NOISE, require=both)
    twice = "clip.norm=1,clip.norm=2"
    assert reason(CLIP, OutgoingStep("clip", {"norm": "2"}), require=twice) == ""
    assert "directly one after another" in reason(OutgoingStep("clip", {"norm": "2"}), CLIP, require=twice)


def test_entries_become_steps_in_their_order() -> None:
    assert wanted_steps(["a", "a.x=1", "a.y=2", "b", "a.x=1"]) == (
        Wanted("a", (("x", "1"), ("y", "2"))),
        Wanted("b"),
        Wanted("a", (("x", "1"),)),
    )
    assert wanted_steps(["a.x=1", "a.x=2", "a"]) == (Wanted("a", (("x", "1"),)), Wanted("a", (("x", "2"),)))


def test_what_is_revealed_passes_the_required_steps_too() -> None:
    sketch = Reveal("sketch:64")
    assert reason(CLIP, NOISE, reveal=sketch) == ""
    assert "to reveal would leave without step rounding" in reason(ROUNDING, require="rounding", reveal=sketch)
    assert "to reveal would leave without step head" in reason(HEAD, require="head", reveal=sketch)
    assert reason(HEAD, require="head", reveal=Reveal("sketch:64", without_head=True)) == ""


def relayed(state: str) -> Train:
    settings = dataclasses.replace(SETTINGS, optimizer=OptimizerSettings("sgd", {"momentum": "0.9"}, state=state))
    return dataclasses.replace(TRAIN, settings=settings, outgoing=(CLIP, NOISE))


def test_the_state_of_an_optimiser_leaves_with_no_model_that_must_pass_steps() -> None:
    why = str(refusal(order(relayed("relayed")), policy(require=REQUIRED), KNOWN))
    assert "state of the optimiser would leave beside the trained model" in why
    assert "--optimizer-state kept or fresh" in why
    assert refusal(order(relayed("relayed")), policy(), KNOWN) is None
    for state in ("", "kept"):
        assert refusal(order(relayed(state)), policy(require=REQUIRED), KNOWN) is None


def test_a_node_that_requires_steps_joins_no_run_whose_models_carry_a_state() -> None:
    run = Additions("", {}, "sgd", {"momentum": "0.9"})
    assert "--optimizer-state kept or fresh" in str(refused_run("r1", run, policy(require=REQUIRED)))
    assert refused_run("r1", run, policy()) is None
    assert refused_run("r1", Additions("fedfusion"), policy(require=REQUIRED)) is None
