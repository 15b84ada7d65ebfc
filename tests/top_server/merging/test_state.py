"""A merge may keep tensors across rounds; they survive a resume bit for bit, in their own dtype."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedgsp.errors import DataError
from fedgsp.parts import Part
from fedgsp.tensors.dtypes import DTYPES
from fedgsp.tensors.weights import Weights
from tests.support.staged import stage
from top_server.evidence import Evidence
from top_server.merging import MERGES, MergeSettings, Merging
from top_server.merging.base import GroupModel, Starts, State
from top_server.models import GLOBAL, INITIAL, Changes, Held, Holdings, Made
from top_server.record.directory import RunDirectory
from top_server.resume import state


class Momentum(Merging):
    """The last group's model plus a third of the sum of all earlier steps, which is kept in float64."""

    shared = True

    def __init__(self, settings: MergeSettings) -> None:
        super().__init__(settings)
        self.velocity: dict[str, NDArray[np.float64]] = {}
        self.rounds = 0

    def prepare(self, slots: Mapping[str, Held]) -> Changes:
        return {GLOBAL: slots[INITIAL], INITIAL: None}

    def reads(self, evidence: Evidence) -> Iterable[str]:
        return (GLOBAL,)

    def begin(self, round_number: int, evidence: Evidence, weights: Mapping[str, Weights]) -> Changes:
        self._before = weights[GLOBAL]
        return {}

    def start(self, group: Iterable[int], holdings: Holdings) -> Starts:
        return ((holdings.slots[GLOBAL], 1.0),)

    def fold(self, round_number: int, group: GroupModel) -> Changes:
        assert group.weights is not None
        made = {}
        for name, array in group.weights.arrays.items():
            before = self._before.arrays[name].astype(np.float64)
            step = array.astype(np.float64) - before
            self.velocity[name] = self.velocity.get(name, 0.0) / 3 + step
            made[name] = (before + self.velocity[name]).astype(array.dtype)
        self.rounds += 1
        return {GLOBAL: Made(self.model_id(round_number, GLOBAL), Weights.of(made, group.weights.tensors))}

    def of(self, client: int, slots: Mapping[str, Held]) -> Held:
        return slots[GLOBAL]

    def state(self) -> State:
        return {"rounds": self.rounds}, self.velocity

    def restore(self, saved: Mapping[str, Any], tensors: Mapping[str, NDArray[np.generic]]) -> None:
        self.rounds = saved["rounds"]
        self.velocity = {name: tensor.astype(np.float64, casting="no") for name, tensor in tensors.items()}


@pytest.fixture(autouse=True)
def _added(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MERGES.built_in, "momentum", Part(help="momentum", code=Momentum))


EVIDENCE = Evidence((0, 1, 2, 3))
STEPS = (1.1, 0.7, 2.3, -0.4)


async def played(folder: Path, first: int, last: int) -> float:
    """Rounds `first` to `last`, from the state that an earlier process left if `first` is not 1."""
    async with stage("momentum", run_dir=folder) as s:
        if first > 1:
            saved = state.latest(RunDirectory(folder))
            assert saved is not None
            await s.restore(saved)
        for number in range(first, last + 1):
            await s.begin(number, EVIDENCE)
            assert await s.take(number, await s.trained((0, 1), STEPS[number - 1])) is None
            await s.finish(number)
        await s.save(folder, last)
        assert isinstance(s.merging, Momentum)
        assert s.merging.rounds == last
        return await s.value(s.of(0))


async def test_a_resumed_merge_gives_the_bits_of_one_that_was_not_cut_off(tmp_path: Path) -> None:
    whole = await played(tmp_path / "whole", 1, 4)
    await played(tmp_path / "cut", 1, 2)
    assert await played(tmp_path / "cut", 3, 4) == whole
    plain = STEPS[-1]
    assert whole != plain


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "int64"])
async def test_tensors_keep_every_bit_and_their_dtype(tmp_path: Path, dtype: str) -> None:
    kept = (np.arange(6).reshape(2, 3) / 3 + 1e-17).astype(DTYPES[dtype])
    async with stage("momentum", run_dir=tmp_path) as s:
        s.merging.velocity = {"w": kept, "scalar": np.array(1 / 3)}  # type: ignore[attr-defined]
        await s.save(tmp_path, 1)
    saved = state.latest(RunDirectory(tmp_path))
    assert saved is not None
    found: dict[str, NDArray[np.generic]] = {}
    async with stage("momentum", run_dir=tmp_path) as s:
        s.merging.restore = lambda _, tensors: found.update(tensors)  # type: ignore[method-assign,assignment]
        await s.restore(saved)
    assert found["w"].dtype == kept.dtype
    assert found["w"].tobytes() == kept.tobytes()
    assert found["scalar"].shape == ()
    assert found["scalar"].tobytes() == np.array(1 / 3).tobytes()


async def test_a_merge_without_tensors_writes_no_file(tmp_path: Path) -> None:
    async with stage("mean", run_dir=tmp_path) as s:
        await s.save(tmp_path, 1)
    assert {path.name for path in (tmp_path / "state" / "round-0001").iterdir()} == {
        "model-0.safetensors",
        "state.json",
    }


async def test_damaged_tensors_are_refused_by_name(tmp_path: Path) -> None:
    async with stage("momentum", run_dir=tmp_path) as s:
        s.merging.velocity = {"w": np.ones(3)}  # type: ignore[attr-defined]
        await s.save(tmp_path, 1)
        file = tmp_path / "state" / "round-0001" / "merging.safetensors"
        file.write_bytes(b"\0" * file.stat().st_size)
        saved = state.latest(RunDirectory(tmp_path))
        assert saved is not None
        with pytest.raises(DataError, match=r"merging\.safetensors"):
            await s.restore(saved)


@pytest.mark.parametrize("merge", sorted(MERGES.keys() - {"momentum"}))
async def test_every_merge_comes_back_as_it_was(merge: str) -> None:
    settings = MergeSettings("run", 0, False, MERGES[merge].read({}))
    before = MERGES[merge].load()(settings)
    saved, tensors = before.state()
    again = MERGES[merge].load()(settings)
    again.restore(json.loads(json.dumps(saved)), tensors)
    assert again.state() == (saved, tensors)
