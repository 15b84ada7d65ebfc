"""Settings that nobody gave follow the number of clients; what a person gives stays."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgsp.settings.run import RunConfig
from top_server.choosing import choose
from top_server.fitted import (
    CHAINS_FROM,
    FEW,
    FIRST_CHAIN,
    LAST_CHAIN,
    MANY,
    Fitted,
    clusters,
    first_groups,
    fitted,
    in_words,
    share,
)
from top_server.outlook import doubts, stretches
from top_server.schemes import SCHEMES
from top_server.sizes import PAPER, value_of

COUNTED = ("fedgsp", "naive-gsp", "naive-gsp-icg")
few = st.integers(1, FEW)
fewer_than_many = st.integers(2, MANY - 1)
rounds = st.integers(1, 300)
schemes = st.sampled_from(COUNTED)


def fit(clients: int, **settings: Any) -> Fitted:
    config = RunConfig(**settings)
    return fitted(config, choose(config), clients)


@given(scheme=schemes, clients=few, played=rounds)
def test_few_clients_all_train_in_every_round(scheme: str, clients: int, played: int) -> None:
    config = fit(clients, scheme=scheme, rounds=played).config
    for one in stretches(config, choose(config), clients):
        assert (one.idle, one.train) == (0, one.groups)


@given(scheme=schemes, clients=fewer_than_many, played=rounds, growth=st.sampled_from([None, "exp", "linear"]))
def test_no_group_is_a_single_client(scheme: str, clients: int, played: int, growth: str | None) -> None:
    config = fit(clients, scheme=scheme, rounds=played, growth=growth).config
    assert all(one.fewest >= 2 for one in stretches(config, choose(config), clients))


@given(clients=st.integers(1, 2000), played=rounds)
def test_the_number_of_groups_never_falls(clients: int, played: int) -> None:
    config = fit(clients, rounds=played).config
    counts = [one.groups for one in stretches(config, choose(config), clients)]
    assert counts == sorted(counts)


@pytest.mark.parametrize("clients", [4, 6, 12, 24, 100, 368])
def test_the_number_of_groups_grows_where_there_are_enough_clients(clients: int) -> None:
    config = fit(clients, rounds=20).config
    assert len(stretches(config, choose(config), clients)) > 1


@given(clients=st.integers(CHAINS_FROM, MANY - 1))
def test_chains_begin_with_a_dozen_and_keep_four_members(clients: int) -> None:
    """The rule of docs/results/femnist-growth.md, for 300 rounds."""
    config = fit(clients, rounds=300).config
    first, *_, last = stretches(config, choose(config), clients)
    assert first.fewest >= min(FIRST_CHAIN - 3, clients // 10)
    assert last.fewest >= LAST_CHAIN
    assert last.groups >= clients // 7


@pytest.mark.parametrize(("clients", "wanted"), [(46, (4, 0.5, 4)), (92, (8, 0.5, 4)), (100, (8, 0.5, 4))])
def test_the_settings_are_those_of_the_runs_in_which_they_were_measured(
    clients: int, wanted: tuple[int, float, int]
) -> None:
    config = fit(clients).config
    assert (config.beta, config.alpha, config.smallest_group) == wanted


@given(clients=st.integers(1, 2000))
def test_more_clients_never_get_fewer_groups_or_a_larger_share(clients: int) -> None:
    assert first_groups(clients) <= first_groups(clients + 1)
    assert clusters(clients) <= clusters(clients + 1)
    assert share(clients) >= share(clients + 1)


@given(scheme=st.sampled_from(sorted(SCHEMES.built_in)), clients=st.integers(MANY, 5000))
def test_many_clients_have_the_values_of_the_paper(scheme: str, clients: int) -> None:
    config = RunConfig(scheme=scheme)
    found = fitted(config, choose(config), clients)
    assert all(value_of(found.config, name) == value for name, value in PAPER.items())
    without = dataclasses.replace(found.config, alpha=None, beta=None, smallest_group=None, sampling_rate=None)
    assert without == config
    assert not found.chosen


GIVEN = {
    "alpha": st.none() | st.just(0.25),
    "beta": st.none() | st.integers(1, 30),
    "smallest_group": st.none() | st.integers(1, 4),
    "sampling_rate": st.none() | st.just(0.125),
    "growth": st.none() | st.just("linear"),
    "grouping_option": st.sampled_from([{}, {"mode": "paper"}, {"mode": "exact"}]),
}


@given(scheme=schemes, clients=st.integers(1, 500), settings=st.fixed_dictionaries(GIVEN))
def test_what_a_person_gives_stays(scheme: str, clients: int, settings: dict[str, Any]) -> None:
    found = fit(clients, scheme=scheme, **settings).config
    for name, value in settings.items():
        if name == "grouping_option":
            assert found.grouping_option.items() >= value.items()
        elif value is not None:
            assert getattr(found, name) == value


@given(scheme=st.sampled_from(sorted(SCHEMES.built_in)), clients=st.integers(1, 500))
def test_a_record_repeats_the_choice(scheme: str, clients: int) -> None:
    config = RunConfig(scheme=scheme)
    once = fitted(config, choose(config), clients).config
    again = fitted(once, choose(once), clients)
    assert (again.config, again.chosen) == (once, {})


@pytest.mark.parametrize("beta", [1, 10])
def test_with_a_given_beta_the_groups_grow_as_in_the_paper(beta: int) -> None:
    found = fit(6, beta=beta).config
    assert (found.alpha, found.smallest_group, found.grouping_option) == (2.0, 1, {})
    assert found.sampling_rate == 1.0


@pytest.mark.parametrize(
    ("scheme", "clients", "wanted"),
    [
        ("ifca", 2, {"profile_option": {"models": "1"}}),
        ("ifca", 6, {"profile_option": {"models": "2"}}),
        ("ifca", 12, {}),
        ("fesem", 9, {"profile_option": {"models": "3"}}),
        ("kmeans", 3, {"grouping_option": {"clusters": "1"}}),
        ("flsc", 6, {"profile_option": {"models": "2"}, "merge_option": {"soft": "1"}}),
        ("flsc", 12, {}),
        ("fedavg", 6, {"sampling_rate": 1.0}),
        ("fedavg", 40, {"sampling_rate": 0.5}),
        ("global", 6, {}),
        ("independent", 2, {}),
        ("fedgsp", 6, {"sampling_rate": 1.0, "alpha": 1.0, "beta": 1, "grouping_option": {"mode": "all"}}),
        ("naive-gsp", 12, {"sampling_rate": 1.0, "beta": 2, "grouping_option": {}}),
    ],
)
def test_each_scheme_gets_the_settings_that_it_reads(scheme: str, clients: int, wanted: dict[str, Any]) -> None:
    found = fit(clients, scheme=scheme).config
    assert {name: getattr(found, name) for name in wanted} == wanted
    assert found == RunConfig(scheme=scheme) or fit(clients, scheme=scheme).chosen or clients >= 12
    choose(found)  # the settings go together


def test_a_number_of_models_that_is_given_leaves_the_rest_as_it_was() -> None:
    found = fit(6, scheme="flsc", profile_option={"models": "2"}).config
    assert (found.profile_option, found.merge_option) == ({"models": "2"}, {})


def test_a_grouping_service_is_told_a_number_of_groups_and_no_option() -> None:
    found = fit(6, grouping="grpc://127.0.0.1:7300").config
    assert (found.beta, found.grouping_option) == (1, {})


def test_the_choice_is_told_with_its_reasons() -> None:
    assert list(in_words(fit(6, scheme="naive-gsp").chosen)) == [
        "--sampling-rate 1, so that every client trains in a round",
        "--beta 1, --smallest-group 2, so that groups are large at first and never single clients",
    ]
    assert list(in_words(fit(40, scheme="fedavg").chosen)) == [
        "--sampling-rate 0.5, so that about 20 clients train in a round"
    ]


@given(scheme=st.sampled_from(sorted(SCHEMES.built_in)), clients=few, played=rounds)
def test_what_is_chosen_for_few_clients_gives_no_cause_for_doubt(scheme: str, clients: int, played: int) -> None:
    config = fit(clients, scheme=scheme, rounds=played).config
    assert list(doubts(config, choose(config), clients)) == []
