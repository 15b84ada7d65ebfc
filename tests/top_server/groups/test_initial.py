"""Who is asked for the initial model, and what counts if nodes refuse, are lost, or make different models."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
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
from fedgsp.tensors.weights import Weights
from tests.support.recorder import Recorder
from top_server.groups import initial
from top_server.groups.lost import AllLostError
from top_server.groups.run import MOST_TRIES
from top_server.groups.task import GroupTask
from top_server.managers.client import BrokenOff
from top_server.models import INITIAL
from top_server.progress import Progress

SPECS = (TensorSpec("w", "float32", (2,)),)
MODEL = Weights.of({"w": np.ones(2)}, SPECS)
FROZEN = Failure(FailureCode.UNREACHABLE, "ping timeout")
LOST = BrokenOff(FROZEN, lost=True)
GONE = Failure(FailureCode.NODE_LOST, "gone")
REFUSED = Failure(FailureCode.POLICY, "no new model")
RAISED = Failure(FailureCode.TASK_RAISED, "ValueError: no such width")
FORTY = {10 + number: f"n{number}" for number in range(40)}


class Run:
    """A run with these nodes. A node says why it has no model, or makes one with this digest; most make the same."""

    def __init__(
        self,
        nodes: Mapping[int, str],
        says: Mapping[str, Failure | bytes] | None = None,
        *,
        broken: list[Failure | BrokenOff] | None = None,
        file: Path | None = None,
    ) -> None:
        self.journal = Recorder()
        self.nodes, self.says, self.file = dict(nodes), dict(says or {}), file
        #: What comes in place of the first models: their managers are gone, or do not give them.
        self.broken = broken or []
        #: Nodes that come while the run waits.
        self.coming: dict[int, str] = {}
        self.tries: list[int] = []
        self.asked: list[tuple[int, ...]] = []
        self.discarded: list[str] = []
        self.kept: dict[str, Weights] = {}
        self.waits = 0

    @property
    def context(self) -> Any:
        async def until(holds: Callable[[], bool], _: float) -> bool:
            if not holds():
                self.waits += 1
                self.nodes |= self.coming
            return holds()

        membership = SimpleNamespace(
            clients=self.nodes,
            tensors=SPECS,
            until=until,
            member=lambda client: SimpleNamespace(node=self.nodes[client]),
        )
        return SimpleNamespace(
            tensors=SPECS,
            config=SimpleNamespace(join_timeout=1.0, initial_model=self.file),
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
        skipped, done = [], []
        made: Counter[bytes] = Counter()
        for client in task.clients:  # as a group manager does
            answer = self.says.get(self.nodes[client], b"good")
            if isinstance(answer, Failure):
                skipped.append(MemberSkipped(client, answer))
                self.answered(self.nodes[client], answer)
                continue
            done.append(MemberDone(client, 0, Trained(ModelRef("made", 8, answer))))
            made[answer] += 1
            if made[answer] == 2:
                break
        result: GroupResult | Failure | None = skipped[-1].failure if skipped else GONE
        if made:
            result = GroupResult(ModelRef("made", 8, made.most_common(1)[0][0]), 0, 0, 0)
        return SimpleNamespace(result=result, manager=f"m{tries}", skipped=tuple(skipped), done=tuple(done))

    def answered(self, node: str, answer: Failure) -> None:
        """A node that was lost leaves if it is to come back."""
        if answer == GONE and node in self.coming.values():
            del self.says[node]
            self.nodes.pop(next(client for client, name in self.coming.items() if name == node))

    async def take(self, _context: Any, outcome: Any, *_: Any) -> Weights | Failure | BrokenOff:
        if self.broken:
            return self.broken.pop(0)
        return outcome.result if isinstance(outcome.result, Failure) else MODEL

    async def discard(self, manager: str) -> None:
        self.discarded.append(manager)

    async def make(self, slot: str = "model") -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(initial, "survey", self.survey)
            patch.setattr(initial, "take", self.take)
            await initial.make_initial(self.context, Progress(), slot)

    @property
    def others(self) -> list[dict[str, Any]]:
        return self.journal.of_kind("initial_models_differ")


FOUR = {3: "a", 4: "a", 5: "b", 6: "c", 7: "d"}


async def test_a_manager_that_does_not_answer_is_replaced() -> None:
    run = Run(FOUR, broken=[LOST, LOST])
    await run.make()
    assert run.tries == [0, 1, 2]
    assert run.discarded == ["m0", "m1"]
    assert run.kept["model"].arrays["w"].tolist() == [1, 1]
    assert [event["reason"] for event in run.journal.events] == [str(FROZEN)] * 2


async def test_a_manager_that_answers_and_does_not_give_the_model_stays() -> None:
    run = Run(FOUR, broken=[BrokenOff(FROZEN, lost=False)])
    await run.make()
    assert run.tries == [0, 1]
    assert not run.discarded


async def test_one_client_of_each_node_is_asked_and_nodes_that_were_lost_come_last() -> None:
    run = Run(FOUR, {"a": GONE}, broken=[FROZEN])
    await run.make()
    assert run.asked == [(3, 5, 6, 7), (5, 6, 7, 3)]


async def test_where_nobody_comes_it_ends() -> None:
    run = Run({})
    with pytest.raises(RunError, match="no client is there"):
        await run.make()
    assert run.waits == 1


@pytest.mark.parametrize("failure", [FROZEN, GONE])
async def test_if_all_are_lost_it_ends_after_some_tries(failure: Failure) -> None:
    run = Run(FOUR, dict.fromkeys("abcd", failure))
    with pytest.raises(AllLostError, match=f"no node could make the initial model.*{failure.detail}"):
        await run.make()
    assert len(run.tries) == MOST_TRIES


@pytest.mark.parametrize("bad", [1, 3, 7, 8, 38, 39])
async def test_nodes_that_refuse_cannot_end_a_run_that_another_node_can_begin(bad: int) -> None:
    run = Run(FORTY, dict.fromkeys(list(FORTY.values())[:bad], RAISED))
    await run.make()
    assert run.kept["model"].arrays["w"].tolist() == [1, 1]
    assert len(run.asked) <= 2
    refused = [client for asked in run.asked for client in asked if FORTY[client] in run.says]
    assert len(set(refused)) == len(refused)  # nobody is asked again who has refused


async def test_if_all_nodes_refuse_it_ends_with_the_reason_of_most_and_the_remedy() -> None:
    run = Run(FORTY, {**dict.fromkeys(FORTY.values(), REFUSED), "n39": RAISED})
    with pytest.raises(RunError, match=r"no node could make the initial model.*no new model") as caught:
        await run.make()
    assert "if their owners agree" in caught.value.remedy
    assert sorted(client for asked in run.asked for client in asked) == sorted(FORTY)
    assert not run.waits


async def test_a_node_that_was_lost_is_waited_for_if_all_others_refuse() -> None:
    run = Run({3: "a", 5: "b"}, {"a": REFUSED, "b": GONE})
    run.coming = {5: "b"}
    await run.make()
    assert run.asked == [(3, 5), (5,)]
    assert run.waits == 1


async def test_if_no_two_of_the_first_nodes_make_the_same_all_nodes_are_asked() -> None:
    refusing = dict.fromkeys([f"n{number}" for number in range(1, 8)], REFUSED)
    run = Run(FORTY, {"n0": b"bad", **refusing})
    await run.make()
    assert len(run.asked) == 2
    assert run.others[0]["reason"] == "that of n8, n9 counts, and n0 made another one"


@pytest.mark.parametrize(
    ("digests", "reason"),
    [
        ("yyyy", ""),
        ("xyyy", "that of b, c counts, and a made another one"),
        ("yxyy", "that of a, c counts, and b made another one"),
        ("zxyy", "that of c, d counts, and a, b made another one"),
        ("wxyz", "no two of a, b, c, d made the same; that of a counts, as it came first"),
    ],
)
async def test_nodes_that_make_different_models_are_named(digests: str, reason: str) -> None:
    says = {node: digest.encode() for node, digest in zip("abcd", digests, strict=True)}
    run = Run(FOUR, says)
    await run.make()
    assert [event["reason"] for event in run.others] == [reason] * bool(reason)
    for event in run.others:
        assert event["digests"].items() <= {node: digest.hex() for node, digest in says.items()}.items()


async def test_they_are_not_named_if_the_values_come_from_a_file() -> None:
    run = Run(FOUR, {"a": b"other"}, file=Path("start.safetensors"))
    await run.make(INITIAL)
    assert not run.others


async def test_one_node_alone_makes_the_model() -> None:
    run = Run({3: "a", 4: "a"})
    await run.make()
    assert run.asked == [(3,)]
    assert not run.others
