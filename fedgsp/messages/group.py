"""Between the top server and a group manager."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from fedgsp.messages.failure import Failure
from fedgsp.messages.model import ModelRef, TensorSpec
from fedgsp.messages.order import DiscriminatorSettings, Result, Reveal, TrainingSettings


class RelayMode(IntEnum):
    """How weights travel between clients: straight where possible, only straight, or by way of the manager."""

    UNSPECIFIED = 0
    AUTO = 1
    DIRECT = 2
    MANAGER = 3


class Results(IntEnum):
    """What becomes of the models that members trained each on its own: forgotten, or where they are held."""

    UNSPECIFIED = 0
    RETAINED = 1
    COLLECTED = 2
    KEPT = 3


@dataclass(frozen=True, slots=True)
class Part:
    """A model that counts in a mean; without a node, the top server holds it."""

    ref: ModelRef | None
    node: str = ""
    weight: float = 0.0
    client: int = 0


@dataclass(frozen=True, slots=True)
class Member:
    """A client of a group, the node that hosts it, its start if not the group's, and how it counts in a mean."""

    client: int
    node: str
    peer_address: str = ""
    samples: int = 0
    start: Part | None = None
    weight: float = 0.0


@dataclass(frozen=True, slots=True)
class Discrimination:
    """How long discriminators learn: exchanges at most, between two judgements, and judgements without improvement.

    With newcomers, only pairs with one of these have discriminators.
    """

    settings: DiscriminatorSettings | None
    exchanges: int
    judge_every: int
    patience: int
    newcomers: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class FinishedHop:
    """A member that has trained, and its result, which its node may still hold."""

    member: Member | None
    model: ModelRef | None
    update_length: float = 0.0


@dataclass(frozen=True, slots=True)
class RunGroupRequest:
    """One group's part of a round. `program` names what its members do; `start` is the mean of `parts` if any.

    `planned` are all clients of the group, there or not; `attempt` counts the managers that were lost with it, under
    which the relay came as far as `finished`.
    """

    run_id: str
    round: int
    group: int
    program: str
    members: tuple[Member, ...]
    start: ModelRef | None
    start_address: str
    relay: RelayMode
    shuffle: bool
    training: TrainingSettings | None
    stall_timeout_s: float
    max_model_bytes: int
    parts: tuple[Part, ...] = ()
    without_head: bool = False
    reveal: Reveal | None = None
    results: Results = Results.UNSPECIFIED
    aggregation: str = ""
    discrimination: Discrimination | None = None
    planned: tuple[int, ...] = ()
    attempt: int = 0
    finished: tuple[FinishedHop, ...] = ()
    tensors: tuple[TensorSpec, ...] = ()
    most_update_ratio: float = 0.0
    serial: int = 0
    update_lengths: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class MemberDone:
    """A member finished its order; the length of its update, where the manager looks at it."""

    client: int
    position: int
    result: Result | None
    update_length: float = 0.0


@dataclass(frozen=True, slots=True)
class MemberSkipped:
    """A member took no part, and why."""

    client: int
    failure: Failure | None


@dataclass(frozen=True, slots=True)
class Rerouted:
    """Weights, or the chain, went another way than declared."""

    client: int
    reason: str


@dataclass(frozen=True, slots=True)
class PartLost:
    """The model of a client could not be had; the group's start is the mean of the other parts."""

    client: int
    failure: Failure | None


@dataclass(frozen=True, slots=True)
class PairsLeft:
    """Pairs of clients whose discriminators still learn after so many exchanges."""

    exchanges: int
    left: int
    pairs: int


@dataclass(frozen=True, slots=True)
class GroupResult:
    """A group is done: its model as held by the manager (no id if none), and the weight bytes that moved for it."""

    ref: ModelRef | None
    samples: int
    bytes_direct: int
    bytes_relayed: int


@dataclass(frozen=True, slots=True)
class GroupEvent:
    """From a manager to the top server while a group runs; the last one is a result or a failure."""

    kind: MemberDone | MemberSkipped | Rerouted | GroupResult | Failure | PartLost | PairsLeft | None
