from __future__ import annotations

from dataclasses import replace

import pytest

from top_server.grouping.round_size import group_count
from top_server.record.figures import CostModel

PAPER = CostModel()


def log_counts(rounds: int) -> list[int]:
    return [group_count("log", r, 2, 10, PAPER.clients) for r in range(1, rounds + 1)]


def t_comp_s(group_counts: list[int]) -> float:
    return sum(PAPER.t_comp_s(groups) for groups in group_counts)


def test_the_first_round_computes_one_chain_and_aggregates_three_groups() -> None:
    assert PAPER.t_comp_s(10) == pytest.approx(1.408135 + 2.2e-5, abs=1e-6)


def test_computing_time_is_that_of_the_paper() -> None:
    assert t_comp_s(log_counts(34)) == pytest.approx(10.1899, abs=5e-5)
    assert t_comp_s([PAPER.clients] * 470) == pytest.approx(18.5556, abs=5e-5)  # FedAvg


def test_communication_time_is_that_of_the_paper() -> None:
    assert PAPER.t_comm_s() == pytest.approx(78.5067, abs=5e-5)
    assert 34 * PAPER.t_comm_s() == pytest.approx(2669.23, abs=5e-3)
    assert 470 * PAPER.t_comm_s() == pytest.approx(36898.13, abs=5e-3)


def test_traffic_is_that_of_the_paper() -> None:
    assert 34 * PAPER.d_comm_bytes() == pytest.approx(1.8918e11, rel=1e-4)
    assert 470 * PAPER.d_comm_bytes() == pytest.approx(2.6152e12, rel=1e-4)


def test_the_whole_costs_93_percent_less_than_fedavg() -> None:
    ours = t_comp_s(log_counts(34)) + 34 * PAPER.t_comm_s()
    fedavg = t_comp_s([PAPER.clients] * 470) + 470 * PAPER.t_comm_s()
    assert ours / fedavg == pytest.approx(0.0726, abs=5e-5)


def test_a_toy_round() -> None:
    toy = CostModel(
        clients=10, samples_per_client=100, local_epochs=1, flop_per_sample=1e6, flop_per_aggregation=1e3,
        flop_per_second=1e9, sampling_rate=0.5, model_bytes=1e6, download_rate=1e8, upload_rate=5e7,
    )  # fmt: skip
    assert toy.t_comp_s(2) == pytest.approx(0.5)
    assert toy.t_comm_s() == pytest.approx(1.2)
    assert toy.d_comm_bytes() == 1e7


def test_a_single_group_costs_no_aggregation() -> None:
    assert PAPER.t_comp_s(1) == pytest.approx(96e6 * 226 * 368 / 567e9, rel=1e-12)


def test_more_groups_than_clients_do_not_shorten_the_chain() -> None:
    free = CostModel(flop_per_aggregation=0)
    assert free.t_comp_s(1000) == free.t_comp_s(368)


def test_a_round_whose_clients_have_all_gone_costs_nothing() -> None:
    assert CostModel(clients=0).t_comp_s(1) == 0
    assert CostModel(clients=0).t_comm_s() == 0


def test_a_relay_of_drawn_clients_is_as_long_as_they_are_many() -> None:
    """Where groups are drawn, each is as long as the clients over all groups say."""
    free = CostModel(clients=10, samples_per_client=100, sampling_rate=0.5, flop_per_sample=1e6, flop_per_second=1e9)
    free = replace(free, flop_per_aggregation=0)
    assert free.t_comp_s(1, of_drawn=True) == pytest.approx(0.5)
    assert free.t_comp_s(1) == pytest.approx(1.0)
    merging = replace(free, flop_per_sample=0, flop_per_aggregation=1e6)
    assert merging.t_comp_s(3, of_drawn=True) == pytest.approx(0.002)  # all three groups train
    assert merging.t_comp_s(4) == pytest.approx(0.001)
