"""What a disturbed run is judged by: what it left behind, and the models that clients keep."""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.campaign import plan as campaign_plan
from benchmarks.chaos import disks, kept, leftovers, oracle, times
from benchmarks.chaos.events import Event
from benchmarks.chaos.faults import STRIKES, Strike
from benchmarks.chaos.links import Links, linked, why_not
from benchmarks.chaos.plan import KEPT, Fault, Moment, Plan
from benchmarks.chaos.play import Hit, _kept
from benchmarks.chaos.world import TOP_SERVER
from fedgsp.security.chained import ChainedFile
from fedgsp_node.kept.personal_state import PERSONAL_MODEL, PersonalState
from tests.support.clock import Clock
from tests.support.kept_state import keep, opened
from tests.support.reference import assert_same_bits
from top_server.record import model_files

ARRAYS = {"weight": np.zeros(3, np.float32)}
ORIGIN = model_files.Origin("run", "ditto", 1, 0)


#: Many clients, so that each has little data; three of them train.
PLAN = Plan(5, "ditto", "auto", 1.0, 2, (tuple(range(40)),), ())
TEAM = [[0, 1, 2]]
SAID = {"round": 1, "model": "b", "digest": "cd"}


class KilledError(BaseException):
    """In place of SIGKILL: nobody catches it."""


@pytest.fixture
def places(tmp_path: Path) -> tuple[Path, Path]:
    """The record of a run, and what a node keeps; both finished."""
    run_dir, state = tmp_path / "run", tmp_path / "state-n0"
    run_dir.mkdir()
    model_files.save(run_dir / "final.safetensors", ARRAYS, ORIGIN)
    keep(PersonalState(state), 0, PERSONAL_MODEL, ARRAYS, 1)
    return run_dir, state


def found(folder: Path) -> list[str]:
    return leftovers.find(folder, folder / "run", "of no process")


def test_what_is_finished_may_stay(places: tuple[Path, Path], tmp_path: Path) -> None:
    assert all(any(place.iterdir()) for place in places)
    assert found(tmp_path) == []


def test_what_a_killed_node_was_writing_is_told(
    places: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object) -> None:
        raise KilledError

    monkeypatch.setattr(os, "replace", killed)
    with pytest.raises(KilledError):
        keep(PersonalState(places[1]), 1, PERSONAL_MODEL, ARRAYS, 1)
    (left,) = found(tmp_path)
    assert left.startswith("unfinished file: state-n0/")


def test_what_a_killed_top_server_was_writing_is_told(places: tuple[Path, Path], tmp_path: Path) -> None:
    (places[0] / ".writing").mkdir()
    assert found(tmp_path) == ["unfinished file: run/.writing"]


def test_the_oracle_has_personal_models_of_clients_that_trained_in_every_round() -> None:
    calm = {number: oracle.Told(TEAM) for number in (1, 2)}
    found = oracle.expected(PLAN, calm)
    assert list(found.personal) == [0, 1, 2]
    again = oracle.expected(PLAN, calm | {1: oracle.Told(TEAM, {(0, 1)})})
    assert list(again.personal) == [0, 2]
    for name, array in found.model.items():
        assert array.tobytes() != again.model[name].tobytes()
        assert array.tobytes() != found.personal[0][name].tobytes()


def test_clients_that_a_question_did_not_reach_have_missed_the_round() -> None:
    events: list[Event] = [
        {"event": "question_failed", "round": 1, "program": "evaluate-training", "clients": [2, 3]},
        {"event": "round_started", "round": 1, "teams": TEAM},
        {"event": "clients_missed", "clients": [3], "first": 1, "last": 1},
    ]
    assert oracle.unnamed(oracle.rounds_told(events), events) == [], "client 2 has a group from before"


def test_other_schemes_keep_nothing() -> None:
    alone = {number: oracle.Told(TEAM) for number in (1, 2)}
    everybody = dataclasses.replace(PLAN, scheme="global")
    found = oracle.expected(everybody, alone)
    assert found.personal == {}
    assert_same_bits(found.model, oracle.expected(PLAN, alone).model)  # Ditto's shared model is that of plain training


