"""In which order the members of a group train."""

from __future__ import annotations

from fedgsp.messages import Member
from fedgsp.seeds import stream


def client_order(members: tuple[Member, ...], shuffle: bool, seed: int, round_number: int, group: int) -> list[Member]:
    """Members in relay order: shuffled anew every round (FedGSP, section 1.1), or as given."""
    if not shuffle:
        return list(members)
    order = stream(seed, "client-order", round_number, group).permutation(len(members))
    return [members[i] for i in order]
