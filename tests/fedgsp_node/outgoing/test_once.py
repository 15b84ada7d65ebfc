"""A result that was drawn from the node's secret is published once, and handed out again if it is asked for again."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedgsp.errors import RunError
from fedgsp.messages import (
    FailureCode,
    OptimizerSettings,
    Order,
    OrderKey,
    OutgoingStep,
    Reveal,
    Start,
    Train,
    Trained,
)
from fedgsp.optimizers import KEPT
from fedgsp.tensors.weights import Weights
from fedgsp_node.kept.personal_state import OPTIMIZER, PUBLISHED
from fedgsp_node.outgoing.once import FIGURES
from tests.support.outgoing_steps import DRAWS, differences
from tests.support.power import Disk
from tests.support.working import HERE, ROUND, SETTINGS, Node, no_receipt, node, why_not

NOISE = OutgoingStep("noise", {"scale": "0.5"})


@pytest.fixture
def draws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "draws"
    path.touch()
    monkeypatch.setenv(DRAWS, str(path))
    return path


def drawn(path: Path) -> list[str]:
    """Round and client of each draw."""
    return [line.rpartition(" ")[0] for line in path.read_text().splitlines()]


def noisy(produces: str, start: str = "start", **changes: Any) -> Train:
    work = Train(Start(start, HERE), produces, SETTINGS, outgoing=(NOISE,))
    return dataclasses.replace(work, **changes)


async def published(n: Node, work: Train, client: int = 0, round_number: int = ROUND) -> tuple[Weights, Trained]:
    report = await n.do(work, client, round_number)
    assert isinstance(report, Trained)
    weights = await n.store.get(work.produces)
    assert report.ref == weights.ref(work.produces)
    return weights, report


def figures(report: Trained) -> tuple[object, ...]:
    return tuple(getattr(report, name) for name in FIGURES)


async def test_a_second_order_in_a_round_is_answered_with_the_first_result(tmp_path: Path, draws: Path) -> None:
    async with node(state_dir=tmp_path / "state") as n:
        first, report = await published(n, noisy("a", measure_accuracy=True), client=1)
        n.store.release(["a"])
        n.store.put("rerouted", n.clients.initial_weights(7))
        twice = noisy("b", "rerouted", bring=True, retain=True, measure_accuracy=True)
        again, second = await published(n, twice, client=1)
        assert report.train_accuracy > 0
        assert np.array_equal(again.buffer, first.buffer)
        assert again.digest == first.digest
        assert figures(second) == figures(report)
        assert (second.source, second.bytes) == (None, 0)
        assert n.uploads["b"].digest == first.digest
        assert drawn(draws) == [f"{ROUND} 1"]


async def test_every_round_and_every_client_has_a_draw(tmp_path: Path, draws: Path) -> None:
    async with node(state_dir=tmp_path / "state") as n:
        found = [(await published(n, noisy(f"{c} {r}"), c, r))[0] for c in (0, 1) for r in (1, 2)]
        assert len({weights.digest for weights in found}) == 4
        assert drawn(draws) == ["1 0", "2 0", "1 1", "2 1"]


async def test_a_local_run_brings_no_second_draw(tmp_path: Path, draws: Path) -> None:
    """The noise is that of the run, and neither result makes the other one forgotten."""

    async def of(n: Node, run: str, produces: str) -> bytes:
        order = Order(OrderKey(ROUND, "train", 0, 0, 0, run), 0, noisy(produces))
        await n.worker.carry_out(order, n._upload)
        return (await n.store.get(produces)).digest

    async with node(state_dir=tmp_path / "state") as n:
        runs = ["run", "run.alone", "run", "run.alone"]
        found = {await of(n, run, str(place)) for place, run in enumerate(runs)}
        assert len(found) == 1
        assert drawn(draws) == [f"{ROUND} 0"] * 2


async def test_a_restarted_node_hands_out_what_it_published_with_what_was_revealed(
    tmp_path: Path, draws: Path
) -> None:
    rounded = (NOISE, OutgoingStep("rounding"))
    async with node(state_dir=tmp_path / "state") as n:
        first, report = await published(n, noisy("a", reveal=Reveal("sketch:8"), outgoing=rounded))
        shown = (await n.store.get("a.update")).digest
    async with node(state_dir=tmp_path / "state") as again:
        second, same = await published(again, noisy("b", reveal=Reveal("sketch:8"), outgoing=rounded))
        assert second.digest == first.digest
        assert second.bfloat16
        assert figures(same) == figures(report)
        assert same.update == (await again.store.get("b.update")).ref("b.update")
        assert (await again.store.get("b.update")).digest == shown
        assert len(drawn(draws)) == 1


async def test_two_orders_at_once_publish_one_result(tmp_path: Path, draws: Path) -> None:
    async with node(state_dir=tmp_path / "state") as n:
        (one, _), (other, _) = await asyncio.gather(published(n, noisy("a")), published(n, noisy("b")))
        assert one.digest == other.digest
        assert len(drawn(draws)) == 1


async def test_a_client_has_its_state_of_a_result_that_was_published_as_its_order_was_called_off(
    tmp_path: Path, draws: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The result is handed out again without a training, which could not leave the state any more."""
    kept = dataclasses.replace(SETTINGS, optimizer=OptimizerSettings("adamw", state=KEPT))
    async with node(state_dir=tmp_path / "state") as n:
        writing, go_on, personal = threading.Event(), threading.Event(), n.clients.personal
        save = personal.save

        def slow(client: int, purpose: str, *rest: Any) -> None:
            if purpose.startswith(PUBLISHED):
                writing.set()
                assert go_on.wait(10)
            save(client, purpose, *rest)

        monkeypatch.setattr(personal, "save", slow)
        running = asyncio.create_task(n.do(noisy("a", settings=kept)))
        await asyncio.to_thread(writing.wait, 10)
        running.cancel()
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await running
        await published(n, noisy("b", settings=kept))
        assert len(drawn(draws)) == 1
        assert personal.get_before(0, OPTIMIZER, ROUND + 1) is not None


