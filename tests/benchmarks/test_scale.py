"""The model of a round over machines, and runs over machines that are network namespaces."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from benchmarks.scale.__main__ import managers_of, tables
from benchmarks.scale.model import (
    OTHER_MACHINE,
    SAME_MACHINE,
    SAME_NODE,
    Layout,
    Parts,
    parallel_s,
    passages,
    relay_s,
)
from benchmarks.scale.network import HUB, why_not
from benchmarks.scale.runs import Case, play

#: Two machines with two nodes each, and two clients on each node.
LAYOUT = Layout([0, 0, 1, 1, 2, 2, 3, 3], [1, 2, 1, 2])
PARTS = Parts(1.0, {SAME_NODE: 0.0, SAME_MACHINE: 0.1, OTHER_MACHINE: 0.5}, 10.0, 20)


def test_clients_are_dealt_over_nodes_and_nodes_over_machines_in_turn() -> None:
    assert Layout.of(8, 4, 2) == Layout([0, 1, 2, 3, 0, 1, 2, 3], [1, 2, 1, 2])
    ways = [LAYOUT.way(before, client) for before, client in ((None, 0), (0, 1), (1, 2), (0, 4))]
    assert ways == [OTHER_MACHINE, SAME_NODE, OTHER_MACHINE, SAME_MACHINE]


def test_a_chain_lasts_as_long_as_its_trainings_and_hops() -> None:
    assert relay_s([[0, 1, 4, 2]], LAYOUT, PARTS) == pytest.approx(4 * 1.0 + 0.5 + 0.0 + 0.1 + 0.5)


def test_chains_wait_for_a_node_that_trains_for_another_one() -> None:
    alone = relay_s([[0, 4]], LAYOUT, PARTS)
    assert relay_s([[0, 4], [2, 6]], LAYOUT, PARTS) == pytest.approx(alone)
    assert relay_s([[0, 4], [1, 5]], LAYOUT, PARTS) == pytest.approx(alone + 1.0)


def test_a_node_trains_for_the_chain_whose_model_came_first() -> None:
    layout = Layout([0, 0, 0, 0, 1, 2, 2], [1, 2, 1])
    # Node 0 is busy until 2.5. Models come to it at 2.0 by the first chain, and at 1.6 by the second.
    assert relay_s([[4, 3], [5, 2, 6], [0, 1]], layout, PARTS) == pytest.approx(2.5 + 1.0 + 0.1 + 1.0)


def test_a_parallel_round_lasts_as_long_as_its_busiest_node_or_link() -> None:
    groups = [[0, 2, 4, 6], [1, 3, 5, 7]]
    idle = dataclasses.replace(PARTS, model_bytes=0)
    assert parallel_s(groups, [HUB, HUB], LAYOUT, idle) == 2.0
    # Beside the top server, all eight models come in by one link.
    assert parallel_s(groups, [HUB, HUB], LAYOUT, PARTS) == 8 * 20 / 10
    # On the machines, each gets a start, two models of the other machine, and two starts for its own nodes.
    assert parallel_s(groups, [1, 2], LAYOUT, PARTS) == 5 * 20 / 10


def test_models_pass_between_machines_and_within_them() -> None:
    found = passages([[0, 2, 4, 6], [1, 3, 5, 7]], [1, 2], LAYOUT)
    # Each group: its start to its manager, on to the four nodes, of which two are there, four models, and its result.
    assert (found.across, found.within) == (2 * (1 + 2 + 2 + 1), 2 * (2 + 2))
    assert passages([[0, 2, 4, 6]], [HUB], LAYOUT).within == 0


def test_a_parallel_round_does_not_end_before_the_processors_have_done_its_work() -> None:
    groups = [[0, 2, 4, 6], [1, 3, 5, 7]]
    busy = dataclasses.replace(PARTS, across=10.0, within=1.0, processors=2)
    assert parallel_s(groups, [1, 2], LAYOUT, busy) == (12 * 10 + 8 * 1) / 2


def test_what_was_measured_on_the_fewest_machines_predicts_the_others() -> None:
    groups = [[client for client in range(368) if client % 16 == group] for group in range(16)]

    def row(machines: int, placed: bool, seconds: float) -> dict[str, Any]:
        case = Case(machines, "parallel", placed)
        managers = [1 + group % machines if placed else HUB for group in range(16)]
        models = passages(groups, managers, case.layout)
        work = 0.4 * models.across + 0.2 * models.within
        told = {"seconds": [seconds], "processor_s": [work], "of_groups": groups, "managers_on": managers}
        return {**dataclasses.asdict(case), **told}

    rows = [row(2, False, 60.0), row(2, True, 50.0), row(4, True, 40.0)]
    lines = list(tables({"processors": 2, "hops": {OTHER_MACHINE: 0.1}, "rows": rows}, 1000))
    assert lines[0] == "Work of a processor: 0.400 s for a model between machines, 0.200 s within a machine."
    # Each group is on one node, beside its manager. So 384 models stay within machines, and 32 do not.
    measured, predicted = [line.split(" | ") for line in lines[5:7]]
    assert measured[3:] == ["50.0", "89.6", "46.0", "measured here", " |"]
    assert predicted[5:] == ["44.8", "48.8", "+22 % |"]


@pytest.mark.e2e
@pytest.mark.skipif(bool(why_not()), reason=why_not() or "can be played")
@pytest.mark.slow
@pytest.mark.parametrize("program", ["relay", "parallel"])
def test_runs_over_machines_with_managers_there_finish(program: str) -> None:
    """Top server, managers and nodes listen on all addresses of machines that have no loopback in common."""
    case = Case(2, program, True, 8, 2, 2, nodes_per_machine=1, parameters=1000, training_s=0.0)
    played = play(case)
    assert sorted(managers_of(played.events, case)) == [1, 2]
    assert len(played.rounds) == len(played.processor_s) == 1
    assert played.processor_s[0] > 0
    assert not [event for event in played.events if event["event"] in ("client_skipped", "manager_lost", "rerouted")]
