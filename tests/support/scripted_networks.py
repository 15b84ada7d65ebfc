"""How scripted clients discriminate: by arithmetic on stacks of networks that are one number."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import numpy as np

from fedgsp.messages import (
    Discriminate,
    Discriminated,
    Discrimination,
    DiscriminatorSettings,
    Result,
    Source,
    TensorSpec,
)
from fedgsp.tensors.weights import Weights

#: Of every client's validation part, unless a script has another number.
SAMPLES = 100
NETWORK_BYTES = 24

Answer = tuple[Result | None, Weights | None]


def plan(shared: bool = False, **changes: object) -> Discrimination:
    """The paper's, of at most 30 exchanges."""
    settings = DiscriminatorSettings(10, 1, 5, 0.1, 0, shared)
    fields: dict[str, object] = {"exchanges": 30, "judge_every": 10, "patience": 10, "estimate": "largest", **changes}
    return Discrimination(settings, **fields)  # type: ignore[arg-type]


def stack(*networks: float) -> Weights:
    """Networks of this number in four places and in two, NETWORK_BYTES each."""
    rows = np.array(networks, np.float32)[:, None]
    tensors = (TensorSpec("w", "float32", (len(rows), 4)), TensorSpec("b", "float32", (len(rows), 2)))
    return Weights.of({"w": np.repeat(rows, 4, axis=1), "b": np.repeat(rows, 2, axis=1)}, tensors)


def numbers(weights: Weights) -> list[float]:
    """The numbers of a stack."""
    assert np.array_equal(weights.arrays["w"], np.repeat(weights.arrays["b"], 2, axis=1))
    return [float(number) for number in weights.arrays["b"][:, 0]]


def learned(client: int, other: int, before: float) -> float:
    """What training makes of a pair's network, of 0 at first; small dyadic numbers, which float32 holds exactly."""
    return 0.5 * before + 16 * client + other


def learned_together(client: int, before: float) -> float:
    """What training makes of a shared network."""
    return 0.5 * before + 6 * client


@dataclass(frozen=True)
class Asked:
    """An order as its client saw it; of a start what it came to."""

    client: int
    exchange: int
    work: Discriminate
    start: list[float] | None


@dataclass
class Script:
    """The same for all clients; what it was asked, in order."""

    #: (client, exchange, other) -> how many samples are told from those of the other.
    right: Callable[[int, int, int], int] = lambda client, exchange, other: SAMPLES // 2
    #: By client, where it is not SAMPLES.
    samples: defaultdict[int, int] = field(default_factory=lambda: defaultdict(lambda: SAMPLES))
    #: Called before an order of (client, exchange) is answered: may raise, or wait.
    before: Callable[[int, int], Awaitable[None]] | None = None
    #: Makes another answer of that of (client, exchange).
    change: Callable[[int, int, Discriminated, Weights | None], Answer] | None = None
    asked: list[Asked] = field(default_factory=list)

    def of(self, client: int) -> list[Asked]:
        """What one client was asked."""
        return [asked for asked in self.asked if asked.client == client]

    def exchanges(self, client: int) -> list[int]:
        return [asked.exchange for asked in self.of(client)]

    def judged(self, client: int) -> list[int]:
        """Exchanges before which it was to judge."""
        return [asked.exchange for asked in self.of(client) if asked.work.judge]

    async def answer(
        self, client: int, work: Discriminate, start: Weights | None, source: Source | None, size: int
    ) -> Answer:
        exchange = work.exchange
        self.asked.append(Asked(client, exchange, work, numbers(start) if start is not None else None))
        if self.before is not None:
            await self.before(client, exchange)
        assert work.settings is not None
        networks = 1 if work.settings.shared else len(work.others)
        held = numbers(start) if start is not None else [0.0] * networks
        assert len(held) == networks
        if work.settings.shared:
            made = stack(learned_together(client, held[0]))
        else:
            made = stack(*(learned(client, other, number) for other, number in zip(work.others, held, strict=True)))
        correct = tuple(self.right(client, exchange, other) for other in work.others) if work.judge else ()
        ref = made.ref(work.produces) if work.produces else None
        answer = Discriminated(ref, correct, self.samples[client], source, size)
        if self.change is not None:
            said, sent = self.change(client, exchange, answer, made if work.produces else None)
            # It reports what it sends, however wrong that is.
            if isinstance(said, Discriminated) and said.ref is not None and sent is not None:
                said = dataclasses.replace(said, ref=sent.ref(said.ref.id))
            return said, sent
        return answer, made if work.produces else None