@pytest.mark.parametrize("fails", [False, True])
async def test_what_a_published_result_has_left_is_kept_when_it_is_answered(
    fails: bool, tmp_path: Path, draws: Path
) -> None:
    """There is no second training that could leave it."""

    kept, state = dataclasses.replace(SETTINGS, optimizer=OptimizerSettings("adamw", state=KEPT)), tmp_path / "state"
    async with node(state_dir=state) as n:
        work = noisy("a", settings=kept)
        with pytest.raises(RunError) if fails else contextlib.nullcontext():
            await n.worker.carry_out(
                Order(OrderKey(ROUND, "train", 0, 0), 0, work), n._upload, no_receipt if fails else _none
            )
        assert (n.clients.personal.get(0, OPTIMIZER) is None) is fails
    async with node(state_dir=state) as n:
        await published(n, noisy("b", settings=kept))
        assert n.clients.personal.get_before(0, OPTIMIZER, ROUND + 1) is not None
    assert len(drawn(draws)) == 1


def _none(_: Trained) -> None:
    pass


async def test_a_training_that_failed_before_it_was_published_is_done_again(tmp_path: Path, draws: Path) -> None:
    state = tmp_path / "state"
    async with node(state_dir=state) as n:
        state.rename(tmp_path / "away")
        assert "secret" in (await why_not(n.do(noisy("a")))).detail
        (tmp_path / "away").rename(state)
        await published(n, noisy("b"))
        assert len(drawn(draws)) == 1


async def test_a_trial_and_a_training_aside_are_other_trainings(tmp_path: Path, draws: Path) -> None:
    async with node(state_dir=tmp_path / "state") as n:
        await published(n, noisy("a", aside=True))
        await published(n, noisy("b", trial=True, reveal=Reveal("exact")))
        await published(n, noisy("c"))
        await published(n, noisy("d", aside=True))
        await published(n, noisy("e", trial=True, reveal=Reveal("exact")))
        assert drawn(draws) == [f"{ROUND} 0"] * 3


