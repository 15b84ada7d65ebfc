"""Events of what clients tell before they are grouped."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

from top_server.record.events.base import ABSENT, Event, MayLack, RoundEvent, told


class ClustersChosen(RoundEvent):
    """`ifca` and `flsc`: the clients have compared the models."""

    clients: Sequence[int] = told("number of clients that chose each cluster")
    train_loss: float | None = told("mean of the clients' smallest losses, weighted by samples")


class LayerChosen(Event):
    """`similarity=layer`: the layer is chosen by which updates are compared; once, as a rule before round 2."""

    layer: str
    scores: Mapping[str, float] = told("score of each layer")


class Newcomers(RoundEvent):
    """Schemes that compare updates: late clients, and clients without a model, have trained once to be placed."""

    clients: Sequence[int]


class NewcomersWait(RoundEvent):
    """Schemes that compare updates: the mean of models from which newcomers start could not be had.

    They miss the round, and are newcomers in the next one.
    """

    clients: Sequence[int]
    reason: str


class ClientPlaced(RoundEvent):
    """The groups are fixed, and a late client got a place in one of them."""

    client: int
    group: int


class TimesExpected(RoundEvent):
    """`--balance time`: how long the clients are expected to take. The groups of the round are dealt by it."""

    may_lack: ClassVar[tuple[MayLack, ...]] = (MayLack("by_samples"), MayLack("seconds"))

    seconds: Mapping[int, float] = told(
        "by client: the low median of its last five turns, per sample; without turns, by its samples", default=ABSENT
    )
    by_samples: Sequence[int] = told("clients without a turn so far", default=ABSENT)


class Discriminators(Event):
    """`fedcollab`: the networks that tell the clients' data apart were judged once more."""

    exchanges: int = told("exchanges of weights so far")
    most: int = told("exchanges at most")
    left: int = told("networks that still learn")
    networks: int = told("all networks: one per pair of clients, and two with `estimate=cross-fitted`")


class DistancesFound(RoundEvent):
    """`fedcollab`: the distances between the data of these clients are known."""

    clients: Sequence[int]
    seconds: float
    bytes: int = told("bytes of weights that moved for it")


class NotCompared(RoundEvent):
    """`fedcollab`: a client has too few samples to be compared with others, or was skipped as they were compared.

    Until it is compared, its data count as completely unlike those of all others.
    """

    client: int
    reason: str