def test_a_skipped_client_that_has_trained_continues_from_the_state_of_that_training() -> None:
    keeping = dataclasses.replace(PLAN, scheme="global", optimizer=KEPT, variant="both")
    told = {1: oracle.Told(TEAM, {(0, 1)}), 2: oracle.Told(TEAM)}
    reference = oracle.reference_of(keeping)
    first = reference.initial()
    made = reference.train(first, 1, 1)
    digest = kept.digest(made, oracle.travelling(reference.task))
    receipt = kept.Training("2026", 1, 1, "start", "made", digest)
    with_it, without = oracle.expected(keeping, told, [receipt]), oracle.expected(keeping, told)
    assert with_it.wrong == []
    assert any(array.tobytes() != without.model[name].tobytes() for name, array in with_it.model.items())
    (wrong,) = oracle.expected(keeping, told, [dataclasses.replace(receipt, digest="ff")]).wrong
    assert wrong == "round 1: client 1 has another result than the oracle"


def test_only_trainings_are_read_from_receipts(tmp_path: Path) -> None:
    rows = [
        {"time": "2", "client": 3, "asked": {"work": "train", "start": "a"}, "answered": "trained", "statement": SAID},
        {"time": "1", "client": 3, "asked": {"work": "initialise"}, "answered": "trained", "statement": SAID},
        {"time": "3", "client": 3, "asked": {"work": "train", "start": "a"}, "failed": "CANCELLED"},
    ]
    with ChainedFile(tmp_path / "receipts.jsonl") as file:
        for row in rows:
            file.append(row)
    found = [kept.Training("2", 1, 3, "a", "b", "cd")]
    assert kept.trainings([tmp_path, tmp_path / "none"]) == found
    with (tmp_path / "receipts.jsonl").open("a") as file_without_end:
        file_without_end.write('{"line": 4, "before": "')  # the disk was full
    assert kept.trainings([tmp_path]) == found


def strike(kind: str, at: float, undone: float | None) -> Strike:
    return Strike(Fault(kind, "manager", 0, Moment(1, 1, 0.0), 1.0), ("m0",), at, undone)


@pytest.mark.parametrize(
    ("kind", "undone", "seconds"),
    [("stop", 101.0, None), ("cut", 101.0, None), ("stop", None, 6.0), ("kill", 101.0, 6.0)],
)
def test_what_shows_the_next_fault_does_not_show_one_that_was_over(
    kind: str, undone: float | None, seconds: float | None
) -> None:
    first, second = strike(kind, 100.0, undone), strike("stop", 103.0, 110.0)
    lost = [{"event": "manager_lost", "time": "1970-01-01T00:01:46+00:00"}]
    until = times.next_fault(first, [first, second])
    assert times.detection(PLAN, first, lost, [], until) == seconds
    assert times.detection(PLAN, second, lost, [], times.next_fault(second, [first, second])) == 3.0


@pytest.mark.parametrize(("back", "noticed", "exposed"), [(False, None, 0.0), (True, 2.0, 10.0)])
def test_a_node_that_is_away_cannot_be_missed_once_more(back: bool, noticed: float | None, exposed: float) -> None:
    cut = Strike(Fault("cut", "node", 1, Moment(1, 1, 0.0), 1.0), ("n0",), 100.0, 110.0)
    events = [
        {"event": "node_left", "node": "n0", "time": "1970-01-01T00:01:30+00:00"},
        *([{"event": "node_joined", "node": "n0", "time": "1970-01-01T00:01:35+00:00"}] if back else []),
        {"event": "node_left", "node": "n0", "time": "1970-01-01T00:01:42+00:00"},
        {"event": "round_finished", "time": "1970-01-01T00:02:00+00:00"},
    ]
    assert times.detection(PLAN, cut, events, []) == noticed
    assert times.exposed(cut, events) == exposed


@pytest.mark.parametrize(
    ("kind", "victim", "names", "noticed", "exposed"),
    [
        ("cut", "node", ("n0",), None, 3.0),
        ("kill", "node", ("n1",), None, 3.0),
        ("cut", "top server", (TOP_SERVER,), None, 3.0),
        ("cut", "node", ("n2",), 6.0, 8.0),
        ("cut", "pair", ("n0", "n1"), 6.0, 8.0),
        ("kill", "manager", ("m0",), 6.0, 8.0),
    ],
)
def test_a_cut_between_two_nodes_counts_until_a_fault_hits_one_of_them(
    kind: str, victim: str, names: tuple[str, ...], noticed: float | None, exposed: float
) -> None:
    moment = Moment(1, 1, 0.0)
    pair = Strike(Fault("cut", "pair", 1, moment, 1.0), ("n0", "n1"), 100.0, 110.0)
    other = Strike(Fault(kind, victim, 1, moment, 1.0), names, 103.0, 112.0)
    plan = dataclasses.replace(PLAN, hosted=((0,), (1,), (2,)))
    hop: Event = {"event": "hop_finished", "round": 1, "group": 0}
    events: list[Event] = [
        {**hop, "node": "n0", "time": "1970-01-01T00:01:30+00:00"},
        {"event": "node_left", "node": "n1", "time": "1970-01-01T00:01:46+00:00"},
        {**hop, "node": "n1", "time": "1970-01-01T00:01:48+00:00"},
    ]
    until = times.next_fault(pair, [pair, other])
    assert times.detection(plan, pair, events, [], until) == noticed
    assert times.exposed(pair, events, until) == exposed


