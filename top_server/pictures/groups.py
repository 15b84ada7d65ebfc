"""Who trained with whom, by client and round: as much of it as a picture has room for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedgsp.words import share

#: Round -> the groups of clients that trained in it.
Teams = Mapping[int, Sequence[Sequence[int]]]
T = TypeVar("T")


class Room(NamedTuple):
    """How many rounds and clients a picture shows, at most."""

    rounds: int
    clients: int


#: Groups that change in each round are drawn for the last rounds and for some clients: more would be noise.
FEW = Room(rounds=100, clients=150)
#: A picture has about so many points: more rounds or clients could not be told apart.
MANY = Room(rounds=1_000, clients=1_000)
#: A matrix of more rounds or clients is wide.
_NARROW = 60


@dataclass(frozen=True, slots=True)
class Groups:
    """The rounds and clients that are drawn, and how many there are."""

    rounds: range
    #: Ascending.
    clients: list[int]
    all_rounds: int
    #: Clients that trained in one of `rounds`.
    all_clients: int
    teams: Teams
    #: Whether groups last. A group then has the number of its first member, so that it keeps its colour.
    lasting: bool

    @property
    def wide(self) -> bool:
        """Whether there are too many clients or rounds for a narrow panel."""
        return max(len(self.rounds), len(self.clients)) > _NARROW

    @property
    def title(self) -> str:
        """What is drawn, and how to read the colours."""
        shown = (
            f"{share(len(self.clients), self.all_clients, 'client')},"
            f" {share(len(self.rounds), self.all_rounds, 'round')}: "
        )
        if not self.lasting:
            return f"{shown}a colour is a group of its round, white did not train"
        complete = len(self.rounds) == self.all_rounds and len(self.clients) == self.all_clients
        return f"{'' if complete else shown}a group has the colour of its first member"

    @property
    def image(self) -> NDArray[np.float64]:
        """The number of each client's group in each round, shape (clients, rounds); NaN for a client without a group.

        The number of a group is its position in the round. If groups last, it is the place of its smallest client
        among the smallest clients of all groups, in the order in which these came: few groups get small numbers, which
        differ also where a picture has few colours.
        """
        place = {client: row for row, client in enumerate(self.clients)}
        came = dict.fromkeys(min(group) for _, groups in sorted(self.teams.items()) for group in groups)
        numbers = {first: number for number, first in enumerate(came)}
        image = np.full((len(self.clients), len(self.rounds)), np.nan)
        for column, played in enumerate(self.rounds):
            for position, group in enumerate(self.teams.get(played, ())):
                number = numbers[min(group)] if self.lasting else position
                image[[place[client] for client in group if client in place], column] = number
        return image


def fitting(teams: Teams, rounds: range, lasting: bool, room: Room) -> Groups | None:
    """The last of these rounds, and some of the clients that trained in them; None if nobody did."""
    last = rounds[-room.rounds :]
    clients = sorted({client for played in last for group in teams.get(played, ()) for client in group})
    if not clients:
        return None
    return Groups(last, some(clients, room.clients), len(rounds), len(clients), teams, lasting)


def some(of: Sequence[T], most: int) -> list[T]:
    """At most so many of these, from the first to the last, and as far apart as can be."""
    places = np.unique(np.linspace(0, len(of) - 1, most).round().astype(int)) if len(of) > most else range(len(of))
    return [of[place] for place in places]
