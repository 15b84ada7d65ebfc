"""How much of a model is on its way to another machine at once: enough for the link, and little in queues.

The receiver confirms every chunk, from which the sender learns how fast the link is. Other connections of the same
link wait for what is in its queues: a window that follows the round trips bounds it.
"""

import asyncio
import math
import time
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Self

from fedgsp.connections.liveness import MODEL_WINDOW_BYTES
from fedgsp.messages import FailureCode
from fedgsp.tensors.weights import WeightsError, require
from fedgsp.transfers.link_choice import Seen
from fedgsp.transfers.trust import Trust

#: The window of a link that is not known, in bytes: a link of 100 kB/s needs 0.7 s for them.
FIRST_BYTES = 64 * 1024
LEAST_BYTES = 16 * 1024
#: A full window has this many chunks, within the limits that follow, in bytes.
CHUNKS = 8
LEAST_CHUNK, MOST_CHUNK = 8 * 1024, 512 * 1024
#: The largest chunk for a receiver on this machine. Beside its bytes, a chunk takes 0.4 ms of processor time, of both
#: ends together. Between machines chunks stay smaller: if a link becomes slow, its sender must soon learn that.
MOST_NEAR_CHUNK = 2 * 1024 * 1024
#: So long, in seconds, may bytes wait in the queues of a link.
QUEUE_S = 0.7
#: The rate of a link is counted over so many seconds at least.
COUNTED_S = 0.1
#: Smaller models do not tell how fast a link is, but how long its round trip takes.
LARGE_BYTES = 1 << 20
#: A transfer waited for the link if one of its chunks was in queues for this share of the time, or half of QUEUE_S.
WAITED = 0.2
#: What was found about a way is forgotten after so many seconds, because routes change.
FORGET_S = 600.0
#: Largest number of ways that are remembered.
MOST_WAYS = 4096

#: Waits for the receiver's next confirmation: None if the receiver refuses, otherwise the number of the base that it
#: chose, if it was asked for one.
Receipt = Callable[[], Awaitable[int | None]]


