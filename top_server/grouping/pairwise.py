"""Reads and checks the matrices of a request that have a row and a column per client."""

import numpy as np
from numpy.typing import NDArray

from fedgsp.errors import ConfigError
from top_server.grouping.request import Flags, Floats, GroupingRequest

Matrix = NDArray[np.floating]

#: A vector (an update, or the mean of a group) that is shorter counts as 0: its cosines are 0.
SHORTEST = 1e-12


def square(request: GroupingRequest, grouping: str, name: str, what: str) -> Matrix:
    """The matrix `name`, shape (N, N); raises ConfigError, which says `what` it is, if it is missing or misshapen."""
    if name not in request.matrices:
        raise ConfigError(
            f"grouping {grouping} needs {what} (matrix {name})",
            f"let clients report what it is made from (scheme {grouping}), or use grouping random",
        )
    matrix, count = request.matrices[name], len(request.clients)
    if matrix.shape != (count, count):
        raise ConfigError(
            f"grouping {grouping}: matrix {name} has shape {matrix.shape} for {count} clients",
            "give it a row and a column per client",
        )
    return matrix if matrix.dtype.kind == "f" else matrix.astype(np.float64)


def products(request: GroupingRequest, grouping: str, what: str) -> tuple[Matrix, Flags]:
    """Matrix `gram`, the inner products of the clients' `what` ("updates", say), and which clients have reported any.

    A client that reported nothing has NaN in its whole row and column. Raises ConfigError if the entries cannot be
    inner products.
    """
    gram = square(request, grouping, "gram", f"the inner products of the clients' {what}")
    known: Flags = np.isfinite(np.diagonal(gram))
    # One row after the other, so that no second matrix is needed.
    if (
        not all(np.isfinite(gram[row, known]).all() for row in np.flatnonzero(known))
        or (np.diagonal(gram)[known] < 0).any()
    ):
        raise ConfigError(
            f"grouping {grouping}: matrix gram has entries that are no inner products of {what}",
            "give finite numbers, and NaN only in the whole row and column of a client that reported nothing",
        )
    return gram, known


def reciprocals(lengths: Floats) -> Floats:
    """1 / length of each vector. An inner product times the reciprocals of both vectors is their cosine.

    A vector shorter than SHORTEST has reciprocal 0.
    """
    return np.divide(1, lengths, out=np.zeros_like(lengths), where=lengths >= SHORTEST)
