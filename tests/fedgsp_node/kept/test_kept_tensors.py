"""Tensors that a training keeps on the node: FedDyn goes on from its gradient, after failures and restarts too."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from fedgsp.messages import FailureCode, Train
from fedgsp.settings.fields import setting
from fedgsp.tensors.weights import Weights
from fedgsp.trainings import TRAININGS, Training
from fedgsp_node.kept.kept_tensors import arrays_of, tensors_of
from fedgsp_node.kept.personal_state import TENSORS, PersonalState
from tests.support.kept_state import keep
from tests.support.outgoing_steps import differences
from tests.support.reference import as_numpy
from tests.support.working import ROUND, SETTINGS, Node, node, training, why_not

ALPHA = 0.5
CODE = "tests.support.outside_parts.outside_parts.training"
KINDS = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.bool]


@dataclasses.dataclass(frozen=True, slots=True)
class Options:
    alpha: float = setting(ALPHA, "strength", above=0)


@pytest.fixture(autouse=True)
def feddyn(monkeypatch: pytest.MonkeyPatch) -> None:
    declared = {
        "feddyn": Training(help="FedDyn", code=f"{CODE}:DYNAMIC", options=Options, keeps_tensors=True),
        "undeclared": Training(help="tells nobody", code=f"{CODE}:UNDECLARED"),
    }
    for name, one in declared.items():
        part = dataclasses.replace(one, kind="training", name=name)
        monkeypatch.setitem(TRAININGS.built_in, name, part)


def dynamic(start: str, produces: str, **changes: Any) -> Train:
    how = dataclasses.replace(SETTINGS, algorithm=changes.pop("algorithm", "feddyn"))
    return dataclasses.replace(training(start, produces), settings=how, **changes)


async def trained(n: Node, start: str, produces: str, round_number: int, **changes: Any) -> Weights:
    await n.do(dynamic(start, produces, **changes), round_number=round_number)
    return await n.store.get(produces)


def kept(n: Node) -> dict[str, NDArray[Any]]:
    found = n.clients.personal.get(0, TENSORS)
    return dict(found[1]) if found is not None else {}


async def test_the_client_keeps_its_gradient_and_goes_on_from_it(tmp_path: Path) -> None:
    async with node(state_dir=tmp_path) as n:
        start = await n.store.get("start")
        first = await trained(n, "start", "first", ROUND)
        gradient = {name: -ALPHA * moved for name, moved in differences(start, first).items()}
        assert kept(n).keys() == gradient.keys()
        for name, array in kept(n).items():
            assert np.allclose(array, gradient[name], atol=1e-6)
        second = await trained(n, "first", "second", ROUND + 1)
        keep(n.clients.personal, 0, TENSORS, {}, ROUND + 1)
        anew = await trained(n, "first", "anew", ROUND + 2)
        # The loss has the term - <g, w>: without it, the model is less far in the direction of g.
        further = differences(anew, second)
        assert sum(float((array * further[name]).sum()) for name, array in gradient.items()) > 1e-4


async def test_a_restarted_node_and_a_repeated_round_go_on_from_the_same(tmp_path: Path) -> None:
    async with node(state_dir=tmp_path) as n:
        first = await trained(n, "start", "first", ROUND)
        second = await trained(n, "first", "second", ROUND + 1)
        after = kept(n)
        again = await trained(n, "first", "again", ROUND + 1)
        assert again.digest == second.digest
        assert all(np.array_equal(array, after[name]) for name, array in kept(n).items())
    async with node(state_dir=tmp_path) as restarted:
        restarted.store.put("first", first)
        assert (await trained(restarted, "first", "second", ROUND + 1)).digest == second.digest


@pytest.mark.parametrize("other", ["trial", "aside"])
async def test_a_trial_and_a_training_aside_read_and_do_not_change_it(tmp_path: Path, other: str) -> None:
    async with node(state_dir=tmp_path) as n:
        report = await n.do(dynamic("start", "early", **{other: True}), round_number=ROUND - 1)
        assert (report.keeps, kept(n)) == (False, {})
        await trained(n, "start", "first", ROUND)
        before = kept(n)
        beside = await trained(n, "first", "beside", ROUND + 1, **{other: True})
        assert all(np.array_equal(array, before[name]) for name, array in kept(n).items())
        assert (await trained(n, "first", "second", ROUND + 1)).digest == beside.digest


async def test_who_has_lost_what_was_kept_says_so(tmp_path: Path) -> None:
    async with node(state_dir=tmp_path) as n:
        found = [await n.do(dynamic("start", f"{number}"), round_number=ROUND + number) for number in range(2)]
        assert [(report.keeps, report.afresh) for report in found] == [(True, True), (True, False)]
    async with node() as lost:
        report = await lost.do(dynamic("start", "later"), round_number=ROUND + 2)
        assert (report.keeps, report.afresh) == (True, True)


async def test_what_was_not_declared_is_not_kept_and_told() -> None:
    async with node() as n:
        failure = await why_not(n.do(dynamic("start", "end", algorithm="undeclared")))
        assert failure.code is FailureCode.TASK_RAISED
        assert "its declaration does not say keeps_tensors=True" in failure.detail
        assert kept(n) == {}


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (3, 2)], ids=str)
def test_every_kind_of_tensor_comes_back_with_its_bits(
    tmp_path: Path, kind: torch.dtype, shape: tuple[int, ...]
) -> None:
    tensor = (torch.arange(6).reshape(3, 2).t() if shape == (3, 2) else torch.zeros(shape)).to(kind)
    keep(PersonalState(tmp_path), 0, TENSORS, arrays_of({"x": tensor}, declared=True), 1)
    (found,) = tensors_of(PersonalState(tmp_path).get_before(0, TENSORS, 2)).values()
    assert found.dtype == kind
    assert found.shape == tensor.shape
    assert as_numpy(found).tobytes() == as_numpy(tensor.contiguous()).tobytes()


def test_what_comes_back_is_a_copy() -> None:
    held = {"x": np.zeros(3, np.float32)}
    tensors_of(held)["x"].add_(1)
    left = torch.zeros(3)
    arrays = arrays_of({"x": left}, declared=True)
    left.add_(1)
    assert not held["x"].any()
    assert not arrays["x"].any()


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (torch.tensor([1.0, torch.nan]), "NaN or infinite"),
        (np.zeros(2), "not a tensor"),
        (torch.zeros(2, dtype=torch.complex64), "sparse or complex"),
        (torch.eye(2).to_sparse(), "sparse or complex"),
        (3.0, "not a tensor"),
    ],
    ids=["nan", "array", "complex", "sparse", "number"],
)
def test_what_cannot_be_kept_is_named(wrong: Any, why: str) -> None:
    with pytest.raises((TypeError, ValueError), match=rf"kept\['x'\].*{why}"):
        arrays_of({"x": wrong}, declared=True)
