"""The initial model is asked for again where whoever made it, or holds it, is out of reach for a moment."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fedgsp.errors import RunError
from fedgsp.messages import (
    Failure,
    FailureCode,
    GroupResult,
    MemberDone,
    MemberSkipped,
    ModelRef,
    TensorSpec,
    Trained,
)
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
        self.refusing: dict[str, Failure] = {}  # by node
        self.done: tuple[MemberDone, ...] = ()

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
        skipped = []
        for client in task.clients:  # a manager asks them in turn until one has made a model
            if (why := self.refusing.get(self.nodes[client])) is None:
                break
            skipped.append(MemberSkipped(client, why))
        came = isinstance(self.taken[0], Weights) if self.taken else False
        made = GroupResult(None, 0, 0, 0) if came and isinstance(self.made, Failure) else self.made
        result = skipped[-1].failure if len(skipped) == len(task.clients) else made
        return SimpleNamespace(result=result, manager=f"m{tries}", skipped=tuple(skipped), done=self.done)

    async def take(self, _context: Any, outcome: Any, *_: Any) -> Weights | Failure | BrokenOff:
        return outcome.result if outcome.result in self.refusing.values() else self.taken.pop(0)

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


NODES = {10 + number: f"n{number}" for number in range(40)}


@pytest.mark.parametrize("bad", [1, 2, 3, 7, 39])
async def test_nodes_that_refuse_cannot_end_a_run_that_another_node_can_begin(bad: int) -> None:
    answers = Answers(MODEL)
    answers.nodes = NODES
    answers.refusing = dict.fromkeys(list(NODES.values())[:bad], Failure(FailureCode.TASK_RAISED, "so they say"))
    await answers.make()
    assert answers.kept["model"].arrays["w"].tolist() == [1, 1]
    assert len(answers.asked) <= 5
    refused = [client for asked in answers.asked[:-1] for client in asked]
    assert len(set(refused)) == len(refused)  # nobody is asked again who has refused


async def test_if_all_nodes_refuse_it_ends_with_the_reason_and_the_remedy() -> None:
    answers = Answers()
    answers.nodes = NODES
    answers.refusing = dict.fromkeys(NODES.values(), Failure(FailureCode.POLICY, "no new model"))
    with pytest.raises(RunError, match=r"no node could make the initial model.*no new model") as caught:
        await answers.make()
    assert "if their owners agree" in caught.value.remedy
    assert sorted(client for asked in answers.asked for client in asked) == sorted(NODES)


@pytest.mark.parametrize(
    ("digests", "reason"),
    [
        ("xx", ""),
        ("x", ""),
        ("xyy", "that of b, c counts, and a made another one"),
        ("yxy", "that of a, c counts, and b made another one"),
        ("yx", "that of a counts, and b made another one"),
    ],
)
async def test_nodes_that_make_different_models_are_named(digests: str, reason: str) -> None:
    counts = "y" if "y" in digests else "x"
    answers = Answers(MODEL, made=GroupResult(ModelRef("made", 8, counts.encode()), 0, 0, 0))
    answers.done = tuple(
        MemberDone(client, 0, Trained(ModelRef("made", 8, digest.encode())))
        for client, digest in zip((3, 5, 6), digests, strict=False)
    )
    await answers.make()
    told = [event for event in answers.journal.events if event["event"] == "initial_models_differ"]
    assert [event["reason"] for event in told] == [reason] * bool(reason)
    if reason:
        assert told[0]["digests"] == {
            node: digest.encode().hex() for node, digest in zip("abc", digests, strict=False)
        }


async def test_a_refusal_and_a_loss_are_told_apart() -> None:
    answers = Answers(FROZEN, MODEL)
    answers.refusing = {"a": Failure(FailureCode.POLICY, "no")}
    await answers.make()
    assert answers.asked[0] == (3, 5, 6)
    assert 3 not in answers.asked[1]  # only the node that has refused is left out


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