def at(second: float) -> str:
    return f"1970-01-01T00:{int(second // 60):02}:{second % 60:06.3f}+00:00"


@pytest.mark.parametrize(
    ("later", "begin", "end", "noticed", "detected", "exposed", "late"),
    [
        # A node is cut off from second 100 to 160. The top server is away from `begin` to `end`.
        ("stop", 101.0, 103.0, 106.0, 3.0, 57.0, False),  # the seconds begin when it is back
        ("stop", 101.0, 103.0, 140.0, 37.0, 57.0, True),  # a short absence excuses nothing later
        ("stop", 104.9, 105.1, 111.0, 5.9, 54.9, True),
        ("stop", 103.0, 107.0, 102.0, 2.0, 53.0, False),  # noticed before
        ("stop", 107.0, 170.0, 165.0, None, 7.0, True),  # long unnoticed before; what comes in between shows nothing
        ("stop", 101.0, None, 130.0, None, 1.0, False),  # it was never back
        ("kill", 101.0, 109.0, 106.0, None, 51.0, True),
        ("kill", 101.0, 165.0, 164.0, None, 1.0, False),
        ("cut", 101.0, 103.0, 106.0, 6.0, 60.0, True),  # a top server that is cut off loses its nodes, and tells so
    ],
)
def test_a_top_server_that_is_away_cannot_notice_other_faults(
    later: str, begin: float, end: float | None, noticed: float, detected: float | None, exposed: float, late: bool
) -> None:
    moment = Moment(1, 1, 0.0)
    node = Strike(Fault("cut", "node", 0, moment, 1.0), ("n0",), 100.0, 160.0)
    top = Strike(Fault(later, "top server", 0, moment, 1.0), (TOP_SERVER,), begin, None if later == "kill" else end)
    events: list[Event] = [
        {"event": "node_left", "node": "n0", "reason": "lost", "time": at(noticed)},
        *([{"event": "run_resumed", "time": at(end)}] if later == "kill" and end else []),
        {"event": "round_finished", "time": at(300.0)},
    ]
    away = times.unwatched(node, [node, top], events)
    found = times.detection(PLAN, node, events, [], unwatched=away)
    seen = times.exposed(node, events, unwatched=away)
    assert found == pytest.approx(detected)
    assert seen == pytest.approx(exposed)
    assert Hit("cut", "node", ("n0",), 100.0, 60.0, found, None, seen).late == late
    assert times.unwatched(top, [node, top], events) == []


def test_a_cut_between_two_nodes_can_be_noticed_when_one_waits_for_the_other() -> None:
    pair = Strike(Fault("cut", "pair", 1, Moment(1, 1, 0.0), 1.0), ("n0", "n1"), 100.0, 111.0)
    plan = dataclasses.replace(PLAN, hosted=((0,), (1,), (2,)))
    hop: Event = {"event": "hop_finished", "round": 1, "group": 0}
    events: list[Event] = [
        {**hop, "node": "n0", "time": "1970-01-01T00:01:50+00:00"},
        {"event": "rerouted", "client": 1, "time": "1970-01-01T00:01:53+00:00"},
        {**hop, "node": "n1", "time": "1970-01-01T00:01:54+00:00"},
    ]
    assert times.detection(plan, pair, events, []) == 3.0
    assert times.exposed(pair, events) == 1.0
    assert times.detection(plan, pair, [events[1]], []) == 13.0, "nobody knows since when one waited"


# --- the network of a campaign


def packet(source: int, port: int, size: int = 1000, flags: int = 0) -> bytes:
    """A TCP packet to address 1, port 7000."""
    ip = bytearray(20)
    ip[0], ip[9], ip[15], ip[19] = 0x45, 6, source, 1
    tcp = bytearray(size - 20)
    tcp[0:2], tcp[2:4], tcp[13] = port.to_bytes(2, "big"), (7000).to_bytes(2, "big"), flags
    return bytes(ip + tcp)


