"""Which clients are told apart together, on how many samples of each."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple


class Measurement(NamedTuple):
    """All these clients train on equally many samples."""

    samples: int
    clients: tuple[int, ...]
    #: Only pairs with one of them are told apart; all pairs if there are none.
    newcomers: tuple[int, ...] = ()

    def tells(self, pair: tuple[int, int]) -> bool:
        """Whether it tells how far two of its clients are apart."""
        return not self.newcomers or bool(set(self.newcomers).intersection(pair))


def measurements(sizes: Mapping[int, int], arrived: Collection[int], most: int) -> list[Measurement]:
    """Every pair with one that arrived, once: on `most` samples of each, or half of the smaller part if that is less.

    `sizes` are the training samples, two or more, of all clients. Those who can spare `most` are measured together,
    of the others each by itself with all that have more.
    """
    large = [client for client in sizes if sizes[client] // 2 >= most]
    new = tuple(client for client in large if client in arrived)
    found = []
    if new and len(large) > 1:
        found.append(Measurement(most, tuple(large), new if len(new) < len(large) else ()))
    before = large
    for client in sorted(sizes.keys() - set(large), key=lambda client: (-sizes[client], client)):
        partners = [other for other in before if client in arrived or other in arrived]
        if partners:
            found.append(Measurement(sizes[client] // 2, tuple(sorted([client, *partners])), (client,)))
        before = [*before, client]
    return found
