"""Draws a campaign: 20 rounds of 8 sites that differ in speed, behind links that are thin, cut, and forgotten."""

from __future__ import annotations

import zlib
from collections.abc import Callable

import numpy as np

from benchmarks.chaos.plan import KEPT, Fault, Moment, Plan, repeated
from fedgsp.transfers.link_choice import AUTO, CODED

#: A second of a campaign stands for so many seconds between hospitals. Waits of FedGSP, such as --lost-after, are not
#: scaled, so that an absence here is short compared with them.
SCALE = 20.0
ROUNDS, SITES, CLIENTS_OF_SITE = 20, 8, 2
#: One site is so many times slower than the others; the links of two carry so many bytes per second.
SLOWER, THIN_SITES, THIN_RATE = 20.0, 2, 100_000.0
#: Cuts between hospitals, in seconds: some of up to a minute, and a VPN that was away for six minutes.
SHORT_CUT_S, LONG_CUT_S = (5.0, 60.0), 360.0
#: A middlebox forgets connections after a minute. This one is not scaled as far, because pings are not scaled.
IDLE_S = 8.0
#: Half of the clients must be there in every round.
MIN_CLIENTS = SITES * CLIENTS_OF_SITE // 2
SCHEMES = ("fedgsp", "fedavg", "global", "naive-gsp-icg")
#: With kept state, nodes write more to their disks.
OPTIMIZERS = ("sgd", KEPT)
WIRES = (AUTO, CODED)
DEADLINE_S = 900.0

#: The faults of a campaign, each in another round: kind, victim, and how long it lasts in seconds of the campaign.
FAULTS: tuple[tuple[str, str, Callable[[np.random.Generator], float]], ...] = (
    *[("cut", "node", lambda rng: float(rng.uniform(*SHORT_CUT_S)) / SCALE)] * 3,
    ("cut", "node", lambda _: LONG_CUT_S / SCALE),
    ("cut", "top server", lambda rng: float(rng.uniform(*SHORT_CUT_S)) / SCALE),
    ("cut", "pair", lambda rng: float(rng.uniform(*SHORT_CUT_S)) / SCALE),
    *[("kill", "node", lambda rng: float(rng.uniform(0, 2)))] * 2,
    ("kill", "manager", lambda _: 0.0),
    ("kill", "top server", lambda rng: float(rng.uniform(0, 2))),
    ("stop", "node", lambda rng: float(rng.uniform(1, 10))),
    ("stop", "manager", lambda rng: float(rng.uniform(1, 6))),
    ("stop", "top server", lambda rng: float(rng.uniform(1, 6))),
    ("expire", "node", lambda rng: float(rng.uniform(5, 8))),
    ("fill", "node", lambda rng: float(rng.uniform(1, 10))),
    ("fill", "top server", lambda rng: float(rng.uniform(1, 6))),
    ("move", "node", lambda _: 0.0),
)


def draw(seed: int) -> Plan:
    """The campaign of a seed; always the same."""
    rng = np.random.default_rng([seed, zlib.crc32(b"campaign")])
    clients = SITES * CLIENTS_OF_SITE
    dealt = [int(client) for client in rng.permutation(clients)]
    slow, *thin = (int(site) for site in rng.permutation(SITES)[: 1 + THIN_SITES])
    rounds = sorted(int(number) + 1 for number in rng.permutation(ROUNDS - 1)[: len(FAULTS)])
    order = [FAULTS[int(place)] for place in rng.permutation(len(FAULTS))]
    faults = [
        Fault(
            kind,
            victim,
            int(rng.integers(12)),
            Moment(number, int(rng.integers(clients + 1)), round(float(rng.uniform(0, 0.3)), 3)),
            round(lasting_s(rng), 2),
        )
        for number, (kind, victim, lasting_s) in zip(rounds, order, strict=True)
    ]
    scheme = SCHEMES[int(rng.integers(len(SCHEMES)))]
    # Drawn from another stream of random numbers, so that all else of a seed stays as it was.
    more = np.random.default_rng([seed, zlib.crc32(b"campaign-more")])
    faults = [repeated(more, fault) if fault.kind == "stop" else fault for fault in faults]
    return Plan(
        seed,
        scheme,
        "auto",
        1.0,
        ROUNDS,
        tuple(tuple(sorted(dealt[site::SITES])) for site in range(SITES)),
        tuple(faults),
        pause_s=0.002,
        delay_s=0.02,
        slow=((slow, SLOWER),),
        thin=tuple((site, THIN_RATE) for site in thin),
        idle_s=IDLE_S,
        optimizer=OPTIMIZERS[int(rng.integers(len(OPTIMIZERS)))],
        min_clients=MIN_CLIENTS,
        tls=True,
        small_disks=True,
        wire=WIRES[int(rng.integers(len(WIRES)))],
        deadline_s=DEADLINE_S,
        balance=scheme == "fedgsp" and bool(more.integers(2)),
    )
