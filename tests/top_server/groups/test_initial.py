"""The initial model is asked for again where whoever made it, or holds it, is out of reach for a moment."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fedgsp.errors import RunError
from fedgsp.messages import Failure, FailureCode, GroupResult, TensorSpec
from fedgsp.weights import Weights
from tests.support.recorder import Recorder
from top_server.groups import initial
from top_server.groups.run import MOST_TRIES
from top_server.groups.task import GroupTask
from top_server.managers.client import BrokenOff
from top_server.progress import Progress

SPECS = (TensorSpec("w", "float32", (2,)),)
MODEL = Weights.of({"w": np.ones(2)}, SPECS)
FROZEN = Failure(FailureCode.UNREACHABLE, "ping timeout")
LOST = BrokenOff(FROZEN, lost=True)


class Answers:
    """A run whose managers answer the question for the initial model with these, one after the other."""

    def __init__(self, *taken: Weights | Failure | BrokenOff, made: GroupResult | Failure | None = None) -> None:
        self.journal, self.taken = Recorder(), list(taken)
        self.made = made or GroupResult(None, 0, 0, 0)
        self.tries: list[int] = []
        self.discarded: list[str] = []
        self.kept: dict[str, Weights] = {}
        self.nodes = {3: "a", 4: "a", 5: "b", 6: "c", 7: "d"}
        self.asked: list[tuple[int, ...]] = []

    @property
    def context(self) -> Any:
        async def here(*_: Any) -> bool:
            return bool(self.nodes)

        membership = SimpleNamespace(
            clients=self.nodes,
            tensors=SPECS,
            wait_for=here,
            member=lambda client: SimpleNamespace(node=self.nodes[client]),
        )
        return SimpleNamespace(
            tensors=SPECS,
            config=SimpleNamespace(join_timeout=1.0),
            membership=membership,
            journal=self.journal,
            managers=SimpleNamespace(discard=self.discard),
            models=SimpleNamespace(put=lambda slots, _, weights: self.kept.update({slots[0]: weights})),
            handed_on=lambda weights: weights,
            initial_id=lambda slot: f"run/{slot}",
        )

    async def survey(self, _context: Any, _progress: Any, _round: int, task: GroupTask, *, tries: int) -> Any:
        self.tries.append(tries)
        self.asked.append(task.clients)
        return SimpleNamespace(result=self.made, manager=f"m{tries}")

    async def take(self, *_: Any) -> Weights | Failure | BrokenOff:
        return self.taken.pop(0)

    async def discard(self, manager: str) -> None:
        self.discarded.append(manager)

    async def make(self) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(initial, "survey", self.survey)
            patch.setattr(initial, "take", self.take)
            await initial.make_initial(self.context, Progress(), "model")


async def test_a_manager_that_does_not_answer_is_replaced() -> None:
    answers = Answers(LOST, LOST, MODEL)
    await answers.make()
    assert answers.tries == [0, 1, 2]
    assert answers.discarded == ["m0", "m1"]
    assert answers.kept["model"].arrays["w"].tolist() == [1, 1]
    assert [event["reason"] for event in answers.journal.events] == [str(FROZEN)] * 2


async def test_a_manager_that_answers_and_does_not_give_the_model_stays() -> None:
    answers = Answers(BrokenOff(FROZEN, lost=False), MODEL)
    await answers.make()
    assert answers.tries == [0, 1]
    assert not answers.discarded


async def test_lost_nodes_are_waited_for_and_their_manager_stays() -> None:
    lost = Failure(FailureCode.NODE_LOST, "gone")
    answers = Answers(lost, MODEL, made=lost)
    await answers.make()
    assert answers.tries == [0, 1]
    assert not answers.discarded
    # one of each node, and others than before where there are
    assert answers.asked == [(3, 5, 6), (7, 3, 5)]


async def test_where_nobody_comes_it_ends() -> None:
    answers = Answers()
    answers.nodes.clear()
    with pytest.raises(RunError, match="no client is there"):
        await answers.make()


@pytest.mark.parametrize(
    ("failure", "tries"),
    [(FROZEN, MOST_TRIES), (Failure(FailureCode.TASK_RAISED, "ValueError: no such width"), 1)],
)
async def test_it_ends_with_the_reason(failure: Failure, tries: int) -> None:
    answers = Answers(*[failure] * tries)
    with pytest.raises(RunError, match="no node could make the initial model") as caught:
        await answers.make()
    assert failure.detail in caught.value.what
    assert len(answers.tries) == tries
