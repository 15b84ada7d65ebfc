"""Which clients are compared in one measurement, and on how many samples of each."""

from collections.abc import Collection, Mapping
from typing import NamedTuple


class Measurement(NamedTuple):
    """Clients that are compared pairwise; all of them train on equally many samples."""

    samples: int
    clients: tuple[int, ...]
    #: Only pairs with one of these clients are compared; all pairs if this is empty.
    newcomers: tuple[int, ...] = ()

    def tells(self, pair: tuple[int, int]) -> bool:
        """Whether this measurement compares two of its clients."""
        return not self.newcomers or bool(set(self.newcomers).intersection(pair))


def measurements(sizes: Mapping[int, int], arrived: Collection[int], most: int) -> list[Measurement]:
    """Measurements that compare every pair with an arrived client exactly once.

    `sizes` are the training samples of all clients, two or more each. A pair is compared on `most` samples of each
    client, or on half of the smaller client's samples if that is less. The clients that have 2 * `most` samples are
    measured together; every other client is measured with all larger ones.
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
