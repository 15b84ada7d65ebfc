"""The steps between a trained model and what leaves its node."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fedgsp.messages import Failure, FailureCode, OutgoingStep, Reveal, Start, Train
from fedgsp.outgoing import HEAD, ROUNDING
from fedgsp.seeds import derive, stream
from fedgsp.tensors.encoding import rounded
from fedgsp.tensors.weights import Weights
from fedgsp_node.clients import Clients
from fedgsp_node.kept.personal_state import HEAD as KEPT_HEAD
from fedgsp_node.outgoing.base import Outgoing
from fedgsp_node.training.control import Control
from fedgsp_node.updates import reveal
from tests.support import outgoing_steps
from tests.support.blobs_task import Blobs
from tests.support.outgoing_steps import CLIP
from tests.support.working import HERE, ROUND, SETTINGS, Node, node, why_not


def step(name: str, **options: str) -> OutgoingStep:
    return OutgoingStep(name, options)


def ordered(*steps: OutgoingStep, start: str = "start", **changes: object) -> Train:
    work = Train(Start(start, HERE), "end", SETTINGS, outgoing=steps)
    return dataclasses.replace(work, **changes)  # type: ignore[arg-type]


async def sent(n: Node, work: Train, client: int = 0) -> Weights:
    """What a client publishes for an order."""
    await n.do(work, client)
    return await n.store.get(work.produces)


def trained(start: Weights, client: int = 0) -> Weights:
    return Clients(Blobs(), None).train(client, start, SETTINGS, ROUND, Control()).after


def length(start: Weights, after: Weights) -> float:
    found = outgoing_steps.differences(start, after).values()
    return float(np.sqrt(sum(np.sum(np.square(array)) for array in found)))


async def test_without_steps_a_model_leaves_as_it_was_trained() -> None:
    async with node() as n:
        assert (await sent(n, ordered())).digest == trained(await n.store.get("start")).digest


async def test_a_clip_gets_the_model_that_the_training_started_from() -> None:
    async with node() as n:
        start = await n.store.get("start")
        before = start.digest
        assert length(start, trained(start)) > 0.01
        found = await sent(n, ordered(step("clip", norm="0.01")))
        assert length(start, found) == pytest.approx(0.01, rel=1e-3)
        assert Weights(start.tensors, start.buffer).digest == before


async def test_steps_are_taken_in_the_order_of_the_list() -> None:
    async with node() as n:
        start = await n.store.get("start")
        short = await sent(n, ordered(step("mask"), step("clip", norm="0.01")))
        assert length(start, short) == pytest.approx(0.01, rel=1e-3)
        long = await sent(n, ordered(step("clip", norm="0.01"), step("mask"), produces="long"))
        assert length(start, long) > 1


async def test_public_randomness_follows_from_seed_step_round_and_client() -> None:
    async with node() as n:
        start = await n.store.get("start")
        for client in (0, 1):
            found = await sent(n, ordered(step("mask"), produces=f"end {client}"), client)
            rng = stream(SETTINGS.seed, "outgoing-mask", ROUND, client)
            plain = trained(start, client)
            expected = outgoing_steps.mask(Outgoing(client, ROUND, plain, None, rng, b""), None)
            assert found.digest == expected.digest


async def test_a_step_that_needs_the_head_away_sees_only_the_rest_and_the_client_keeps_its_head_exact() -> None:
    async with node() as n:
        n.store.put("bare", n.clients.initial_weights(9).part(n.clients.shared))
        steps = (step(HEAD), step("clip", norm="0.01"), step(ROUNDING))
        work = ordered(*steps, start="bare")
        assert work.start is not None
        found = await sent(n, dataclasses.replace(work, start=dataclasses.replace(work.start, without_head=True)))
        start = await n.store.get("bare")
        assert found.tensors == n.clients.shared
        assert found.bfloat16
        head = n.clients.initial_weights(derive(SETTINGS.seed, "initial-weights")).arrays
        after = trained(Weights.of({**head, **start.arrays}, n.clients.tensors))
        clipped = outgoing_steps.clip(
            Outgoing(0, ROUND, after.part(start.tensors), start, np.random.default_rng(), b""),
            CLIP.options(norm=0.01),
        )
        assert found.digest == rounded(clipped.copy()).digest
        kept = n.clients.personal.get(0, KEPT_HEAD)
        assert kept is not None
        assert all(np.array_equal(array, after.arrays[name]) for name, array in kept[1].items())


async def test_what_is_revealed_is_of_the_model_after_the_steps_that_protect_and_before_rounding() -> None:
    async with node() as n:
        start = await n.store.get("start")
        work = ordered(step("mask"), step(ROUNDING), reveal=Reveal("exact"))
        found = await sent(n, work)
        rng = stream(SETTINGS.seed, "outgoing-mask", ROUND, 0)
        masked = outgoing_steps.mask(Outgoing(0, ROUND, trained(start), None, rng, b""), None)
        shown = reveal("exact", start, masked, SETTINGS.learning_rate, 0)
        assert (await n.store.get("end.update")).digest == shown.digest
        assert found.digest == rounded(masked).digest


async def test_a_head_that_no_step_has_seen_is_not_revealed() -> None:
    async with node() as n:
        failure = await why_not(n.do(ordered(step(HEAD), step("mask"), reveal=Reveal("exact"))))
        assert failure.code is FailureCode.BAD_ORDER
        assert "end.update" not in n.store
        revealed = ordered(step(HEAD), step("mask"), reveal=Reveal("exact", without_head=True), produces="other")
        assert (await sent(n, revealed)).tensors == n.clients.shared


async def test_a_start_without_head_needs_the_step_that_takes_heads_away() -> None:
    async with node() as n:
        n.store.put("bare", n.clients.initial_weights(9).part(n.clients.shared))
        failure = await why_not(n.do(Train(Start("bare", HERE, without_head=True), "end", SETTINGS)))
        assert failure == Failure(FailureCode.BAD_ORDER, "the start has no head, and the result would have one")


@pytest.mark.parametrize(
    ("wrong", "code", "detail"),
    [
        (step("clop"), FailureCode.BAD_ORDER, "'clop'"),
        (
            step("clip", norm="0"),
            FailureCode.BAD_ORDER,
            "outgoing clip: option norm is '0'; give a number above 0",
        ),
        (step("clip", nrom="1"), FailureCode.BAD_ORDER, "outgoing clip has no option 'nrom'"),
        (step("lost"), FailureCode.BAD_ORDER, "cannot be loaded from tests.support.outgoing_steps:nowhere"),
        (
            step("raising"),
            FailureCode.TASK_RAISED,
            "outgoing step raising raised ValueError: no budget is left for client 0 (outgoing_steps.py:",
        ),
        (step("short"), FailureCode.TASK_RAISED, "outgoing step short raised"),
        (step("not-finite"), FailureCode.TASK_RAISED, "NaN or infinite values"),
        (step("other-type"), FailureCode.TASK_RAISED, "it returned a dict, not Weights"),
    ],
    ids=lambda value: value.name if isinstance(value, OutgoingStep) else "",
)
async def test_a_step_that_cannot_be_taken_fails_the_order_and_nothing_leaves(
    wrong: OutgoingStep, code: FailureCode, detail: str
) -> None:
    async with node() as n:
        failure = await why_not(n.do(ordered(wrong, reveal=Reveal("exact"), bring=True)))
        assert failure.code is code
        assert detail in failure.detail
        assert "end" not in n.store
        assert not n.uploads


async def test_only_a_step_that_is_not_repeatable_gets_something_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, bytes] = {}

    def watched(name: str) -> Callable[[Outgoing, object], Weights]:
        def taken(outgoing: Outgoing, _: object) -> Weights:
            seen[name] = outgoing.secret
            return outgoing.model

        return taken

    outgoing_steps.forget()
    for name in ("noise", "mask"):
        monkeypatch.setattr(outgoing_steps, name, watched(name))
    async with node(state_dir=tmp_path) as n:
        await sent(n, ordered(step("mask"), step("noise")))
    assert seen["mask"] == b""
    assert len(seen["noise"]) == 32
    assert (tmp_path / "secret").read_bytes() != seen["noise"]
    assert (tmp_path / "secret").stat().st_mode & 0o777 == 0o600
