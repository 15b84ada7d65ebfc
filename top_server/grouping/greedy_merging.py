"""Merges groups bottom-up by the largest gain in utility, from inner products of the clients' updates (HCCT, alg. 2).

Client i has D_i samples, the update g_i of its model, and alpha_i, which says how much it prefers more data to similar
data. The utility of a group C is U(C) = sum over i in C of -alpha_i / D_C + cos(g_i, ghat_C), where D_C is the number
of samples of the group and ghat_C the mean of its updates, weighted by samples. The benefit of merging A and B is
U(A + B) - U(A) - U(B); the paper's beta cancels in it.

Let S_C = sum of g_i / ||g_i|| and h_C = sum of D_i g_i. The cosines of a group add up to <S_C, h_C> / ||h_C||. Both
products of a merged group follow from the products of its parts:

    ||h_AB||^2   = ||h_A||^2  + ||h_B||^2  + 2 <h_A, h_B>
    <S_AB, h_AB> = <S_A, h_A> + <S_B, h_B> + <S_A, h_B> + <S_B, h_A>

So it is enough to keep two symmetric matrices with a row and a column per group; a merge adds two rows and two columns
of each. The paper's pseudo-code merges two groups before it tests whether they gain. The paper's text tests first, and
so does this file: two groups are merged only if their benefit is above 0.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from top_server.grouping.pairwise import SHORTEST, reciprocals
from top_server.grouping.request import Floats, Ints

_Number = np.float64 | Floats

#: A benefit is a difference of sums of cosines. Below this many times the rounding error of a number it counts as 0.
_ROUNDING_ERRORS = 16
#: With up to so many clients the two matrices are float64 (16 N^2 bytes), with more float32 (8 N^2 bytes).
_MOST_IN_DOUBLES = 4096
#: The columns of merged groups are dropped when they are half of all columns; in small matrices that saves nothing.
_FEWEST_TO_COMPACT = 128
_STALE = -1


def partition(
    gram: NDArray[np.floating], sizes: NDArray[np.integer], alphas: Floats, groups: int | None = None
) -> list[list[int]]:
    """Groups of row numbers: rows ascending, groups ordered by their smallest rows. Takes nearly O(N^2) time.

    `gram` (N, N) holds <g_i, g_j>, finite and symmetric; `sizes` (N,) samples, at least 1; `alphas` (N,). Merging ends
    when no benefit is above 0. With `groups`, it ends when so many groups are left, even if the last merges lose
    utility. In a tie, the pair of groups with the smaller smallest members is merged. `gram` is read once and not
    kept.
    """
    if not len(gram):
        return []
    merging = _Merging(gram, sizes, alphas)
    while merging.count > (groups or 1):
        benefit, first, second = merging.best()
        if groups is None and benefit <= merging.rounding:
            break
        merging.merge(first, second)
    return [sorted(members) for members in merging.members if members]


def utility(
    gram: NDArray[np.floating], sizes: NDArray[np.integer], alphas: Floats, members: Sequence[int] | Ints
) -> float:
    """The utility U of the group of these row numbers, without the paper's beta."""
    rows = np.asarray(members)
    size = sizes[rows].astype(np.float64)
    # One row after the other, so that a large group needs no copy of its part of the matrix.
    along = np.array([gram[row, rows] @ size for row in rows])  # <g_i, h_C>
    inverse = reciprocals(np.sqrt(gram[rows, rows], dtype=np.float64))
    return float(_utility(alphas[rows].sum(), size.sum(), along @ inverse, along @ size))


def place(
    gram: NDArray[np.floating],
    sizes: NDArray[np.integer],
    alphas: Floats,
    groups: Sequence[Sequence[int]],
    newcomer: int,
) -> int | None:
    """The index of the group that gains most by the newcomer, a row number; None if no group gains (eq. 15, 16)."""
    alone = utility(gram, sizes, alphas, [newcomer])
    benefits = [
        utility(gram, sizes, alphas, [*group, newcomer]) - utility(gram, sizes, alphas, group) - alone
        for group in groups
    ]
    if not benefits or max(benefits) <= _rounding(gram.dtype):
        return None
    return int(np.argmax(benefits))


