"""What happens in one run, drawn from a seed: the run, the faults, whom they hit, and when."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

Drawn = TypeVar("Drawn")

KINDS = ("kill", "stop", "cut")
#: Who may be hit, and how often; "everything" is all nodes and the top server, "pair" the link between two nodes.
VICTIMS: Mapping[str, Mapping[str, float]] = {
    "kill": {"node": 0.35, "manager": 0.3, "top server": 0.2, "everything": 0.15},
    "stop": {"node": 0.5, "manager": 0.3, "top server": 0.2},
    "cut": {"node": 0.5, "top server": 0.2, "pair": 0.3},
}
#: How long, in seconds: until a killed process is started again, a stopped one continued, a cut link mended.
LASTING = {"kill": (0.0, 2.0), "stop": (1.0, 12.0), "cut": (1.0, 15.0)}
#: The schemes whose models the oracle can tell; in every round of FedFA clients tell of themselves, too, and Ditto's
#: keep models of their own on their nodes' disks.
SCHEMES = {
    **{"ditto": 0.1, "fedgsp": 0.5, "fedavg": 0.1, "fedfa": 0.05},
    **{"naive-gsp": 0.1, "naive-gsp-icg": 0.1, "global": 0.05},
}
#: Those in which all clients train in every round.
OF_EVERYONE = ("ditto", "fedfa", "global")
RELAYS = {"auto": 0.75, "manager": 0.25}
SECOND_FAULT = 0.2
WEATHER = 0.3
LONGEST_DELAY_S = 0.3


@dataclass(frozen=True, slots=True)
class Moment:
    """`delay_s` after so many hops of a round, or after its end if it has fewer."""

    round: int
    hops: int
    delay_s: float


@dataclass(frozen=True, slots=True)
class Fault:
    """`which` of the victims there are: a number that is taken modulo theirs."""

    kind: str
    victim: str
    which: int
    moment: Moment
    lasting_s: float

    def __str__(self) -> str:
        after = f"{self.moment.delay_s:.2f} s after hop {self.moment.hops} of round {self.moment.round}"
        return f"{self.kind} {self.victim} {self.which}, {after}, for {self.lasting_s:.1f} s"


@dataclass(frozen=True, slots=True)
class Plan:
    """One run; `hosted` has the clients of each node."""

    seed: int
    scheme: str
    relay: str
    alpha: float
    rounds: int
    hosted: tuple[tuple[int, ...], ...]
    faults: tuple[Fault, ...]
    #: Of every training step, and a client has some 25: a restarted node finds the run not over yet.
    pause_s: float = 0.006
    #: What every link does to every packet.
    delay_s: float = 0.0
    loss: float = 0.0

    @property
    def clients(self) -> int:
        """All nodes' together: 0 to that number."""
        return sum(map(len, self.hosted))

    @property
    def needs_links(self) -> bool:
        """Whether nodes and top server need a network of their own."""
        return bool(self.delay_s or self.loss) or any(fault.kind == "cut" for fault in self.faults)


def draw(seed: int, kinds: Sequence[str] = KINDS) -> Plan:
    """The plan of a seed: the same for the same kinds of faults."""
    rng = np.random.default_rng([seed, zlib.crc32(b"chaos")])
    clients, nodes, rounds = int(rng.integers(8, 13)), int(rng.integers(3, 5)), int(rng.integers(4, 7))
    scheme, relay = _one_of(rng, SCHEMES), _one_of(rng, RELAYS)
    alpha = float(rng.choice([0.5, 1.0, 2.0]))
    dealt = [int(client) for client in rng.permutation(clients)]
    hosted = tuple(tuple(sorted(dealt[node::nodes])) for node in range(nodes))
    kind = kinds[int(rng.integers(len(kinds)))]
    faults = [_fault(rng, kind, clients, rounds)]
    if rng.random() < SECOND_FAULT:
        faults.append(_fault(rng, kind, clients, rounds))
    weather = (0.05, 0.02) if kind == "cut" and rng.random() < WEATHER else (0.0, 0.0)
    return Plan(seed, scheme, relay, alpha, rounds, hosted, tuple(faults), delay_s=weather[0], loss=weather[1])


def _fault(rng: np.random.Generator, kind: str, clients: int, rounds: int) -> Fault:
    victim = _one_of(rng, VICTIMS[kind])
    delay_s = round(float(rng.uniform(0, LONGEST_DELAY_S)), 3)
    moment = Moment(int(rng.integers(1, rounds + 1)), int(rng.integers(clients + 1)), delay_s)
    return Fault(kind, victim, int(rng.integers(12)), moment, round(float(rng.uniform(*LASTING[kind])), 2))


def _one_of(rng: np.random.Generator, shares: Mapping[Drawn, float]) -> Drawn:
    weights = np.array(list(shares.values()))
    return list(shares)[int(rng.choice(len(shares), p=weights / weights.sum()))]
