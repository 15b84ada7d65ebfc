"""The models against which a process codes other models: those that it exchanged last with other machines."""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from fedgsp.tensors.encoding import wire_bytes
from fedgsp.tensors.weights import DIGEST_BYTES, Weights
from fedgsp.to_the_end import cancelled_elsewhere
from fedgsp.transfers.coding import coded_size
from fedgsp.transfers.link_choice import AUTO, RAW, is_coded, may_be_coded
from fedgsp.transfers.pacing import Way

logger = logging.getLogger(__name__)

#: Most models that are kept, and most bytes of them. The last two are kept whatever their size; large models are kept
#: in files (see `spill`).
MOST_KEPT, MOST_BYTES = 8, 256 << 20
LEAST_KEPT = 2
#: Bytes coded per second of processor time, before any were coded. Such bytes are those that would travel otherwise.
FIRST_SPEED = 100e6

#: How long a transfer waits for a base that is not here, in seconds: its other end hears nothing meanwhile.
FURTHER_S = 5.0

#: Gets a model that may be a base for this model id and is not kept yet; None if there is none.
Further = Callable[[str], Awaitable[Weights | None]]


async def _none(_: str) -> Weights | None:
    return None


@dataclass(frozen=True, slots=True)
class Offer:
    """How a model is offered to a receiver."""

    #: In code, against one of these bases.
    coded: bool = False
    bases: tuple[Weights, ...] = ()
    #: Both ends keep the model as a base.
    remember: bool = False
    #: A block travels as it is if the link is idle before its code is ready: nobody knows yet how fast the link is.
    in_haste: bool = False


class Bases:
    """The bases of a process, and how fast it codes."""

    def __init__(self, wire: str = AUTO, further: Further = _none) -> None:
        """`wire` is the setting --wire."""
        self._wire, self._further = wire, further
        self._kept: OrderedDict[bytes, Weights] = OrderedDict()
        #: Bytes that are coded per second of processor time.
        self.speed = FIRST_SPEED

    @property
    def takes_codes(self) -> bool:
        """Whether this process receives models in code."""
        return self._wire != RAW

    def __contains__(self, weights: Weights) -> bool:
        """Whether these weights, with this buffer, are kept, so that they must not change."""
        return any(kept.buffer is weights.buffer for kept in self._kept.values())

    async def remember(self, weights: Weights) -> None:
        """Keeps a model whose digest is known as a base; the models used least recently are forgotten."""
        digest = weights.known_digest
        assert digest is not None
        if digest not in self._kept:
            self._kept[digest] = await asyncio.to_thread(weights.at_rest)
        self._kept.move_to_end(digest)
        while len(self._kept) > LEAST_KEPT and (
            len(self._kept) > MOST_KEPT or sum(kept.buffer.nbytes for kept in self._kept.values()) > MOST_BYTES
        ):
            self._kept.popitem(last=False)

    async def offer(self, model_id: str, weights: Weights, way: Way) -> Offer:
        """How this process offers a model to the receiver at the end of a way."""
        size = wire_bytes(weights.tensors, weights.bfloat16)
        remember = may_be_coded(self._wire, way.near, way.rate, self.speed, way.seen)
        coded = is_coded(self._wire, way.near, size, way.window, way.rate, way.round_trip_s, self.speed, way.seen)
        if size > way.window and coded is not way.told_coded:
            way.told_coded = coded
            carries = f"{way.rate / 1e6:.3g} MB/s" if way.rate else "an unknown rate"
            logger.info(
                "models to %s travel %s: the link carries %s, the coding takes %.3g MB/s",
                *(way.name or "a receiver", "coded" if coded else "as they are", carries, self.speed / 1e6),
            )
        if not coded:
            return Offer(remember=remember)
        await self._get_further(model_id)
        fit = [base for base in reversed(self._kept.values()) if base.tensors == weights.tensors]
        if weights.known_digest is not None and weights.known_digest not in self._kept:
            fit.insert(0, weights)  # another process may have given it to the receiver
        ranked = await asyncio.to_thread(best_first, weights, fit)
        return Offer(True, tuple(ranked), remember, in_haste=self._wire == AUTO and not way.rate)

    async def chosen(self, model_id: str, weights: Weights, offered: Sequence[bytes]) -> int:
        """The number of the first offered base that is here, from 1; 0 if none is. `weights` are to be filled."""
        for further in (False, True):
            if further:
                await self._get_further(model_id)
            for number, digest in enumerate(offered, start=1):
                base = self._kept.get(digest)
                if base is not None and base.tensors == weights.tensors:
                    return number
        return 0

    def used(self, digest: bytes) -> Weights | None:
        """A base that is about to be used, which makes it the one to be forgotten last; None if it is not here."""
        if digest in self._kept:
            self._kept.move_to_end(digest)
        return self._kept.get(digest)

    def took(self, size: int, seconds: float) -> None:
        """Learn that coding `size` bytes took so many seconds of processor time."""
        if size and seconds > 0:
            self.speed += (size / seconds - self.speed) / 2

    async def _get_further(self, model_id: str) -> None:
        found = None
        try:
            async with asyncio.timeout(FURTHER_S):
                with cancelled_elsewhere():  # it may be called off, because nobody else needs it any more
                    found = await self._further(model_id)
        except TimeoutError:
            logger.info("model %s: a further base did not come in %g s", model_id, FURTHER_S)
            return
        if found is not None and len(found.known_digest or b"") == DIGEST_BYTES:
            await self.remember(found)


def best_first(weights: Weights, bases: Sequence[Weights]) -> list[Weights]:
    """The bases in the order of the bytes that the code of the weights would have; equal ones stay in their order.

    Bases must have the tensors of the weights. A base that gives a longer code than no base at all is left out.
    """
    sizes = {id(base): coded_size(weights, base) for base in bases}
    alone = coded_size(weights, None)
    return sorted((base for base in bases if sizes[id(base)] < alone), key=lambda base: sizes[id(base)])