class _Merging:
    """The groups so far. Each stands at the place of its smallest member, and has a best partner at a later place.

    Invariant: `bound[r]` is the largest benefit of merging r with any j > r, and `partner[r]` is the smallest j that
    reaches it. If the partner has changed since, the row is stale, and `bound[r]` is only an upper bound. So only a
    stale row with the largest bound of all must be computed again. A dead group, which was merged into another one,
    has utility inf and therefore benefit -inf.
    """

    def __init__(self, gram: NDArray[np.floating], sizes: NDArray[np.integer], alphas: Floats) -> None:
        count = len(gram)
        dtype: np.dtype[np.floating] = np.dtype(np.float64 if count <= _MOST_IN_DOUBLES else np.float32)
        # Sizes are divided by the largest, to keep products small; alphas are divided alike, so alpha / D does not
        # change.
        largest = float(sizes.max())
        self.size: Floats = sizes / largest
        self.alpha: Floats = alphas / largest
        lengths = np.sqrt(np.diagonal(gram), dtype=np.float64)
        inverse = reciprocals(lengths)

        self.between_h = np.empty((count, count), dtype)  # <h_A, h_B>
        self.between_sh = np.empty((count, count), dtype)  # <S_A, h_B> + <S_B, h_A>
        for row, products in enumerate(gram):
            self.between_h[row] = products * (self.size[row] * self.size)
            self.between_sh[row] = products * (self.size[row] * inverse + inverse[row] * self.size)
        self.within_h: Floats = (self.size * lengths) ** 2  # ||h_A||^2
        self.within_sh: Floats = self.size * lengths * (inverse > 0)  # <S_A, h_A>
        self.utility = _utility(self.alpha, self.size, self.within_sh, self.within_h)

        self.count = count
        self.members = [[row] for row in range(count)]
        self.rounding = max(_rounding(gram.dtype), _rounding(dtype))
        self.bound = np.full(count, -np.inf)
        self.partner = np.full(count, _STALE)
        for row in range(count - 1):
            self._find_partner(row)

    def best(self) -> tuple[float, int, int]:
        """The largest benefit, and the places of the two groups that have it; at least two groups must be left."""
        while True:
            row = int(self.bound.argmax())
            if self.partner[row] != _STALE:
                return float(self.bound[row]), row, int(self.partner[row])
            self._find_partner(row)

    def merge(self, first: int, second: int) -> None:
        """Merges the group at place `second` into the group at place `first`, which is smaller."""
        self.within_h[first] += self.within_h[second] + 2 * float(self.between_h[first, second])
        self.within_sh[first] += self.within_sh[second] + float(self.between_sh[first, second])
        for between in (self.between_h, self.between_sh):
            between[first] += between[second]
            between[:, first] = between[first]
        self.size[first] += self.size[second]
        self.alpha[first] += self.alpha[second]
        self.utility[first] = _utility(
            self.alpha[first], self.size[first], self.within_sh[first], self.within_h[first]
        )
        self.members[first] += self.members[second]
        self.members[second] = []
        self.utility[second], self.bound[second] = np.inf, -np.inf
        self.count -= 1
        self._update_partners(first, second)
        if self.count < len(self.members) // 2 and len(self.members) >= _FEWEST_TO_COMPACT:
            self._compact()

    def _update_partners(self, first: int, second: int) -> None:
        benefits = self._benefits(first, slice(first))
        self.partner[(self.partner == first) | (self.partner == second)] = _STALE
        bound, partner = self.bound[:first], self.partner[:first]
        # A stale row has no valid partner: if the benefit only equals its bound, the row stays stale.
        better = (benefits > bound) | ((benefits == bound) & (first <= partner))
        partner[better] = first
        bound[better] = benefits[better]
        self._find_partner(first)

    def _find_partner(self, row: int) -> None:
        later = self._benefits(row, slice(row + 1, None))
        if len(later):
            best = int(later.argmax())
            self.partner[row], self.bound[row] = row + 1 + best, later[best]
        else:
            self.bound[row] = -np.inf

    def _benefits(self, row: int, others: slice) -> Floats:
        """Benefits of merging the group at `row` with each at the places `others`; order does not change bits."""
        merged = _utility(
            self.alpha[row] + self.alpha[others],
            self.size[row] + self.size[others],
            (self.within_sh[row] + self.within_sh[others]) + self.between_sh[row, others],
            (self.within_h[row] + self.within_h[others]) + 2 * self.between_h[row, others],
        )
        return np.asarray(merged - (self.utility[row] + self.utility[others]), np.float64)

    def _compact(self) -> None:
        """Drops the dead groups. The others keep their order."""
        alive = np.isfinite(self.utility)
        kept = np.flatnonzero(alive)
        places = np.cumsum(alive) - 1
        self.partner = np.where(self.partner == _STALE, _STALE, places[self.partner])[kept]
        self.between_h = self.between_h[np.ix_(kept, kept)]
        self.between_sh = self.between_sh[np.ix_(kept, kept)]
        self.size, self.alpha = self.size[kept], self.alpha[kept]
        self.within_h, self.within_sh = self.within_h[kept], self.within_sh[kept]
        self.utility, self.bound = self.utility[kept], self.bound[kept]
        self.members = [self.members[place] for place in kept]


def _utility(alpha: _Number, size: _Number, within_sh: _Number, within_h: _Number) -> Floats:
    length = np.sqrt(np.maximum(within_h, 0))  # rounding may leave the square of no length just below 0
    cosines = np.divide(within_sh, length, out=np.zeros_like(length), where=length >= SHORTEST * size)
    return cosines - alpha / size


def _rounding(dtype: np.dtype[np.floating]) -> float:
    return _ROUNDING_ERRORS * float(np.finfo(dtype).eps)
