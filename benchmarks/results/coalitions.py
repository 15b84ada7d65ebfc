"""FedCollab's coalitions in a summary: distances by type of client, the objective, and the next best coalitions."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.results.summary import Summary
from fedgsp import seeds
from top_server.grouping import GROUPINGS
from top_server.grouping.coalition_margin import Margin, margin
from top_server.grouping.coalitions import objective, solve
from top_server.grouping.request import ranges

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Floats = NDArray[np.float64]
Rows = tuple[tuple[float | None, ...], ...]

#: Clients of equal data follow each other; so many types there are.
TYPES = 4


def matrix(summary: Summary, name: str = "matrix") -> Floats | None:
    """The distances, or their `errors`, of a run that found any, shape (N, N); NaN where two were not compared."""
    found = summary["distances"].get(name)
    return None if found is None else np.array(found, np.float64)


def types(count: int) -> NDArray[np.int64]:
    """The types of so many clients, counted from 1."""
    return np.arange(count) * TYPES // count + 1


def distance(summary: Summary, one: int, other: int) -> float | None:
    """Mean distance between the clients of two types, counted from 1; negative distances count as 0."""
    found = matrix(summary)
    if found is None:
        return None
    of_type = types(len(found))
    block = (of_type[:, None] == one) & (of_type == other) & ~np.eye(len(found), dtype=bool)
    return float(np.nanmean(np.maximum(found[block], 0)))


def chosen(summary: Summary) -> Margin | None:
    """The objective of the run's coalitions and what the next best cost more, as the run's top server found them."""
    told = summary["distances"]
    if "matrix" not in told or "errors" not in told:
        return None
    matrices = (tuple(map(tuple, told[name])) for name in ("matrix", "errors"))
    return _solved(*matrices, tuple(told["sizes"]), tuple(told["clients"]), _options(summary), summary["seed"])


def by_c(summary: Summary, c: float) -> str:
    """The coalitions of the run's distances with this C, and their objective; empty for a run without distances."""
    found = matrix(summary)
    if found is None:
        return ""
    known, told = np.where(np.isnan(found), 1.0, found), summary["distances"]
    sizes, clients = np.array(told["sizes"], np.float64), told["clients"]
    solution = solve(known, sizes, c, _options(summary).restarts, seeds.stream(summary["seed"], "fedcollab"))
    groups = " ".join(f"{{{ranges(clients[row] for row in group)}}}" for group in solution.groups)
    return f"{groups}: {objective(known, sizes, c, solution.groups):.3f}"


@functools.cache  # several columns, texts and a picture ask for the same run
def _solved(
    distances: Rows, errors: Rows, sizes: tuple[int, ...], clients: tuple[int, ...], options: Any, seed: int
) -> Margin | None:
    found = np.array(distances, np.float64)
    known, counts = np.where(np.isnan(found), 1.0, found), np.array(sizes, np.float64)
    solution = solve(known, counts, options.c, options.restarts, seeds.stream(seed, "fedcollab"))
    return margin(solution, known, np.array(errors, np.float64), counts, options.c, clients)


def numbers(summary: Summary, name: str) -> float | None:
    """A number of `chosen`: the `objective`, what the next best costs `more`, or that in standard `errors`."""
    found = chosen(summary)
    if found is None:
        return None
    return {"objective": found.objective, "more": found.more, "errors": found.more / found.error}[name]


def of_types(summary: Summary) -> float | None:
    """What the best other partition costs more than the run's that leaves the clients of each type together."""
    found, chosen_one = matrix(summary), chosen(summary)
    if found is None or chosen_one is None:
        return None
    options = _options(summary)
    sizes = np.array(summary["distances"]["sizes"], np.float64)
    each = len(sizes) // TYPES
    costs = [
        objective(
            found,
            sizes,
            options.c,
            [[row for one in group for row in range(one * each, (one + 1) * each)] for group in groups],
        )
        for groups in _partitions(range(TYPES))
    ]
    return min(cost for cost in costs if cost > chosen_one.objective * (1 + 1e-9)) - chosen_one.objective


def _options(summary: Summary) -> Any:
    return GROUPINGS["fedcollab"].read(summary["settings"].get("grouping_option", {}))


def _partitions(items: Sequence[int]) -> Iterator[list[list[int]]]:
    """All partitions of some items."""
    if not items:
        yield []
        return
    for rest in _partitions(items[1:]):
        yield [[items[0]], *rest]
        for place, group in enumerate(rest):
            yield [*rest[:place], [items[0], *group], *rest[place + 1 :]]


def figure_of(description: Mapping[str, Any], rows: Mapping[str, Mapping[int, Summary]], where: str) -> Figure:
    """For each row, distances by type with a dot per seed, and the objectives of the chosen and next best coalitions.

    `published` in the description has the published distance of each pair of types, such as "1 2" = 0.157.
    """
    from matplotlib.figure import Figure

    drawn = Figure(figsize=(12, 3.6 * len(rows)), layout="constrained")
    panels = drawn.subplots(len(rows), 2, squeeze=False, width_ratios=(1, 1))
    for (left, right), (label, runs) in zip(panels, rows.items(), strict=True):
        _draw_distances(left, runs, description.get("published", {}))
        _draw_objectives(right, runs)
        left.set_title(label, fontsize=10)
        for axes in (left, right):
            axes.grid(axis="y", alpha=0.3)
            axes.spines[["top", "right"]].set_visible(False)
            axes.legend(fontsize=8)
    return drawn


def _draw_distances(axes: Axes, runs: Mapping[int, Summary], published: Mapping[str, float]) -> None:
    pairs = [(one, other) for one in range(1, TYPES + 1) for other in range(one, TYPES + 1)]
    for place, pair in enumerate(pairs):
        values = [value for run in runs.values() if (value := distance(run, *pair)) is not None]
        # Seeds stand beside each other, so that equal values are seen.
        places = place + np.linspace(-0.25, 0.25, len(values))
        axes.scatter(places, values, s=10, color="#1d4ed8", label=None if place else "a seed")
    known = {place: published[f"{a} {b}"] for place, (a, b) in enumerate(pairs) if f"{a} {b}" in published}
    if known:
        axes.scatter(list(known), list(known.values()), s=60, marker="_", color="#d97706", label="published")
    axes.set_xticks(range(len(pairs)), [f"{a}-{b}" for a, b in pairs])
    axes.set(xlabel="types of the two clients", ylabel="mean distance", ylim=(-0.03, 1.05))


def _draw_objectives(axes: Axes, runs: Mapping[int, Summary]) -> None:
    found = {seed: margin for seed, run in runs.items() if (margin := chosen(run)) is not None}
    if not found:
        return
    places = list(found)
    best = np.array([one.objective for one in found.values()])
    more = np.array([one.more for one in found.values()])
    errors = np.array([one.error for one in found.values()])
    axes.scatter(places, best, s=22, color="#1d4ed8", label="chosen coalitions")
    axes.errorbar(
        places,
        best + more,
        2 * errors,
        fmt="_",
        color="#c2255c",
        label="next best, and 2 errors of the margin",
    )
    axes.set_xticks(places)
    axes.set(xlabel="seed", ylabel="objective")
