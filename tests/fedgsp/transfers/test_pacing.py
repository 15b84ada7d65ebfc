"""Models on their way to another machine: on any link, the link is full and its queue is short."""

from __future__ import annotations

import asyncio
import contextlib
import heapq
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgsp.connections.liveness import LOST_AFTER_S, MODEL_WINDOW_BYTES
from fedgsp.messages import FailureCode
from fedgsp.tensors.weights import WeightsError
from fedgsp.transfers import pacing
from fedgsp.transfers.link_choice import Seen
from fedgsp.transfers.pacing import FIRST_BYTES, LEAST_BYTES, QUEUE_S, Pace, Way, Ways
from fedgsp.transfers.trust import TRUST


@dataclass
class Found:
    """What became of a simulated transfer: seconds in all, and the longest wait in the queue of the link."""

    took_s: float
    longest_wait_s: float


def transferred(
    way: Way,
    size: int,
    rate: float,
    round_trip_s: float,
    begin: float = 0.0,
    noise_s: float = 0.0,
    burst_s: float = 0.0,
) -> Found:
    """A transfer over a link with a queue without end, by the rules of `Pace`, in simulated time.

    After a pause, the link lets what it carries in `burst_s` pass at once, as a token bucket does.
    """
    silent = Pace(way, Receiver().receipt, 1.0)
    way.begin(silent, begin)
    now, free_at, flying, sent, longest, count = begin, begin - burst_s, 0, 0, 0.0, 0
    confirmations: list[tuple[float, int, int, float]] = []
    while sent < size or confirmations:
        chunk = min(size - sent, max(pacing.LEAST_CHUNK, min(way.window // pacing.CHUNKS, pacing.MOST_CHUNK)))
        if chunk and (not flying or flying + chunk <= way.window):
            flying, sent, count = flying + chunk, sent + chunk, count + 1
            longest = max(longest, free_at - now)
            free_at = max(now - burst_s, free_at) + chunk / rate
            back = max(now, free_at) + round_trip_s + (noise_s if count % 7 == 0 else 0.0)
            heapq.heappush(confirmations, (back, chunk, flying, now))
            continue
        now, came, beside, at = heapq.heappop(confirmations)
        flying -= came
        way.carried(came, now)
        way.confirmed(beside, now - at)
    way.end(silent)
    return Found(now - begin, longest)


@given(
    rate=st.sampled_from([3e4, 1e5, 1e6, 1.25e7, 1.25e8]),
    round_trip_s=st.sampled_from([0.001, 0.02, 0.1, 0.3]),
    noise_s=st.sampled_from([0.0, 0.005, 0.05]),
)
def test_a_link_is_full_and_its_queue_is_short(rate: float, round_trip_s: float, noise_s: float) -> None:
    way, size = Way(), int(max(3e6, min(rate * 20, 3e8)))
    first = transferred(way, size, rate, round_trip_s, noise_s=noise_s)
    again = transferred(way, size, rate, round_trip_s, first.took_s + 1, noise_s)
    # What cannot be in a window of 64 MiB, or in the first window, is not the fault of this rule.
    possible = max(size / rate, size * round_trip_s / MODEL_WINDOW_BYTES) + round_trip_s
    assert again.took_s <= 1.2 * possible + 0.05
    assert first.took_s <= 1.2 * possible + 10 * round_trip_s + 0.1
    bound = max(QUEUE_S + 2 * round_trip_s + noise_s, FIRST_BYTES / rate)
    assert max(first.longest_wait_s, again.longest_wait_s) <= 1.5 * bound


@given(
    rate=st.sampled_from([1e5, 2.5e5, 1e6]),
    round_trip_s=st.sampled_from([0.002, 0.02, 0.1]),
    burst_s=st.floats(0.05, 2.0),
)
def test_a_link_that_lets_some_bytes_pass_at_once_gets_no_long_queue(
    rate: float, round_trip_s: float, burst_s: float
) -> None:
    """What was learnt from the first bytes is trusted little, and less once the link was seen to brake."""
    way, size = Way(), int(20 * rate)
    first = transferred(way, size, rate, round_trip_s, burst_s=burst_s)
    again = transferred(way, size, rate, round_trip_s, first.took_s + 10, burst_s=burst_s)
    answer_s = LOST_AFTER_S * 2 / 3  # after so long without an answer to a ping, gRPC takes the other end for lost
    assert first.longest_wait_s <= QUEUE_S + TRUST * burst_s + 2 * round_trip_s
    assert first.longest_wait_s < answer_s or burst_s > 1
    assert again.longest_wait_s < max(2 * QUEUE_S, burst_s) < answer_s
    for found in (first, again):
        assert found.took_s <= 1.1 * (size / rate + round_trip_s)


def test_one_pause_on_a_fast_link_does_not_make_it_a_link_that_brakes() -> None:
    """A process that was busy for two seconds holds up confirmations. The transfer after the next is quick again."""
    rate, round_trip_s, size, way = 1.25e8, 0.1, int(3e7), Way()
    held_up = transferred(way, size, rate, round_trip_s, noise_s=2.0)
    begin, later = held_up.took_s + 1, []
    for _ in range(3):
        later.append(transferred(way, size, rate, round_trip_s, begin).took_s)
        begin += later[-1] + 1
    assert later[2] <= later[1] <= 1.2 * (size / rate + round_trip_s)


def test_how_a_link_brakes_is_forgotten_because_routes_change() -> None:
    way, fresh = Way(), Way()
    transferred(way, int(5e6), 2.5e5, 0.02, burst_s=2.0)
    begin = pacing.FORGET_S + 100
    known = transferred(way, int(3e7), 1.25e8, 0.02, begin)
    assert known.took_s <= transferred(fresh, int(3e7), 1.25e8, 0.02, begin).took_s


def test_after_a_pause_within_transfers_the_first_bytes_are_trusted_as_little_as_at_first() -> None:
    """While a transfer waits for its model, a link that brakes becomes ready again to let some bytes pass at once."""
    way = Way()
    way.begin(Pace(way, Receiver().receipt, 1.0), 0.0)
    now = 0.0
    for _ in range(300):
        way.leaves(16384, now)
        now += 0.01
        way.flying -= 16384
        way.carried(16384, now)
        way.confirmed(16384, 0.01)
    assert way.window > 10 * FIRST_BYTES
    for _ in range(8):  # the link has become slow
        way.confirmed(16384, 3.0)
    now += 10
    way.leaves(8192, now)
    way.flying -= 8192
    way.carried(8192, now + 0.003)
    way.confirmed(8192, 0.003)
    assert way.window == FIRST_BYTES


def test_a_window_that_trust_holds_down_says_nothing_about_the_rate_of_the_link() -> None:
    way = Way()
    transferred(way, int(4e6), 1.25e8, 0.02)
    held = Way()
    with_waits = Pace(held, Receiver().receipt, 1.0)
    held.begin(with_waits, 0.0)
    held.carried(8192, 0.02)
    held.confirmed(8192, 0.001)  # the link may carry much more than is trusted
    held.full()
    for step in range(1, 30):
        held.carried(65536, 0.02 + 0.02 * step)
    held.end(with_waits)
    assert held.rate == 0


def test_a_link_that_became_slow_gets_a_smaller_window() -> None:
    way = Way()
    transferred(way, 10**8, 1.25e8, 0.02)
    assert way.window > 10**7
    transferred(way, 10**7, 2e5, 0.02, begin=10.0)
    assert way.window < 10**6


def test_what_was_found_is_forgotten_because_routes_change() -> None:
    way = Way()
    transferred(way, 10**7, 1.25e8, 0.001)
    found = way.shortest_s
    transferred(way, 10**4, 1.25e8, 0.5, begin=pacing.FORGET_S - 1)
    assert way.shortest_s == found
    transferred(way, 10**4, 1.25e8, 0.5, begin=2 * pacing.FORGET_S)
    assert way.shortest_s >= 0.5


@pytest.mark.parametrize(
    ("mbit", "at_once", "seconds", "waited"),
    [
        (10, 11_500_000, 9.3, True),  # the window is full, and so is the queue
        (100, 11_500_000, 0.95, True),  # the bytes fit into the window, and are in the queue
        (1000, 1_000_000, 0.4, False),  # the time is that of the coding, which lets so much out at once
        (10_000, 1_000_000, 0.3, False),
    ],
)
def test_a_coded_model_tells_whether_it_waited_for_the_link(
    mbit: float, at_once: int, seconds: float, waited: bool
) -> None:
    way = Way()
    for _ in range(2):
        transferred(way, at_once, mbit * 1e6 / 8, 0.02)
    way.took(26_400_000, True, seconds)
    assert way.seen == Seen(coded=26_400_000 / seconds, waited=waited)
    way.took(26_400_000, False, 0.2)
    assert way.seen.plain == 132_000_000


def test_a_small_model_tells_nothing_and_all_is_forgotten_because_routes_change() -> None:
    way = Way()
    way.took(pacing.LARGE_BYTES - 1, True, 1.0)
    assert way.seen == Seen()
    way.begin(Pace(way, Receiver().receipt, 1.0), 0.0)
    way.took(pacing.LARGE_BYTES, False, 1.0)
    assert way.seen.plain
    way.begin(Pace(way, Receiver().receipt, 1.0), 2 * pacing.FORGET_S)
    assert way.seen == Seen()


@pytest.mark.parametrize("coded", [True, False])
async def test_a_transfer_that_is_settled_tells_how_long_it_took(coded: bool) -> None:
    receiver, clock = Receiver(), iter([0.0, *[1.0] * 2, *[2.0] * 9])
    way = Way()
    async with Pace(way, receiver.receipt, 1.0, lambda: next(clock, 2.0)) as pace:
        pace.carries(4 * pacing.LARGE_BYTES, coded)
        await pace.turn(1000)
        receiver.allowed.release()
        await pace.settled()
    assert (way.seen.coded if coded else way.seen.plain) > 0
    assert (way.seen.plain if coded else way.seen.coded) == 0


def test_the_speed_of_a_link_is_forgotten_too() -> None:
    way = Way()
    way.begin(first := Pace(way, Receiver().receipt, 1.0), 0.0)
    way.full()
    way.carried(1000, 1.0)
    way.carried(5000, 1.5)
    way.end(first)
    assert way.rate == 10_000
    way.begin(later := Pace(way, Receiver().receipt, 1.0), pacing.FORGET_S - 1)
    way.carried(10, pacing.FORGET_S)
    way.carried(10, pacing.FORGET_S + 0.5)
    way.end(later)
    assert way.rate == 10_000  # this one did not have to wait for the link
    way.begin(Pace(way, Receiver().receipt, 1.0), pacing.FORGET_S + 1)
    assert way.rate == 0


@given(st.lists(st.tuples(st.integers(1, 10**9), st.floats(0, 1e6)), max_size=50))
def test_a_window_keeps_its_limits_whatever_a_receiver_confirms(confirmed: list[tuple[int, float]]) -> None:
    way = Way()
    for flying, took_s in confirmed:
        way.confirmed(flying, took_s)
        assert LEAST_BYTES <= way.window <= MODEL_WINDOW_BYTES


@given(
    rate=st.sampled_from([1e5, 1e6, 1.25e7]),
    round_trip_s=st.sampled_from([0.001, 0.02, 0.1]),
    noise_s=st.sampled_from([0.0, 0.005, 0.05]),
)
def test_a_transfer_that_fills_a_link_finds_what_it_carries(rate: float, round_trip_s: float, noise_s: float) -> None:
    way, size = Way(), int(max(3e6, 20 * rate))
    assert (way.rate, way.round_trip_s, way.is_idle) == (0.0, 0.0, False)
    transferred(way, size, rate, round_trip_s, noise_s=noise_s)
    assert way.rate == 0.0  # nothing had to wait for the link
    way.begin(beside := Pace(way, Receiver().receipt, 1.0), 1.0)
    way.full()  # as `Pace.turn` says
    transferred(way, size, rate, round_trip_s, 1.0, noise_s)
    way.end(beside)
    assert 0.8 * rate <= way.rate <= 2 * rate
    assert way.round_trip_s >= round_trip_s
    assert way.is_idle


def test_only_the_ways_that_were_used_last_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pacing, "MOST_WAYS", 2)
    ways = Ways()
    first, second = ways.to("a"), ways.to("b")
    assert ways.to("a") is first
    ways.to("c")
    assert ways.to("a") is first
    assert ways.to("b") is not second


class Receiver:
    """Confirms as many chunks as it is allowed to."""

    def __init__(self) -> None:
        self.allowed = asyncio.Semaphore(0)
        self.answer: int | None = 0

    async def receipt(self) -> int | None:
        await self.allowed.acquire()
        return self.answer


async def test_a_sender_waits_when_its_window_is_full_and_for_the_last_confirmation() -> None:
    receiver = Receiver()
    async with Pace(Way(), receiver.receipt, 10.0) as pace:
        for _ in range(4):
            await pace.turn(FIRST_BYTES // 4)
        waiting = asyncio.create_task(pace.turn(1))
        await asyncio.sleep(0)
        assert not waiting.done()
        receiver.allowed.release()
        await waiting
        settling = asyncio.create_task(pace.settled())
        for _ in range(3):
            receiver.allowed.release()
        await asyncio.sleep(0)
        assert not settling.done()
        receiver.allowed.release()
        await settling


async def test_nothing_is_held_back_from_a_receiver_on_this_machine_but_all_must_be_confirmed() -> None:
    receiver, way = Receiver(), Way()
    async with Pace(way, receiver.receipt, 10.0, here=True) as pace:
        assert pace.chunk_bytes == pacing.MOST_NEAR_CHUNK == pace.most_chunk
        for _ in range(3):
            assert pace.has_room(pacing.MOST_NEAR_CHUNK)
            await pace.turn(pacing.MOST_NEAR_CHUNK)
        assert way.flying > way.window
        settling = asyncio.create_task(pace.settled())
        receiver.allowed.release()
        receiver.allowed.release()
        await asyncio.sleep(0)
        assert not settling.done()
        receiver.allowed.release()
        await settling
    assert way.flying == 0


@pytest.mark.parametrize(("near", "most"), [(True, pacing.MOST_NEAR_CHUNK), (False, pacing.MOST_CHUNK)])
def test_chunks_between_machines_stay_small_because_a_link_may_become_slow(near: bool, most: int) -> None:
    way = Way(near=near)
    pace = Pace(way, Receiver().receipt, 1.0)
    transferred(way, 10**9, 1e9, 0.001)
    assert way.window == MODEL_WINDOW_BYTES
    assert pace.chunk_bytes == most == pace.most_chunk


@pytest.mark.parametrize(("unconfirmed", "lost"), [(0, False), (1, False), (1, True), (0, True)])
async def test_a_link_counts_as_not_known_after_a_transfer_that_was_cut_off(unconfirmed: int, lost: bool) -> None:
    way, receiver = Way(), Receiver()
    transferred(way, 10**8, 1.25e8, 0.02)
    with contextlib.suppress(ConnectionError):
        async with Pace(way, receiver.receipt, 1.0) as pace:
            begun = way.window
            assert begun > 10 * FIRST_BYTES
            for _ in range(unconfirmed):
                await pace.turn(1)
            if lost:
                raise ConnectionError("the other machine has gone")
    assert way.window == (FIRST_BYTES if unconfirmed and lost else begun)
    assert way.flying == 0


async def test_transfers_at_the_same_time_share_a_window_and_none_starves() -> None:
    way, first, second = Way(), Receiver(), Receiver()
    async with Pace(way, first.receipt, 10.0) as one, Pace(way, second.receipt, 10.0) as other:
        await one.turn(FIRST_BYTES)
        await other.turn(FIRST_BYTES)  # every transfer may have one chunk on its way
        waiting = asyncio.create_task(other.turn(1))
        await asyncio.sleep(0)
        assert not waiting.done()
        first.allowed.release()
        second.allowed.release()
        await waiting
    assert way.flying == 0


async def test_a_transfer_without_chunks_is_settled_at_once() -> None:
    async with Pace(Way(), Receiver().receipt, 10.0) as pace:
        await pace.settled()


@pytest.mark.parametrize(("answer", "code"), [(0, FailureCode.STALLED), (None, FailureCode.BAD_STREAM)])
async def test_a_receiver_that_is_silent_or_refuses_ends_the_transfer(answer: int | None, code: FailureCode) -> None:
    receiver = Receiver()
    receiver.answer = answer
    if answer is None:
        receiver.allowed.release()
    async with Pace(Way(), receiver.receipt, 0.01) as pace:
        await pace.turn(FIRST_BYTES)
        with pytest.raises(WeightsError) as caught:
            await pace.turn(1)
        assert caught.value.failure.code is code
        with pytest.raises(WeightsError):
            await pace.settled()


async def test_a_listener_ends_with_its_transfer() -> None:
    before = asyncio.all_tasks()
    async with Pace(Way(), Receiver().receipt, 10.0) as pace:
        await pace.turn(1)
    assert asyncio.all_tasks() == before
