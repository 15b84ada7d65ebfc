"""The relay order: the sequence in which the members of a group train."""

from __future__ import annotations

from collections.abc import Sequence

from fedgsp.seeds import stream


def client_order(clients: Sequence[int], shuffle: bool, seed: int, round_number: int, group: int) -> list[int]:
    """A group's clients in relay order: shuffled in every round (FedGSP, section 1.1), or in the given order."""
    if not shuffle:
        return list(clients)
    order = stream(seed, "client-order", round_number, group).permutation(len(clients))
    return [clients[i] for i in order]
