"""Parallel with other ends than the mean: FedNova, and models that stay with the clients that trained them."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest

from fedgsp.messages import (
    Failure,
    FailureCode,
    GroupResult,
    MemberDone,
    ModelRef,
    Part,
    RelayMode,
    Results,
    Train,
    Trained,
)
from tests.support.faults import Faults
from tests.support.scene import START, Scene, hosted, scene, step
from tests.support.scripted import model, value_of

pytestmark = pytest.mark.usefixtures("_both_ways")

TWO = hosted(n1=[0], n2=[1])
SIX = hosted(n1=[0, 2, 4], n2=[1, 3, 5])
TARGETS = (0.0, 4.0)
STEPS = {0: 1, 1: 3}


def toy(client: int, w: float) -> float:
    for _ in range(STEPS[client]):
        w -= 0.1 * (w - TARGETS[client])
    return w


def steps(play: Scene, told: dict[int, float]) -> None:
    for node in play.nodes.values():
        node.steps = told


# --- FedNova


@pytest.mark.parametrize("relay", [RelayMode.AUTO, RelayMode.MANAGER])
async def test_fednova_gives_the_published_value_of_the_toy_problem(relay: RelayMode) -> None:
    async with scene(rule=toy, samples={0: 1, 1: 3}) as play:
        await play.attach(TWO)
        steps(play, {0: 1, 1: 3})
        outcome = await play.run(TWO, "parallel", aggregation="fednova", relay=relay)
        assert await play.result(outcome) == pytest.approx(1.445625, abs=1e-12)
        assert isinstance(outcome, GroupResult)
        assert outcome.samples == 4


@pytest.mark.parametrize("name", ["", "mean"])
async def test_without_a_name_it_is_the_mean_whatever_the_steps(name: str) -> None:
    async with scene(rule=toy, samples={0: 1, 1: 3}) as play:
        await play.attach(TWO)
        steps(play, {0: 1, 1: 3})
        assert await play.result(await play.run(TWO, "parallel", aggregation=name)) == pytest.approx(1.58475)


async def test_an_aggregation_that_is_not_known_is_refused_with_those_that_are_and_nobody_trains() -> None:
    async with scene() as play:
        outcome = await play.run(TWO, "parallel", aggregation="mode")
        assert outcome == Failure(
            FailureCode.BAD_ORDER, "there is no aggregation 'mode'; known: mean, fednova, median, trimmed-mean, ida"
        )
        assert play.trained == []


async def test_fednova_steps_from_a_start_that_was_made_of_parts() -> None:
    async with scene(rule=toy, samples={0: 1, 1: 3}) as play:
        await play.attach(TWO)
        steps(play, {0: 1, 1: 3})
        play.top_server.put("shared", model(0.0))
        play.nodes["n2"].store.put("own", model(4.0))
        parts = (Part(model(0.0).ref("shared"), "", 3.0), Part(model(4.0).ref("own"), "n2", 1.0))
        outcome = await play.run(TWO, "parallel", aggregation="fednova", start=ModelRef("of parts"), parts=parts)
        assert isinstance(outcome, GroupResult)
        assert outcome.ref is not None
        assert value_of(await play.store.get(outcome.ref.id)) == pytest.approx(1.445625, abs=1e-12)
        assert [len(store) for store in (play.store, play.nodes["n1"].store, play.nodes["n2"].store)] == [1, 0, 1]


@pytest.mark.parametrize(
    ("told", "code"),
    [
        ({0: 1}, FailureCode.WRONG_SHAPES),
        ({0: 1, 1: -3}, FailureCode.BAD_ORDER),
        ({0: 1, 1: 1e-300}, FailureCode.BAD_ORDER),
        ({0: 1, 1: float("inf")}, FailureCode.BAD_ORDER),
    ],
)
async def test_a_client_without_steps_is_left_out(told: dict[int, float], code: FailureCode) -> None:
    async with scene(rule=toy, samples={0: 1, 1: 3}) as play:
        await play.attach(TWO)
        steps(play, told)
        outcome = await play.run(TWO, "parallel", aggregation="fednova")
        assert await play.result(outcome) == pytest.approx(0.9)
        failure = play.skipped[1]
        assert failure is not None
        assert failure.code is code
        assert play.done == [0]


async def test_a_start_that_cannot_be_had_again_fails_the_group() -> None:
    async with scene(Faults().hold(1, until=0), rule=toy) as play:
        await play.attach(TWO)
        steps(play, {0: 1, 1: 3})
        running = asyncio.create_task(play.run(TWO, "parallel", aggregation="fednova"))
        await play.holding.wait()
        play.top_server.release(["start"])
        play.top_server.fail("start", Failure(FailureCode.NO_SUCH_MODEL, "forgotten"))
        outcome = await running
        assert isinstance(outcome, Failure)
        assert outcome.code is FailureCode.NO_SUCH_MODEL
        play.assert_released()


async def test_if_nobody_can_be_counted_the_reason_is_told() -> None:
    async with scene() as play:
        outcome = await play.run(TWO, "parallel", aggregation="fednova")
        assert isinstance(outcome, Failure)
        assert "no member trained; the last reason: it says that it took 0.0 local steps" in outcome.detail
        play.assert_released()


# --- inverse distances

THREE = hosted(n1=[0, 2], n2=[1])


def weighted(found: list[float], factors: list[float]) -> float:
    mean = sum(found) / len(found)
    weights = [factor / (abs(mean - one) + 1e-12) for factor, one in zip(factors, found, strict=True)]
    return sum(weight * one for weight, one in zip(weights, found, strict=True)) / sum(weights)


@pytest.mark.parametrize("times", ["plain", "samples", "intrac"])
async def test_clients_far_from_the_mean_count_less(times: str) -> None:
    accuracies, samples = {0: 0.5, 1: 0.8, 2: 0.05}, {0: 1, 1: 3, 2: 6}
    async with scene(samples=samples) as play:
        await play.attach(THREE)
        for node in play.nodes.values():
            node.accuracies = accuracies
        outcome = await play.run(THREE, "parallel", aggregation="ida", aggregation_options={"times": times})
        inverse = [1 / one for one in accuracies.values()]
        factors: dict[str, list[float]] = {"plain": [1, 1, 1], "samples": [1, 3, 6], "intrac": inverse}
        found = [step(client, START) for client in (0, 1, 2)]
        assert await play.result(outcome) == pytest.approx(weighted(found, factors[times]), abs=1e-12)
        assert isinstance(outcome, GroupResult)
        assert len(play.store) == 1
        orders = [order.work for node in play.nodes.values() for order in node.orders]
        assert {work.measure_accuracy for work in orders if isinstance(work, Train)} == {times == "intrac"}


async def test_a_client_without_the_accuracy_that_was_asked_for_is_left_out() -> None:
    async with scene() as play:
        await play.attach(THREE)
        play.nodes["n1"].accuracies = {0: 0.5, 2: 0.25}
        options = {"times": "intrac"}
        outcome = await play.run(THREE, "parallel", aggregation="ida", aggregation_options=options)
        assert isinstance(outcome, GroupResult)
        assert play.done == [0, 2]
        failure = play.skipped[1]
        assert failure is not None
        assert "its training accuracy is 0" in failure.detail


# --- robust means


@pytest.mark.parametrize(("name", "options"), [("median", {}), ("trimmed-mean", {"trim": "0.4"})])
async def test_a_client_that_goes_astray_does_not_move_the_others_and_no_model_stays(
    name: str, options: dict[str, str]
) -> None:
    async with scene(rule=lambda client, w: -1e6 if client == 4 else step(client, w)) as play:
        await play.attach(SIX)
        five = play.request(SIX, "parallel", aggregation=name, aggregation_options=options)
        members = tuple(member for member in five.members if member.client != 0)
        outcome = await play.run_request(dataclasses.replace(five, members=members))
        assert await play.result(outcome) == step(2, START)
        assert isinstance(outcome, GroupResult)
        assert len(play.store) == 1


# --- retained models


def own_models(play: Scene) -> dict[int, str]:
    """What the clients that are done say they trained."""
    found = {}
    for event in play.events:
        if isinstance(event.kind, MemberDone) and isinstance(event.kind.result, Trained):
            assert event.kind.result.ref is not None
            found[event.kind.client] = event.kind.result.ref.id
    return found


async def held(play: Scene) -> dict[int, float]:
    """Values of the models that the clients' nodes hold, which must be all of them; the manager has the mean."""
    found = {}
    for client, model_id in own_models(play).items():
        (node,) = [node for node in play.nodes.values() if model_id in node.store]
        found[client] = value_of(await node.store.get(model_id))
    assert sum(len(node.store) for node in play.nodes.values()) == len(found)
    return found


