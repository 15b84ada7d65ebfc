"""A check says what the policy of a node would refuse, before the run has begun."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from fedgsp.messages import HostedClient, TensorSpec, WouldTake
from fedgsp.report import State
from fedgsp.settings.policy import UNLIMITED, Policy, Works
from fedgsp.settings.run import RunConfig
from fedgsp_node.check.facts import Unchecked
from fedgsp_node.check.orders import refused_orders
from tests.support.checked import checked, found
from top_server.asked import asked
from top_server.choosing import choose
from top_server.schemes import SCHEMES

ROOT = Path(__file__).parents[3]
HOSTED = (HostedClient(3, 40, 10), HostedClient(4, 12, 2))
TENSORS = (TensorSpec("w", "float32", (1000,)),)


def told(policy: Policy, clients: tuple[HostedClient, ...] = HOSTED, **settings: Any) -> tuple[str, ...]:
    config = RunConfig(**settings)
    reasons = refused_orders(WouldTake(False, False, *asked(config, choose(config))), policy, clients, TENSORS)
    assert isinstance(reasons, tuple)
    return reasons


@pytest.mark.parametrize(
    ("scheme", "allow", "flag"),
    [
        ("fedgsp", {}, ""),
        ("hcct", {}, "(--allow reveal=exact)"),
        ("hcct", {"reveal": "exact"}, ""),
        ("fedcollab", {}, "(--allow work=discriminate)"),
        ("fedcollab", {"work": "discriminate"}, ""),
    ],
)
async def test_a_check_names_the_flag_that_a_scheme_needs(scheme: str, allow: dict[str, str], flag: str) -> None:
    async with checked(scheme=scheme) as top:
        line = (await found(top.address, policy=None, allow=allow))["orders"]
    assert line.state is (State.BAD if flag else State.GOOD)
    assert flag in line.words


async def test_a_node_that_the_top_server_refuses_is_told_to_look_at_the_admission() -> None:
    async with checked(task="another") as top:
        lines = await found(top.address)
    assert lines["admission"].state is State.BAD
    assert (lines["orders"].state, lines["orders"].words) == (State.UNCHECKED, "see admission")


async def test_without_the_top_server_the_orders_are_not_known() -> None:
    async with checked(asked=None) as top:
        assert (await found(top.address))["orders"].state is State.UNCHECKED
        gone = top.address
    assert (await found(gone))["orders"].state is State.UNCHECKED


def test_the_schemes_that_the_default_policy_refuses_are_those_of_the_page() -> None:
    page = (ROOT / "docs" / "policy.md").read_text(encoding="utf-8")
    needs = page.partition("## What each scheme needs")[2].partition("## The keys")[0]
    rows = [line for line in needs.splitlines() if "`--allow " in line.split(" | ")[1 if " | " in line else 0]]
    named = {name for row in rows for name in re.findall(r"`([\w-]+)`", row.split(" | ")[0])}
    assert named == {scheme for scheme in SCHEMES if told(Policy(), scheme=scheme)}


@pytest.mark.parametrize(
    ("policy", "settings", "part"),
    [
        (Policy(least_batch_size=8), {"batch_size": 5}, "batches of 5"),
        (Policy(most_learning_rate=0.1), {"learning_rate": 0.5}, "learning rate 0.5"),
        (Policy(most_epochs=3), {"local_epochs": 4}, "4 local epochs"),
        (Policy(work=Works(("train", "evaluate", "initialise"))), {}, "work of kind describe"),
        (Policy(work=Works(("evaluate", "describe", "initialise"))), {}, "work of kind train"),
        (Policy(least_samples=20), {}, "12 training samples"),
        (Policy(least_samples=20), {"scheme": "ifca"}, "12 training samples"),
        (Policy(least_samples=20), {"scheme": "fesem"}, "12 training samples"),
        (Policy(), {"scheme": "maxfl", "rounds": 1200}, "1200 local epochs"),
        (Policy(work=Works(kind for kind in Policy().work if kind != "retain")), {"scheme": "fesem"}, "kind retain"),
        (Policy(work=Works(kind for kind in Policy().work if kind != "initialise")), {}, "kind initialise"),
        (Policy(optimizer_state=Works(("fresh",))), {"optimizer": "adam", "optimizer_state": "kept"}, "state 'kept'"),
    ],
)
def test_other_limits_of_a_policy_are_compared_too(policy: Policy, settings: dict[str, Any], part: str) -> None:
    (reason,) = told(policy, **settings)
    assert part in reason
    assert told(UNLIMITED, **settings) == ()


def test_a_client_with_fewer_samples_than_a_batch_counts_as_such_a_batch() -> None:
    assert told(Policy(least_batch_size=4), (HostedClient(1, 3, 1),), scheme="fedavg", batch_size=5)


def test_the_last_batches_of_all_clients_count() -> None:
    decayed = {"scheme": "fedavg", "batch_size": 5, "optimizer": "sgd", "learning_rate": 1.0}
    whole, odd = HostedClient(1, 10, 1), HostedClient(2, 26, 1)
    for options, clients, refused in (
        ({"weight_decay": "0.9"}, (whole, odd), True),
        ({"weight_decay": "0.9"}, (odd, whole), True),
        ({"weight_decay": "0.9"}, (whole,), False),
        ({"weight_decay": "0.1"}, (whole, odd), False),
    ):
        reasons = told(Policy(), clients, **decayed, optimizer_option=options)
        assert [("a step on 1 sample" in reason) for reason in reasons] == [True] * refused


@pytest.mark.parametrize("kind", ["x" * 5000, "\x1b[2J", "dream"])
def test_a_kind_of_work_that_nobody_knows_is_told_in_a_short_line(kind: str) -> None:
    taken = WouldTake(False, False, asked(RunConfig(), choose(RunConfig())).trainings, (kind,) * 50)
    reasons = refused_orders(taken, Policy(), HOSTED, TENSORS)
    assert isinstance(reasons, tuple)
    (reason,) = reasons
    assert "does not know" in reason
    assert reason.isprintable()
    assert len(reason) < 600


def test_a_top_server_that_says_nothing_leaves_the_line_open() -> None:
    assert isinstance(refused_orders(WouldTake(False, False), Policy(), HOSTED, TENSORS), Unchecked)