class Way:
    """The link to one receiver, as its transfers have found it. Transfers at the same time share its window."""

    def __init__(self, name: str = "", near: bool = False) -> None:
        """`name` of the receiver, for logs; `near`: the receiver is on this machine."""
        self.name, self.near = name, near
        #: Bytes that may be on their way, and those that are.
        self.window, self.flying = FIRST_BYTES, 0
        #: Bytes per second that the link carried at best in the last transfer that had to wait for it; 0: not known.
        self.rate = 0.0
        #: Whether the log says that models travel coded over it; without a line about it, they do not.
        self.told_coded = False
        #: How fast large models travelled.
        self.seen = Seen()
        #: The longest time in seconds that a chunk waited in queues, since the link became busy.
        self._late_s = 0.0
        self._best, self._was_full = 0.0, False
        self._counted, self._counted_since = 0, -math.inf
        self._trust = Trust()
        #: The window with which the link became busy, and the time of the last confirmation.
        self._first, self._heard = FIRST_BYTES, -math.inf
        #: Whether it is trust that holds the window down, and not what the link carries.
        self._held = False
        #: The shortest round trip in seconds, and the time since which it is known.
        self.shortest_s, self._since = math.inf, -math.inf
        self._transfers: set[Pace] = set()

    def begin(self, transfer: "Pace", now: float) -> None:
        """One more transfer uses the link. The first after a pause begins with half the window, in case it changed."""
        if now - self._since > FORGET_S:
            self.shortest_s, self._since, self.rate, self.seen = math.inf, now, 0.0, Seen()
            self._trust.forget()
        if not self._transfers:
            self._busy_again()
            self._best, self._was_full, self._late_s = 0.0, False, 0.0
            self._counted, self._counted_since = 0, -math.inf
        self._transfers.add(transfer)

    def _busy_again(self) -> None:
        self._trust.begin()
        self.window = self._first = max(FIRST_BYTES, self.window // 2)
        self._held, self._heard = False, -math.inf

    def leaves(self, size: int, now: float) -> None:
        """Count a chunk of `size` bytes that leaves. After a pause, it is the first of a link that becomes busy."""
        if not self.flying and QUEUE_S < now - self._heard < math.inf:
            self._busy_again()
        self.flying += size

    def end(self, transfer: "Pace", lost: bool = False) -> None:
        """A transfer has ended; what it had on its way does not count any more.

        `lost`: it was cut off before all was confirmed. The link may have become slow, so it counts as not known.
        """
        self._transfers.discard(transfer)
        if lost:
            self.window = FIRST_BYTES
            return
        if self._was_full and self._best:  # otherwise the link may carry more
            self.rate = self._best

    def took(self, size: int, coded: bool, seconds: float) -> None:
        """Learn that a model of `size` bytes travelled in so many seconds, as it was or in code."""
        if size < LARGE_BYTES or not seconds > 0:
            return
        if coded:
            self.seen.coded, self.seen.waited = size / seconds, self._late_s > min(WAITED * seconds, QUEUE_S / 2)
        else:
            self.seen.plain = size / seconds

    def full(self) -> None:
        """A chunk has to wait for the link."""
        if not self._held:
            self._was_full = True

    def carried(self, size: int, now: float) -> None:
        """Learn from a confirmation of `size` bytes how many the link carries in a second.

        They are counted over some time, because confirmations come in bursts when a process is busy.
        """
        self._trust.carried(size)
        self._heard = now
        if self._counted_since == -math.inf:
            self._counted_since = now  # what came before this confirmation may have waited for the first round trip
            return
        self._counted += size
        lasted = now - self._counted_since
        if lasted >= max(COUNTED_S, self.round_trip_s):
            self._best = max(self._best, self._counted / lasted)
            self._counted, self._counted_since = 0, now

    @property
    def is_idle(self) -> bool:
        """Whether the link may have nothing to carry before the next round trip is over; False before the first."""
        return self.flying < self.window * self.round_trip_s / (self.round_trip_s + QUEUE_S)

    @property
    def round_trip_s(self) -> float:
        """The shortest round trip; 0 if none is known."""
        return self.shortest_s if self.shortest_s < math.inf else 0.0

    def confirmed(self, flying: int, took_s: float) -> None:
        """Learn from a chunk: `flying` bytes, it included, were on their way when it left; it took so many seconds.

        In a round trip of `took_s` the link carried `flying` bytes. The window is what it carries in the shortest
        round trip and QUEUE_S, as far as the link is trusted. It does not shrink only because the sender had less to
        send.
        """
        self.shortest_s = min(self.shortest_s, took_s)
        found = int(flying * (self.shortest_s + QUEUE_S) / max(took_s, 1e-6))
        late_s = took_s - self.shortest_s
        self._late_s = max(self._late_s, late_s)
        if late_s > QUEUE_S:
            self._trust.late(braked=late_s > 2 * QUEUE_S and self.window > self._first)
        most = max(self.window, self._trust.most)
        self._held = found > most and most < MODEL_WINDOW_BYTES
        if found > self.window or late_s > QUEUE_S:
            self.window = min(max(min(found, most), LEAST_BYTES), MODEL_WINDOW_BYTES)
        for transfer in self._transfers:
            transfer.changed.set()


class Ways:
    """The ways to the receivers of a process; those that were used last are remembered."""

    def __init__(self) -> None:
        self._ways: OrderedDict[str, Way] = OrderedDict()

    def to(self, receiver: str, near: bool = False) -> Way:
        """The way to a receiver, named by any text that stays the same for it; `near`: it is on this machine."""
        way = self._ways.setdefault(receiver, Way(receiver, near))
        self._ways.move_to_end(receiver)
        while len(self._ways) > MOST_WAYS:
            self._ways.popitem(last=False)
        return way


class Pace:
    """The chunks of one transfer: when the next may leave, and which of them the receiver has confirmed."""

    def __init__(
        self,
        way: Way,
        receipt: Receipt,
        timeout_s: float,
        clock: Callable[[], float] = time.monotonic,
        here: bool = False,
    ) -> None:
        """`receipt` waits for the receiver's next message, at most `timeout_s`.

        `here`: the receiver has shown that it is on this machine. No link is between the two, so nothing is held back.
        """
        self.receipt = receipt
        #: Set whenever a chunk of this link leaves or is confirmed.
        self.changed = asyncio.Event()
        self.way, self.here, self._timeout_s, self._clock = way, here, timeout_s, clock
        self._flying: deque[tuple[int, int, float]] = deque()  # size, bytes on their way with it, time
        self._all_sent = False
        self._listening: asyncio.Task[None] | None = None
        self._begun, self._carries = clock(), (0, False)

    @property
    def chunk_bytes(self) -> int:
        """A good size for the next chunk: small on a slow link, so that confirmations keep coming."""
        if self.here:
            return self.most_chunk
        size = self.way.window // CHUNKS
        return min(max(size - size % LEAST_CHUNK, LEAST_CHUNK), self.most_chunk)

    @property
    def most_chunk(self) -> int:
        """Size of the largest chunk that this transfer may have, in bytes."""
        return MOST_NEAR_CHUNK if self.way.near or self.here else MOST_CHUNK

    def carries(self, size: int, coded: bool) -> None:
        """The transfer is of a model of `size` bytes, as it is or in code."""
        self._carries = size, coded

    def has_room(self, size: int) -> bool:
        """Whether a chunk of `size` bytes may leave now."""
        return self.here or not self._flying or self.way.flying + size <= self.way.window

    async def turn(self, size: int) -> None:
        """Wait until a chunk of `size` bytes may leave, and count it; WeightsError if the receiver is silent."""
        if self._listening is None:
            self._listening = asyncio.create_task(self._listen())
            self._listening.add_done_callback(lambda _: self.changed.set())
        while not self.has_room(size):
            self.way.full()
            await self._news()
        now = self._clock()
        self.way.leaves(size, now)
        self._flying.append((size, self.way.flying, now))
        self.changed.set()

    async def settled(self) -> None:
        """Wait until the receiver has confirmed every chunk; raises WeightsError if it is silent or refuses."""
        self._all_sent = True
        self.changed.set()
        if self._listening is not None:
            await self._listening
        self.way.took(*self._carries, self._clock() - self._begun)

    async def _news(self) -> None:
        """Wait for a confirmation; raises what has ended the listening."""
        assert self._listening is not None
        self.changed.clear()
        if self._listening.done():
            await self._listening
        await self.changed.wait()

    async def _listen(self) -> None:
        while True:
            while not self._flying:
                if self._all_sent:
                    return
                self.changed.clear()
                await self.changed.wait()
            try:
                async with asyncio.timeout(self._timeout_s):
                    taken = await self.receipt()
            except TimeoutError:
                why = f"nothing was confirmed for {self._timeout_s:.0f} s"
                raise WeightsError(FailureCode.STALLED, why) from None
            require(taken is not None, FailureCode.BAD_STREAM, "the receiver refused a chunk that it had asked for")
            size, flying, at = self._flying.popleft()
            self.way.flying -= size
            now = self._clock()
            self.way.carried(size, now)
            self.way.confirmed(flying, now - at)

    async def __aenter__(self) -> Self:
        self.way.begin(self, self._clock())
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.gather(self._listening, return_exceptions=True)
        lost = kind is not None and bool(self._flying)
        self.way.flying -= sum(size for size, _, _ in self._flying)
        self._flying.clear()
        self.way.end(self, lost)
