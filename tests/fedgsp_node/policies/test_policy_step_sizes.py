"""A policy limits every step size that an order names, whatever part takes the step."""

from __future__ import annotations

import dataclasses

import pytest

from fedgsp.errors import ConfigError
from fedgsp.messages import Discriminate, Evaluate, OptimizerSettings, Work
from fedgsp.schedules import SCHEDULES, plan
from fedgsp.trainings import TRAININGS
from fedgsp_node.policies.policy import refusal
from fedgsp_node.policies.policy_file import policy_of
from fedgsp_node.policies.step_sizes import step_sizes
from tests.fedgsp_node.policies.test_policy import KNOWN, NETWORKS, SETTINGS, START, order, policy, trained


@pytest.mark.parametrize(
    "work",
    [
        trained(algorithm="pfedme", options={"personal_rate": "1e6", "lambda": "1e-7"}),
        trained(algorithm="pfedme", options={"lambda": "1e6"}),  # the shared model moves by 0.1 times as much
        trained(optimizer=OptimizerSettings("rprop", {"least_step": "1e6", "most_step": "1e7"})),
        Discriminate(None, "nets", (1,), dataclasses.replace(NETWORKS, learning_rate=11.0)),
        Discriminate(None, "nets", (1,), dataclasses.replace(NETWORKS, feature_scale=1e6)),
        Evaluate(
            START,
            settings=trained(algorithm="finetune", learning_rate=11.0).settings,
            personalised=True,
        ),
    ],
)
def test_a_step_size_beyond_the_limit_is_refused_wherever_it_stands(work: Work) -> None:
    allowed = {"work": "discriminate"}
    why = str(refusal(order(work), policy_of(None, allowed), KNOWN))
    assert "it asks for learning rate " in why
    assert "and most_learning_rate of the policy of this node is 10" in why
    assert refusal(order(work), policy_of(None, {**allowed, "most_learning_rate": "2e6"}), KNOWN) is None


def test_the_smallest_step_size_is_limited_too() -> None:
    slow = trained(algorithm="pfedme", options={"personal_rate": "0.001"})
    assert "it asks for learning rate 0.001, and least_learning_rate" in str(
        refusal(order(slow), policy(least_learning_rate="0.01"), KNOWN)
    )
    assert refusal(order(slow), policy(least_learning_rate="0.001"), KNOWN) is None


@pytest.mark.parametrize("name", sorted(TRAININGS))
def test_every_training_takes_steps_of_the_size_that_is_ordered(name: str) -> None:
    settings = dataclasses.replace(SETTINGS, algorithm=name, learning_rate=0.25)
    assert 0.25 in step_sizes(settings)
    assert refusal(order(trained(algorithm=name)), policy(), KNOWN) is None


@pytest.mark.parametrize("name", sorted(SCHEDULES))
def test_no_schedule_makes_steps_longer(name: str) -> None:
    chosen = plan(name, {"warmup": "3", "horizon": "20"})
    assert all(0 < chosen.factor(position, 20) <= 1 for position in range(20))


@pytest.mark.parametrize("options", [{"factor": "2"}, {"final": "2"}])
def test_a_schedule_with_a_factor_above_one_is_refused(options: dict[str, str]) -> None:
    with pytest.raises(ConfigError):
        plan("step" if "factor" in options else "linear", options)


def test_names_and_options_that_no_part_has_are_left_to_the_training() -> None:
    for settings in (
        dataclasses.replace(SETTINGS, algorithm="nobody"),
        dataclasses.replace(SETTINGS, options={"other": "1"}),
        dataclasses.replace(SETTINGS, optimizer=OptimizerSettings("nobody")),
    ):
        assert step_sizes(settings) == (0.1,)
