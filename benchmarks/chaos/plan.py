"""Draws the plan of one run from a seed: its settings, and the faults with their victims and moments."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from fedgsp.transfers.link_choice import AUTO

Drawn = TypeVar("Drawn")

KINDS = ("kill", "stop", "cut")
#: Probabilities of victims. "everything" is all nodes and the top server, "pair" is the link between two nodes.
VICTIMS: Mapping[str, Mapping[str, float]] = {
    "kill": {"node": 0.35, "manager": 0.3, "top server": 0.2, "everything": 0.15},
    "stop": {"node": 0.5, "manager": 0.3, "top server": 0.2},
    "cut": {"node": 0.5, "top server": 0.2, "pair": 0.3},
}
#: Duration of a fault in seconds, least and most: until a process is started again or continued, or a link works.
LASTING = {"kill": (0.0, 2.0), "stop": (1.0, 12.0), "cut": (1.0, 15.0)}
#: Probabilities of schemes, all of which the oracle can compute. In FedFA, clients also report a profile in every
#: round; in Ditto, they keep personal models on their nodes' disks.
SCHEMES = {
    **{"ditto": 0.1, "fedgsp": 0.5, "fedavg": 0.1, "fedfa": 0.05},
    **{"naive-gsp": 0.1, "naive-gsp-icg": 0.1, "global": 0.05},
}
#: The schemes in which all clients train in every round.
OF_EVERYONE = ("ditto", "fedfa", "global")
#: AdamW whose state is relayed with the model.
RELAYED = "relayed adamw"
#: AdamW whose state stays with the clients.
KEPT = "kept adamw"
#: Probabilities of optimisers. Ditto's second model is computed with plain SGD by the oracle.
OPTIMIZERS = {"sgd": 0.7, "adamw": 0.1, RELAYED: 0.1, KEPT: 0.1}
#: Probabilities of models, see `slow_digits`.
VARIANTS = {"plain": 0.6, "frozen": 0.15, "bfloat16": 0.15, "both": 0.1}
RELAYS = {"auto": 0.75, "manager": 0.25}
SECOND_FAULT = 0.2
#: Probability that a stop is repeated; number of repetitions, least and most, and the seconds of each stop and of the
#: pauses between them. A process that wakes finds that its own questions have no answer, although nobody was away.
REPEATED = 0.5
TIMES, SHORT_STOP_S, GAP_S = (2, 5), (1.0, 3.0), (0.02, 1.5)
WEATHER = 0.3
LONGEST_DELAY_S = 0.3


@dataclass(frozen=True, slots=True)
class Moment:
    """`delay_s` seconds after hop number `hops` of a round, or after the round if it has fewer hops."""

    round: int
    hops: int
    delay_s: float


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault. `which`, modulo the number of possible victims, chooses one of them."""

    kind: str
    victim: str
    which: int
    moment: Moment
    lasting_s: float
    #: How often the fault comes, and the pause between two times in seconds.
    times: int = 1
    gap_s: float = 0.0

    def __str__(self) -> str:
        after = f"{self.moment.delay_s:.2f} s after hop {self.moment.hops} of round {self.moment.round}"
        repeated = f", {self.times} times with pauses of {self.gap_s:.2f} s" if self.times > 1 else ""
        return f"{self.kind} {self.victim} {self.which}, {after}, for {self.lasting_s:.1f} s{repeated}"


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of one run. `hosted` has the clients of each node."""

    seed: int
    scheme: str
    relay: str
    alpha: float
    rounds: int
    hosted: tuple[tuple[int, ...], ...]
    faults: tuple[Fault, ...]
    #: Pause in every training step, of which a client has about 25, so that a restarted node can still join the run.
    pause_s: float = 0.006
    #: Delay and loss of packets on every link.
    delay_s: float = 0.0
    loss: float = 0.0
    optimizer: str = "sgd"
    variant: str = "plain"
    #: Nodes whose training steps take several times as long: number of the node, and how many times.
    slow: tuple[tuple[int, float], ...] = ()
    #: Nodes behind thin links: number of the node, and bytes per second in each direction.
    thin: tuple[tuple[int, float], ...] = ()
    #: A middlebox drops the packets of connections that were idle for so many seconds.
    idle_s: float = math.inf
    #: Clients that every round waits for.
    min_clients: int = 1
    #: All connections use TLS, with certificates of the run's own CA.
    tls: bool = False
    #: How models travel: the setting --wire.
    wire: str = AUTO
    #: The run directory and the state directory of each node are on small disks of their own.
    small_disks: bool = False
    #: The run is given up after so many seconds.
    deadline_s: float = 120.0
    #: Groups are dealt by how long their clients take: the setting --balance.
    balance: bool = False
    #: Number of groups in the first round.
    beta: int = 2
    #: Size of a model of which nothing is computed, in place of one that learns.
    parameters: int = 0

    @property
    def clients(self) -> int:
        """The number of clients of all nodes. Their ids count from 0."""
        return sum(map(len, self.hosted))

    @property
    def needs_links(self) -> bool:
        """Whether the run needs a separate network, for cut or slow links."""
        weather = self.delay_s or self.loss or self.thin or self.idle_s < math.inf
        return bool(weather) or any(fault.kind == "cut" for fault in self.faults)


def draw(seed: int, kinds: Sequence[str] = KINDS) -> Plan:
    """The plan of a seed. It is always the same for the same kinds of faults."""
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
    repeats = np.random.default_rng([seed, zlib.crc32(b"chaos-repeats")])
    faults = [repeated(repeats, fault) if fault.kind == "stop" else fault for fault in faults]
    weather = (0.05, 0.02) if kind == "cut" and rng.random() < WEATHER else (0.0, 0.0)
    # From streams of their own, so that a seed keeps its faults.
    optimizer = _one_of(np.random.default_rng([seed, zlib.crc32(b"chaos-optimizer")]), OPTIMIZERS)
    variant = _one_of(np.random.default_rng([seed, zlib.crc32(b"chaos-variant")]), VARIANTS)
    return Plan(
        seed,
        scheme,
        relay,
        alpha,
        rounds,
        hosted,
        tuple(faults),
        delay_s=weather[0],
        loss=weather[1],
        optimizer="sgd" if scheme == "ditto" else optimizer,
        variant=variant,
    )


def _fault(rng: np.random.Generator, kind: str, clients: int, rounds: int) -> Fault:
    victim = _one_of(rng, VICTIMS[kind])
    delay_s = round(float(rng.uniform(0, LONGEST_DELAY_S)), 3)
    moment = Moment(int(rng.integers(1, rounds + 1)), int(rng.integers(clients + 1)), delay_s)
    return Fault(kind, victim, int(rng.integers(12)), moment, round(float(rng.uniform(*LASTING[kind])), 2))


def repeated(rng: np.random.Generator, fault: Fault) -> Fault:
    """The same stop as several short ones, or as it is."""
    if rng.random() >= REPEATED:
        return fault
    times, seconds, gap_s = int(rng.integers(*TIMES)), rng.uniform(*SHORT_STOP_S), rng.uniform(*GAP_S)
    return replace(fault, lasting_s=round(float(seconds), 2), times=times, gap_s=round(float(gap_s), 2))


def _one_of(rng: np.random.Generator, shares: Mapping[Drawn, float]) -> Drawn:
    weights = np.array(list(shares.values()))
    return list(shares)[int(rng.choice(len(shares), p=weights / weights.sum()))]
