"""The evidence that a profile gathered about the clients of a round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from fedgsp.messages import Reveal

Matrices = Mapping[str, NDArray[np.floating]]


@dataclass(frozen=True, slots=True, eq=False)
class Evidence:
    """Evidence about N clients; row i of every array belongs to `clients[i]`."""

    #: The clients that can be grouped, in ascending order.
    clients: tuple[int, ...]
    histograms: NDArray[np.int64] | None = None
    #: Name -> array with a row per client: one figure of the client, or one figure for each of several models.
    figures: Matrices = field(default_factory=dict)
    #: Name -> matrix with a row and a column per client.
    pairwise: Matrices = field(default_factory=dict)
    #: Clients that joined after the first round.
    newcomers: tuple[int, ...] = ()
    #: Those of the clients whose nodes are away, and their training samples. They count for who joins their groups.
    away: Mapping[int, int] = field(default_factory=dict)
    #: The view of their updates that clients are asked to reveal in this round.
    reveal: Reveal | None = None
    #: Whether nodes retain the model that each client trains.
    retain: bool = False
    #: Clients whose retained model is lost.
    without_model: tuple[int, ...] = ()

    @property
    def matrices(self) -> dict[str, NDArray[np.floating]]:
        """All named matrices, as groupings read them."""
        return {**self.figures, **self.pairwise}

    def of(self, clients: Sequence[int]) -> Evidence:
        """The evidence about some of the clients."""
        place = {client: row for row, client in enumerate(self.clients)}
        rows = np.array([place[client] for client in clients], np.int64)
        wanted = set(clients)
        return replace(
            self,
            clients=tuple(clients),
            histograms=None if self.histograms is None else self.histograms[rows],
            figures={name: matrix[rows] for name, matrix in self.figures.items()},
            pairwise={name: matrix[np.ix_(rows, rows)] for name, matrix in self.pairwise.items()},
            newcomers=tuple(client for client in self.newcomers if client in wanted),
            away={client: samples for client, samples in self.away.items() if client in wanted},
        )

    def columns(self, clients: Sequence[int]) -> dict[str, NDArray[np.floating]]:
        """The first column of every matrix in `figures`, for some clients; shape (len(clients),) each.

        NaN for a client that the evidence is not about.
        """
        place = {client: row for row, client in enumerate(self.clients)}
        rows = np.array([place.get(client, len(place)) for client in clients], np.int64)
        return {
            name: np.append(matrix[:, 0], matrix.dtype.type(np.nan))[rows] for name, matrix in self.figures.items()
        }
