"""A client that trains a second time in a round, since its first result was lost: as if there had been no first."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedgsp.messages import OptimizerSettings, OutgoingStep, Start, Train, TrainingSettings
from fedgsp_node.kept.personal_state import HEAD, OPTIMIZER, PERSONAL_MODEL
from tests.support.trainings import KEEPING
from tests.support.working import HERE, Node, node

#: What a client keeps to itself, and with which algorithm, and whether its head is its own.
KINDS = pytest.mark.parametrize(
    ("purpose", "algorithm", "own_head"),
    [
        *((PERSONAL_MODEL, name, False) for name in KEEPING),
        *[(PERSONAL_MODEL, "ditto", True), (HEAD, "sgd", True)],
        *[(OPTIMIZER, "sgd", False), (OPTIMIZER, "sgd", True), (OPTIMIZER, "ditto", False)],
    ],
)


async def train(
    n: Node, number: int, algorithm: str, own_head: bool, attempt: str = "", purpose: str = ""
) -> np.ndarray:
    """What client 1 sends after a round whose start does not depend on the rounds before."""
    weights = n.clients.initial_weights(10 + number)
    start, end = f"start {number}", f"end {number}{attempt}"
    n.store.put(start, weights.part(n.clients.shared) if own_head else weights)
    keeping = OptimizerSettings("adam", state="kept") if purpose == OPTIMIZER else None
    settings = TrainingSettings(algorithm, 1, 4, 0.05, seed=3, optimizer=keeping)
    work = Train(
        Start(start, HERE, without_head=own_head),
        end,
        settings,
        outgoing=(OutgoingStep("head"),) if own_head else (),
    )
    await n.do(work, client=1, round_number=number)
    return (await n.store.get(end)).buffer


def kept(n: Node, purpose: str) -> dict[str, np.ndarray]:
    found = n.clients.personal.get(1, purpose)
    assert found is not None
    return {name: array.copy() for name, array in found[1].items()}


def same(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> bool:
    return one.keys() == other.keys() and all(np.array_equal(array, other[name]) for name, array in one.items())


@KINDS
@pytest.mark.parametrize("twice", [1, 2, 3])
async def test_training_twice_in_a_round_gives_the_bits_of_once_then_and_afterwards(
    twice: int, purpose: str, algorithm: str, own_head: bool
) -> None:
    async with node() as once, node() as again:
        before = None
        for number in (1, 2, 3):
            expected = await train(once, number, algorithm, own_head, purpose=purpose)
            found = await train(again, number, algorithm, own_head, purpose=purpose)
            if number == twice:
                found = await train(again, number, algorithm, own_head, attempt=" again", purpose=purpose)
            assert np.array_equal(found, expected)
            after = kept(once, purpose)
            assert same(kept(again, purpose), after)
            assert before is None or not same(before, after)  # every round learns something
            before = after


@KINDS
@pytest.mark.parametrize("twice", [1, 2])
async def test_so_it_does_on_a_node_that_was_restarted_in_between(
    twice: int, purpose: str, algorithm: str, own_head: bool, tmp_path: Path
) -> None:
    async with node() as once:
        for number in range(1, twice + 1):
            expected = await train(once, number, algorithm, own_head, purpose=purpose)
        async with node(state_dir=tmp_path) as first:
            for number in range(1, twice + 1):
                await train(first, number, algorithm, own_head, purpose=purpose)
        async with node(state_dir=tmp_path) as again:
            assert np.array_equal(await train(again, twice, algorithm, own_head, purpose=purpose), expected)
            assert same(kept(again, purpose), kept(once, purpose))


@pytest.mark.parametrize(("purpose", "algorithm", "own_head"), [(PERSONAL_MODEL, "ditto", False), (HEAD, "sgd", True)])
async def test_a_round_that_a_client_missed_is_no_hindrance(purpose: str, algorithm: str, own_head: bool) -> None:
    async with node() as once, node() as again:
        for n in (once, again):
            await train(n, 1, algorithm, own_head, purpose=purpose)
            await train(n, 5, algorithm, own_head, purpose=purpose)
        await train(again, 5, algorithm, own_head, attempt=" again", purpose=purpose)
        assert same(kept(again, purpose), kept(once, purpose))
