"""A merge of a package that keeps what it does not save is told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedgsp.means.averages import Mean
from fedgsp.parts import Part
from fedgsp.tensors.weights import Weights
from tests.support.scripted import model
from top_server.evidence import Evidence
from top_server.merging import MergeSettings, forgotten
from top_server.merging.base import GroupModel, State
from top_server.merging.one_model import OneModel
from top_server.models import GLOBAL, Changes
from top_server.remembered import remembered


class Momentum(OneModel):
    """Keeps a speed of tensors, a number of rounds, and what every round makes anew."""

    def __init__(self, settings: MergeSettings) -> None:
        super().__init__(settings, partial(Mean, weighted=True))
        self.speed: dict[str, NDArray[np.generic]] = {}
        self.rounds = 0
        self.folded: list[int] = []

    def begin(self, round_number: int, evidence: Evidence, weights: Mapping[str, Weights]) -> Changes:
        self.before, self.folded = weights[GLOBAL], []
        return super().begin(round_number, evidence, weights)

    def fold(self, round_number: int, group: GroupModel) -> Changes:
        self.folded.append(group.number)
        return super().fold(round_number, group)

    def merged(self) -> Weights:
        self.rounds += 1
        self.speed = {"a": np.full(2, self.rounds, np.float64)}
        return super().merged()


class Saves(Momentum):
    def state(self) -> State:
        return {"rounds": self.rounds}, self.speed

    def restore(self, saved: Mapping[str, Any], tensors: Mapping[str, NDArray[np.generic]]) -> None:
        self.rounds, self.speed = saved["rounds"], dict(tensors)


class Fails(Saves):
    def restore(self, saved: Mapping[str, Any], tensors: Mapping[str, NDArray[np.generic]]) -> None:
        raise KeyError("lost")


@dataclass(eq=False)
class Remembers(OneModel):
    """Has a remembered field."""

    chosen: dict[int, int] = remembered()

    def __init__(self, settings: MergeSettings) -> None:
        super().__init__(settings, partial(Mean, weighted=True))
        self.chosen = {}

    def merged(self) -> Weights:
        self.chosen[3] = 4
        return super().merged()


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        (Momentum, ["its attribute 'speed' for the next round and", "its attribute 'rounds' for the next round and"]),
        (Saves, []),
        (Remembers, []),
        (Fails, ["cannot be put where its saved state was taken: KeyError: 'lost'"]),
    ],
)
def test_what_a_merge_keeps_and_does_not_save_is_named(
    kind: type[OneModel], told: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    part = Part(help="", code=kind, kind="merge", name="mine", package="parts 1")
    merging, weights = kind(MergeSettings("run", 0, False)), {GLOBAL: model(1.0)}  # type: ignore[call-arg]
    merging.begin(1, Evidence(()), weights)
    merging.fold(1, GroupModel(0, (0,), frozenset({0}), 3, model(2.0), {}))
    merging.finish(1)
    forgotten.begin(part, merging, 2, Evidence(()), weights)
    assert len(caplog.messages) == len(told)
    for message, what in zip(caplog.messages, told, strict=True):
        assert message.startswith("merge mine of package parts 1 ")
        assert what in message
