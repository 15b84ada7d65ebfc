"""What a profile found out about the clients of a round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from fedgsp.messages import Reveal

#: Matrices with a column per client too.
PAIRWISE = ("gram", "distances")


@dataclass(frozen=True, slots=True, eq=False)
class Evidence:
    """The clients that can be grouped, ascending; row i of every array belongs to `clients[i]`."""

    clients: tuple[int, ...]
    histograms: NDArray[np.int64] | None = None
    matrices: Mapping[str, NDArray[np.floating]] = field(default_factory=dict)
    #: Clients that came while training went on.
    newcomers: tuple[int, ...] = ()
    #: What the clients are to show of their updates in this round.
    reveal: Reveal | None = None
    #: Whether clients keep what they trained, beside what it was merged into.
    retain: bool = False

    def of(self, clients: Sequence[int]) -> Evidence:
        """The part about some of the clients."""
        place = {client: row for row, client in enumerate(self.clients)}
        rows = np.array([place[client] for client in clients], np.int64)
        wanted = set(clients)
        return replace(
            self,
            clients=tuple(clients),
            histograms=None if self.histograms is None else self.histograms[rows],
            matrices={
                name: matrix[np.ix_(rows, rows)] if name in PAIRWISE else matrix[rows]
                for name, matrix in self.matrices.items()
            },
            newcomers=tuple(client for client in self.newcomers if client in wanted),
        )

    def columns(self, clients: Sequence[int]) -> dict[str, NDArray[np.floating]]:
        """What is one figure per client, of some of the clients; of losses under several models the first."""
        about = replace(self, matrices={name: m for name, m in self.matrices.items() if name not in PAIRWISE})
        return {name: matrix[:, 0] for name, matrix in about.of(clients).matrices.items()}