@pytest.mark.parametrize(("results", "stay"), [(Results.RETAINED, True), (Results.UNSPECIFIED, False)])
async def test_models_that_are_retained_stay_with_their_clients_beside_the_mean(results: Results, stay: bool) -> None:
    async with scene() as play:
        outcome = await play.run(SIX, "parallel", results=results)
        assert isinstance(outcome, GroupResult)
        assert outcome.ref is not None
        total = sum((client + 1) * step(client, START) for client in range(6))
        assert value_of(await play.store.get(outcome.ref.id)) == pytest.approx(total / 21)
        assert len(play.store) == 1
        orders = [order.work for node in play.nodes.values() for order in node.orders]
        assert {work.retain for work in orders if isinstance(work, Train)} == {stay}
        if stay:
            assert await held(play) == {client: step(client, START) for client in range(6)}
        else:
            play.assert_released(here=1)


async def test_a_client_that_does_not_count_retains_its_model_too() -> None:
    async with scene() as play:
        await play.attach(TWO)
        request = play.request(TWO, "parallel", results=Results.RETAINED)
        members = (dataclasses.replace(request.members[0], weight=0.0), request.members[1])
        outcome = await play.run_request(dataclasses.replace(request, members=members))
        assert isinstance(outcome, GroupResult)
        assert outcome.ref is not None
        assert value_of(await play.store.get(outcome.ref.id)) == step(1, START)
        assert await held(play) == {client: step(client, START) for client in (0, 1)}


async def test_a_client_that_fails_retains_nothing_and_the_others_do() -> None:
    async with scene(Faults().fail(1)) as play:
        await play.run(SIX, "parallel", results=Results.RETAINED)
        assert sorted(await held(play)) == [0, 2, 3, 4, 5]


async def test_a_client_whose_model_did_not_come_is_not_said_to_hold_one() -> None:
    async with scene(Faults().never_send_up("n2")) as play:
        await play.run(TWO, "parallel", results=Results.RETAINED)
        assert set(own_models(play)) == {0}
        assert len(play.nodes["n2"].store) == 0


async def test_a_cancelled_group_leaves_only_the_models_that_clients_retain() -> None:
    async with scene(Faults().hold_for_good(3)) as play:
        running = asyncio.create_task(play.run(SIX, "parallel", results=Results.RETAINED))
        await play.told[2].wait()
        await play.holding.wait()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert await held(play) == {client: step(client, START) for client in range(3)}
        assert len(play.store) == 0
