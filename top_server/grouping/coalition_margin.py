"""How sure a choice of coalitions is: what the next best ones cost more, beside the errors of the distances."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from top_server.grouping.coalitions import Solution, objective
from top_server.grouping.request import ranges

Floats = NDArray[np.float64]

#: A margin of fewer standard errors is doubtful.
SURE_ERRORS = 2.0
#: Where the errors are not known: a margin of a smaller share of the objective is doubtful.
SURE_SHARE = 0.01
#: Longest text about the next best coalitions.
MOST_CHARACTERS = 300


@dataclass(frozen=True, slots=True)
class Margin:
    """The objective of chosen coalitions, and what the next best ones cost more."""

    objective: float
    more: float
    #: Standard error of `more`; NaN if that of a distance is not known.
    error: float
    #: The coalitions of the next best choice that the chosen one does not have, as client ids.
    instead: str

    @property
    def doubtful(self) -> bool:
        """Whether other samples of the same clients might well give other coalitions."""
        return self.more < (SURE_SHARE * self.objective if np.isnan(self.error) else SURE_ERRORS * self.error)

    def __str__(self) -> str:
        error = "" if np.isnan(self.error) else f" (standard error {self.error:.3g})"
        return f"objective {self.objective:.4f}; the next best, {self.instead}, costs {self.more:.3g} more{error}"


def margin(
    solution: Solution, distances: Floats, errors: Floats, sizes: Floats, weight: float, clients: Sequence[int]
) -> Margin | None:
    """The margin of a solution; None if there is no other partition.

    `distances` (N, N), `sizes` (N,) and `weight` are those that were solved; `errors` (N, N) are the standard errors
    of the distances, which count as independent of each other. Row i belongs to `clients[i]`.
    """
    if solution.next_best is None:
        return None
    best = objective(distances, sizes, weight, solution.groups)
    change = _shares(solution.next_best, sizes) - _shares(solution.groups, sizes)
    change = np.triu(change + change.T, 1)
    counted = change != 0
    fresh = [group for group in solution.next_best if group not in solution.groups]
    text = " ".join(f"{{{ranges(clients[row] for row in group)}}}" for group in fresh)
    return Margin(
        best,
        objective(distances, sizes, weight, solution.next_best) - best,
        float(np.sqrt(np.sum((change[counted] * errors[counted]) ** 2))),
        text if len(text) <= MOST_CHARACTERS else f"{text[:MOST_CHARACTERS]} ...",
    )


def _shares(groups: Sequence[Sequence[int]], sizes: Floats) -> Floats:
    """The factor of each distance in the objective, shape (N, N): m_j / m_c if both are in coalition c, else 0."""
    found = np.zeros((len(sizes), len(sizes)))
    for group in groups:
        found[np.ix_(group, group)] = sizes[group] / sizes[group].sum()
    return found
