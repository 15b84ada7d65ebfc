"""Discriminate when clients fail, lie, stall or go away in the middle of it: the others' distances are found."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import numpy as np
import pytest

from fedgsp.discriminators import LARGEST
from fedgsp.messages import (
    Cancel,
    Discriminate,
    Discriminated,
    Evaluated,
    Failure,
    FailureCode,
    GroupResult,
    TensorSpec,
)
from fedgsp.tensors.weights import Weights, WeightsError
from group_manager.programs import discriminate
from tests.support.faults import Faults
from tests.support.scene import Scene, hosted, scene
from tests.support.scripted_networks import NETWORK_BYTES, Answer, Script, plan, stack

#: Client 1 is the one that goes wrong.
THREE = hosted(n1=[0, 2], n2=[1])
KINDS = pytest.mark.parametrize("shared", [False, True], ids=["pairs", "shared"])


@asynccontextmanager
async def discriminating(script: Script, faults: Faults | None = None) -> AsyncIterator[Scene]:
    async with scene(faults) as play:
        await play.attach(THREE)
        for node in play.nodes.values():
            node.script = script
        yield play


async def distances(play: Scene, **how: object) -> np.ndarray:
    """What is found; nobody keeps anything else."""
    fields = {"exchanges": 4, "judge_every": 2, **how}
    outcome = await play.run(THREE, "discriminate", start=None, discrimination=plan(**fields))  # type: ignore[arg-type]
    assert isinstance(outcome, GroupResult), outcome
    assert outcome.ref is not None
    found = np.array((await play.store.get(outcome.ref.id)).arrays["distances"])
    play.assert_released(here=1)
    return found


def right(client: int, exchange: int, other: int) -> int:
    """Distances of 0.2, 0.4 and 0.6 for the pairs (0, 1), (0, 2) and (1, 2)."""
    return 50 + 10 * (client + other)


#: Without client 1; found by all exchanges of the others.
OTHERS = np.array([[0, 1, 0.4], [1, 0, 1], [0.4, 1, 0]])


def failing(client: int, at: int) -> Script:
    async def fail(asked: int, exchange: int) -> None:
        if (asked, exchange) == (client, at):
            raise WeightsError(FailureCode.TASK_RAISED, "the camera broke")

    return Script(right, before=fail)


@KINDS
@pytest.mark.parametrize("at", [0, 1, 2, 3, 4])
async def test_a_failed_client_is_reported_once_and_the_others_continue(at: int, shared: bool) -> None:
    """At once, when it is to judge first, between two judgements, at the second, and when all is trained."""
    script = failing(1, at)
    async with discriminating(script) as play:
        assert await distances(play, shared=shared) == pytest.approx(OTHERS)
        assert play.skipped == {1: Failure(FailureCode.TASK_RAISED, "the camera broke")}
        assert [script.exchanges(client) for client in range(3)] == [
            list(range(5)),
            list(range(at + 1)),
            list(range(5)),
        ]


@KINDS
async def test_a_client_that_fails_at_the_last_judgement_is_not_known(shared: bool) -> None:
    async with discriminating(failing(1, 4)) as play:
        assert await distances(play, shared=shared, judge_every=1) == pytest.approx(OTHERS)


async def test_a_client_that_fails_when_its_pairs_have_stopped_is_not_asked_so_is_known() -> None:
    script = failing(1, 3)
    script.right = lambda client, exchange, other: (
        right(client, exchange, other) + (0 if 1 in (client, other) else exchange)
    )
    async with discriminating(script) as play:
        found = await distances(play, judge_every=1, patience=1)
        assert found == pytest.approx(np.array([[0, 0.2, 0.48], [0.2, 0, 0.6], [0.48, 0.6, 0]]))
        assert play.skipped == {}
        assert script.exchanges(1) == [0, 1, 2]


@KINDS
@pytest.mark.parametrize("at", [0, 2])
async def test_if_all_clients_fail_no_distance_is_known_and_each_failure_is_reported(at: int, shared: bool) -> None:
    async def fail(client: int, exchange: int) -> None:
        if exchange == at:
            raise WeightsError(FailureCode.TASK_RAISED, "the power went")

    script = Script(right, before=fail)
    async with discriminating(script) as play:
        assert (await distances(play, shared=shared)).tolist() == [[0, 1, 1], [1, 0, 1], [1, 1, 0]]
        assert set(play.skipped) == {0, 1, 2}
        assert max(asked.exchange for asked in script.asked) == at


@KINDS
async def test_the_last_client_but_one_to_fail_ends_it(shared: bool) -> None:
    async def fail(client: int, exchange: int) -> None:
        if client == exchange > 0:
            raise WeightsError(FailureCode.TASK_RAISED, "one after the other")

    script = Script(right, before=fail)
    async with discriminating(script) as play:
        assert (await distances(play, shared=shared, exchanges=20)).tolist() == [[0, 1, 1], [1, 0, 1], [1, 1, 0]]
        assert set(play.skipped) == {1, 2}
        assert script.exchanges(0) == [0, 1, 2]


# --- nodes


@KINDS
@pytest.mark.parametrize("at", [0, 1, 2])
async def test_a_lost_nodes_client_is_left_out(at: int, shared: bool) -> None:
    async def lose(client: int, exchange: int) -> None:
        if (client, exchange) == (1, at):
            await play.nodes["n2"].leave()
            raise asyncio.CancelledError

    async with discriminating(Script(right, before=lose)) as play:
        assert await distances(play, shared=shared) == pytest.approx(OTHERS)
        failure = play.skipped[1]
        assert failure is not None
        assert failure.code is FailureCode.NODE_LOST


@KINDS
@pytest.mark.parametrize("back", [False, True])
async def test_a_node_lost_while_its_networks_are_collected_is_left_out(back: bool, shared: bool) -> None:
    faults = Faults().restart_node_when_collected("n2") if back else Faults().lose_node_when_collected("n2")
    async with discriminating(Script(right), faults) as play:
        assert await distances(play, shared=shared) == pytest.approx(OTHERS)
        assert set(play.skipped) == {1}


@KINDS
async def test_networks_that_never_come_up_are_waited_for_so_long_and_left_out(shared: bool) -> None:
    async with discriminating(Script(right), Faults().never_send_up("n2")) as play:
        assert await distances(play, shared=shared) == pytest.approx(OTHERS)
        failure = play.skipped[1]
        assert failure is not None
        assert failure.code is FailureCode.STALLED


@KINDS
async def test_a_stalled_client_is_called_off_at_once_and_left_out(shared: bool) -> None:
    async with scene(Faults().stall(0)) as play:
        await play.attach(THREE)
        for node in play.nodes.values():
            node.script = Script(right)
        found = await distances(play, shared=shared)
        assert found == pytest.approx(np.array([[0, 1, 1], [1, 0, 0.6], [1, 0.6, 0]]))
        orders = [order for order in play.nodes["n1"].orders if order.key and order.key.task == "discriminate"]
        said = [(type(order.work), order.key and (order.key.position, order.key.attempt)) for order in orders]
        assert said.index((Cancel, (0, 0))) < said.index((Discriminate, (2, 1)))
        failure = play.skipped[0]
        assert failure is not None
        assert failure.code is FailureCode.STALLED


@KINDS
async def test_a_client_that_is_slow_but_moves_is_waited_for(shared: bool) -> None:
    async with discriminating(Script(right), Faults().crawl(1)) as play:
        assert (await distances(play, shared=shared))[0] == pytest.approx(np.array([0, 0.2, 0.4]))
        assert play.skipped == {}


# --- answers that cannot be used


def lying(lie: Callable[[Discriminated, Weights | None], Answer], at: int = 1) -> Script:
    def change(client: int, exchange: int, answer: Discriminated, made: Weights | None) -> Answer:
        return lie(answer, made) if (client, exchange) == (1, at) else (answer, made)

    return Script(right, change=change)


def doubled(made: Weights) -> Weights:
    specs = tuple(TensorSpec(spec.name, "float64", spec.shape) for spec in made.tensors)
    return Weights.of(made.arrays, specs)


def with_nan(made: Weights) -> Weights:
    made.arrays["w"][0, 0] = np.nan
    return made


def huge(made: Weights) -> Weights:
    made.arrays["w"][0, 0] = -1.01 * LARGEST
    return made


def wider(made: Weights) -> Weights:
    rows = len(made.arrays["w"])
    specs = (TensorSpec("w", "float32", (rows, 5)), TensorSpec("b", "float32", (rows, 2)))
    return Weights.of({"w": np.ones((rows, 5)), "b": np.ones((rows, 2))}, specs)


@KINDS
@pytest.mark.parametrize("at", [0, 1, 2])
@pytest.mark.parametrize(
    ("spoil", "code"),
    [
        (wider, FailureCode.WRONG_SHAPES),
        (doubled, FailureCode.WRONG_SHAPES),
        (lambda made: stack(1, 2, 3), FailureCode.WRONG_SHAPES),
        (lambda made: stack(), FailureCode.WRONG_SHAPES),
        (lambda made: Weights.of({}, ()), FailureCode.WRONG_SHAPES),
        (huge, FailureCode.WRONG_SHAPES),
        (with_nan, FailureCode.NOT_FINITE),
    ],
    ids=["other shapes", "another dtype", "too many rows", "no rows", "nothing", "out of bounds", "NaN"],
)
async def test_networks_that_cannot_be_used_leave_their_client_out(
    spoil: Callable[[Weights], Weights], code: FailureCode, at: int, shared: bool
) -> None:
    def lie(answer: Discriminated, made: Weights | None) -> Answer:
        assert made is not None
        return answer, spoil(made)

    async with discriminating(lying(lie, at)) as play:
        assert await distances(play, shared=shared) == pytest.approx(OTHERS)
        assert {client: failure and failure.code for client, failure in play.skipped.items()} == {1: code}


async def test_pairs_that_are_too_many_to_be_held_here_are_refused_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held = 3 * 2 * NETWORK_BYTES  # three clients of two networks each
    monkeypatch.setattr(discriminate, "MOST_BYTES", held - 1)
    async with discriminating(script := Script(right)) as play:
        assert (await distances(play)).tolist() == [[0, 1, 1], [1, 0, 1], [1, 1, 0]]
        assert [failure and failure.code for failure in play.skipped.values()] == [FailureCode.TOO_LONG] * 3
        assert all("use distance=shared" in str(failure) for failure in play.skipped.values())
        assert {asked.exchange for asked in script.asked} == {0}


@pytest.mark.parametrize(("shared", "less"), [(False, 0), (True, 1)])
async def test_pairs_that_can_be_held_and_a_shared_network_are_not_refused(
    shared: bool, less: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    networks = 1 if shared else 2
    monkeypatch.setattr(discriminate, "MOST_BYTES", 3 * networks * NETWORK_BYTES - less)
    async with discriminating(Script(right)) as play:
        assert (await distances(play, shared=shared))[0] == pytest.approx(np.array([0, 0.2, 0.4]))
        assert play.skipped == {}


@KINDS
async def test_the_first_client_does_not_decide_what_networks_look_like(shared: bool) -> None:
    def change(client: int, exchange: int, answer: Discriminated, made: Weights | None) -> Answer:
        return (answer, wider(made)) if client == 0 and made is not None else (answer, made)

    async with discriminating(Script(right, change=change)) as play:
        assert await distances(play, shared=shared) == pytest.approx(np.array([[0, 1, 1], [1, 0, 0.6], [1, 0.6, 0]]))
        assert {client: failure and failure.code for client, failure in play.skipped.items()} == {
            0: FailureCode.WRONG_SHAPES
        }


@KINDS
@pytest.mark.parametrize("correct", [(), (60,), (60, 60, 60, 60), (60, 101), (101, 60), (60, 101, 60)])
async def test_counts_that_cannot_be_leave_their_client_out(correct: tuple[int, ...], shared: bool) -> None:
    def lie(answer: Discriminated, made: Weights | None) -> Answer:
        return Discriminated(answer.ref, correct, 100, answer.source, answer.bytes), made

    async with discriminating(lying(lie)) as play:
        assert await distances(play, shared=shared) == pytest.approx(OTHERS)
        assert {client: failure and failure.code for client, failure in play.skipped.items()} == {
            1: FailureCode.BAD_ORDER
        }


async def test_counts_in_an_exchange_without_judgements_are_ignored() -> None:
    def lie(answer: Discriminated, made: Weights | None) -> Answer:
        return Discriminated(answer.ref, (999,), 1, answer.source, answer.bytes), made

    async with discriminating(lying(lie, at=2)) as play:
        assert (await distances(play))[1] == pytest.approx(np.array([0.2, 0, 0.6]))
        assert play.skipped == {}


@KINDS
@pytest.mark.parametrize(("answer", "said"), [(None, "nothing"), (Evaluated(1, 2, 3.0), "Evaluated")])
async def test_another_answer_than_was_asked_for_leaves_its_client_out(
    answer: Evaluated | None, said: str, shared: bool
) -> None:
    async with discriminating(lying(lambda _, made: (answer, made))) as play:
        assert await distances(play, shared=shared) == pytest.approx(OTHERS)
        why = f"node n2: it answered {said} in place of Discriminated"
        assert play.skipped == {1: Failure(FailureCode.BAD_ORDER, why)}


# --- called off


@KINDS
@pytest.mark.parametrize("at", [0, 1, 3])
async def test_what_is_called_off_half_way_leaves_nothing_behind(at: int, shared: bool) -> None:
    reached = asyncio.Event()

    async def wait(client: int, exchange: int) -> None:
        if (client, exchange) == (1, at):
            reached.set()
            await asyncio.Event().wait()

    script = Script(right, before=wait)
    async with discriminating(script) as play:
        how = plan(shared=shared, exchanges=4, judge_every=2)
        running = asyncio.create_task(play.run(THREE, "discriminate", start=None, discrimination=how))
        await reached.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        play.assert_released()
        assert play.nodes["n2"].called_off.is_set()