async def test_packets_wait_for_each_other_at_a_thin_link() -> None:
    clock = Clock()
    links = Links(0.0, 0.0, random.Random(0), rates={"n0": 10_000.0})
    assert links._queue_s("n1", "from", packet(2, 1)) == 0
    assert links._queue_s("n0", "from", packet(1, 1)) == pytest.approx(0.1, abs=0.01)
    assert 0.1 < links._queue_s("n0", "from", packet(1, 1)) <= 0.21  # of which some time has passed
    assert links._queue_s("n0", "to", packet(1, 1)) == pytest.approx(0.1, abs=0.01)
    clock.advance(5)
    assert links._queue_s("n0", "from", packet(1, 1)) == pytest.approx(0.1, abs=0.01)


async def test_a_middlebox_forgets_idle_connections_and_takes_new_ones() -> None:
    clock = Clock()
    links = Links(0.0, 0.0, random.Random(0), idle_s=5.0)
    opening, later, other = packet(1, 99, flags=2), packet(1, 99), packet(1, 98, flags=2)
    assert not links._is_forgotten(opening)
    clock.advance(4)
    assert not links._is_forgotten(later)
    clock.advance(4)
    assert not links._is_forgotten(later)
    clock.advance(6)
    assert links._is_forgotten(later)
    assert links._is_forgotten(later)
    assert not links._is_forgotten(other)
    assert not links._is_forgotten(opening)  # the same ports again
    assert not links._is_forgotten(later)
    assert links.forgotten == 1


@pytest.mark.skipif(why_not() is not None, reason="this machine lets nobody make networks")
async def test_an_end_that_gets_another_address_is_reached_there_alone() -> None:
    with linked(["n0", "n1"], "m", 0.0, 0.0, seed=0) as links:
        before = links.addresses["n0"]
        links.readdress("n0")
        assert links.addresses["n0"] not in (before, links.addresses["n1"])
        assert await reached(links, "n1", links.addresses["n0"])
        assert not await reached(links, "n1", before)
        assert await reached(links, "n0", links.addresses["n1"])


async def reached(links: Links, end: str, address: str) -> bool:
    """Whether a process at an end has an answer from an address, where nothing listens."""
    call = f"import socket; s = socket.socket(); s.settimeout(1); print(s.connect_ex(('{address}', 7000)))"
    process = await asyncio.create_subprocess_exec(
        *links.command(end, [sys.executable, "-c", call]), stdout=asyncio.subprocess.PIPE
    )
    said, _ = await process.communicate()
    return int(said) == errno.ECONNREFUSED


# --- disks of a campaign


@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts disks")
def test_a_small_disk_can_be_filled_and_emptied_and_its_files_stay(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    try:
        with disks.small([folder]):
            (folder / "before").write_text("kept")
            disks.fill(folder)
            with pytest.raises(OSError, match="No space left"):
                (folder / "meanwhile").write_bytes(bytes(1 << 16))
            disks.empty(folder)
            (folder / "after").write_bytes(bytes(1 << 16))
    except subprocess.CalledProcessError:
        pytest.skip("this machine lets nobody mount a disk")
    assert not os.path.ismount(folder)
    assert (folder / "before").read_text() == "kept"
    assert {path.name for path in folder.iterdir()} == {"before", "meanwhile", "after"}


def test_every_campaign_has_every_fault_each_in_a_round_of_its_own() -> None:
    for seed in range(20):
        faults = campaign_plan.draw(seed).faults
        assert {fault.kind for fault in faults} == set(STRIKES)
        rounds = [fault.moment.round for fault in faults]
        assert len(set(rounds)) == len(rounds)


def test_campaigns_repeat_short_stops_and_deal_by_time() -> None:
    plans = [campaign_plan.draw(seed) for seed in range(60)]
    stops = [fault for plan in plans for fault in plan.faults if fault.kind == "stop"]
    assert {fault.victim for fault in stops if fault.times > 1} == {"node", "manager", "top server"}
    assert {plan.balance for plan in plans if plan.scheme == "fedgsp"} == {False, True}
    assert not any(plan.balance for plan in plans if plan.scheme != "fedgsp")


def test_a_personal_model_counts_although_its_node_was_killed_before_it_was_at_its_place(tmp_path: Path) -> None:
    state = opened(tmp_path)
    keep(state, 0, PERSONAL_MODEL, {"weight": np.ones(3, np.float32)}, 1)
    state.prepare(0, {PERSONAL_MODEL: ARRAYS}, 2, "made/2")
    (tmp_path / "receipts.jsonl").write_text('{"answered": "trained", "makes": "made/2"}\n')
    assert np.array_equal(_kept(tmp_path, "run", 0)["weight"], ARRAYS["weight"])
