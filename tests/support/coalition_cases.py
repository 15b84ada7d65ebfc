"""Clients for FedCollab's solver, its objective written plainly, and all partitions of a few."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from top_server.grouping.coalitions import descents, members, objective, solve

Floats = NDArray[np.float64]
Groups = list[list[int]]


def seeded(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def plain_objective(distances: Floats, sizes: Floats, weight: float, groups: Groups) -> float:
    """The sum over clients of the paper, with beta and alpha."""
    beta = sizes / sizes.sum()
    total = 0.0
    for group in groups:
        alpha = {j: beta[j] / beta[group].sum() for j in group}
        for i in group:
            total += weight / np.sqrt(sizes.sum()) * np.sqrt(sum(alpha[j] ** 2 / beta[j] for j in group))
            total += sum(alpha[j] * max(distances[i, j], 0.0) for j in group if j != i)
    return float(total)


def partitions(count: int) -> Iterator[Groups]:
    """All of them."""
    if not count:
        yield []
        return
    for groups in partitions(count - 1):
        yield [*groups, [count - 1]]
        for index, group in enumerate(groups):
            yield [*groups[:index], [*group, count - 1], *groups[index + 1 :]]


@dataclass(frozen=True, slots=True)
class Clients:
    distances: Floats
    sizes: Floats
    weight: float

    def objective(self, groups: Groups) -> float:
        return objective(self.distances, self.sizes, self.weight, groups)

    def solve(self, restarts: int = 3, seed: int = 0) -> Groups:
        return solve(self.distances, self.sizes, self.weight, restarts, seeded(seed)).groups

    def descents(self, restarts: int, seed: int = 0, merging: bool = True) -> list[Groups]:
        ends = descents(self.distances, self.sizes, self.weight, restarts, seeded(seed), merging)
        return [members(labels) for labels in ends]

    def reached(self, restarts: int, seed: int = 0, merging: bool = True) -> Floats:
        return np.array([self.objective(groups) for groups in self.descents(restarts, seed, merging)])


@st.composite
def any_clients(draw: st.DrawFn, fewest: int = 1, most: int = 7) -> Clients:
    count = draw(st.integers(fewest, most))
    sizes = np.array(draw(st.lists(st.integers(1, 3000), min_size=count, max_size=count)), np.float64)
    values = draw(st.lists(st.floats(-0.2, 1.0), min_size=count**2, max_size=count**2))
    distances = np.array(values).reshape(count, count)
    return Clients(distances + distances.T, sizes, draw(st.floats(0, 30)))


def many_clients(count: int, seed: int) -> Clients:
    """Of a quarter as many kinds, at points of the plane."""
    rng = seeded(seed)
    points = rng.random((max(2, count // 4), 2))[rng.integers(max(2, count // 4), size=count)]
    distances = np.linalg.norm(points[:, None] - points, axis=2) + 0.05 * np.abs(rng.normal(size=(count, count)))
    sizes = np.where(rng.random(count) < 0.5, rng.integers(1000, 3000, count), rng.integers(10, 300, count))
    return Clients((distances + distances.T) / 2, sizes.astype(np.float64), float(rng.uniform(1, 15)))