async def test_equal_models_get_equal_noise_and_others_other_noise(tmp_path: Path) -> None:
    """A trial and the training after it may give the same update: two draws for it would hide less than one."""
    async with node(state_dir=tmp_path / "state") as n:
        aside, _ = await published(n, noisy("a", aside=True))
        same, _ = await published(n, noisy("b"))
        assert same.digest == aside.digest
        added = []
        for client in (1, 2):
            plain, _ = await published(n, noisy(f"plain {client}", outgoing=()), client)
            with_noise, _ = await published(n, noisy(f"noisy {client}"), client)
            added.append(np.concatenate([array.ravel() for array in differences(plain, with_noise).values()]))
        assert np.abs(added[0] - added[1]).mean() > 0.1


async def test_two_results_for_one_model_never_have_one_noise_in_two_sizes(tmp_path: Path) -> None:
    """Else who has both could compute the model itself: twice the one with half of the noise, less the other."""
    half = (OutgoingStep("noise", {"scale": "0.25"}),)
    async with node(state_dir=tmp_path / "state") as n:
        plain, _ = await published(n, noisy("plain", outgoing=()))
        one, _ = await published(n, noisy("one", aside=True))
        other, _ = await published(n, noisy("other", outgoing=half))
        added = [np.concatenate([a.ravel() for a in differences(plain, found).values()]) for found in (one, other)]
        assert abs(np.corrcoef(added[0], added[1])[0, 1]) < 0.5


@pytest.mark.parametrize(
    ("changes", "round_number", "why"),
    [
        ({"settings": dataclasses.replace(SETTINGS, learning_rate=0.06)}, ROUND, "the first order had other settings"),
        ({"reveal": Reveal("exact")}, ROUND, "the first order had other settings"),
        ({"outgoing": (OutgoingStep("noise"),)}, ROUND, "the first order had other settings"),
        ({}, ROUND - 1, f"it has trained in round {ROUND} since then"),
    ],
)
async def test_an_order_that_would_draw_again_is_refused(
    tmp_path: Path, draws: Path, changes: dict[str, Any], round_number: int, why: str
) -> None:
    async with node(state_dir=tmp_path / "state") as n:
        await published(n, noisy("a"))
        failure = await why_not(n.do(noisy("b", **changes), round_number=round_number))
        assert failure.code is FailureCode.BAD_ORDER
        assert (
            failure.detail == f"client 0 has published its result of round {round_number} and would draw again: {why}"
        )
        assert len(drawn(draws)) == 1


async def test_a_node_without_a_state_directory_draws_nothing(draws: Path) -> None:
    async with node() as n:
        failure = await why_not(n.do(noisy("a")))
        assert failure.code is FailureCode.BAD_ORDER
        assert failure.detail.endswith("start the node with --state-dir")
        assert drawn(draws) == []


async def test_a_published_result_that_is_damaged_is_not_drawn_again(tmp_path: Path, draws: Path) -> None:
    async with node(state_dir=tmp_path / "state") as n:
        await published(n, noisy("a"))
        path = tmp_path / "state" / "run-client-0.published.safetensors"
        assert path.stat().st_mode & 0o777 == 0o600
        path.write_bytes(b"x" * 100)
        assert "cannot be read" in (await why_not(n.do(noisy("b")))).detail
        assert len(drawn(draws)) == 1


async def test_a_secret_of_another_length_is_refused(tmp_path: Path, draws: Path) -> None:
    async with node(state_dir=tmp_path / "state") as n:
        (tmp_path / "state" / "secret").write_bytes(b"short")
        assert "holds 5 bytes, not 32" in (await why_not(n.do(noisy("a")))).detail
        assert drawn(draws) == []


async def test_the_secret_outlives_the_node(tmp_path: Path) -> None:
    async with node(state_dir=tmp_path / "state") as n:
        await published(n, noisy("a"))
        before = (tmp_path / "state" / "secret").read_bytes()
    async with node(state_dir=tmp_path / "state") as again:
        await published(again, noisy("b"), round_number=ROUND + 1)
        assert (tmp_path / "state" / "secret").read_bytes() == before


async def test_the_secret_outlives_a_power_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk, state = Disk(monkeypatch), tmp_path / "state"
    async with node(state_dir=state) as n:
        await published(n, noisy("a"))
    disk.cut(state)
    async with node(state_dir=state) as again:
        await published(again, noisy("b"), round_number=ROUND + 1)
