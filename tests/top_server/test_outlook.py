"""What is said of the groups before the first round, in words, and what is warned of."""

from __future__ import annotations

from typing import Any

import pytest

from fedgsp.settings.run import RunConfig
from top_server.choosing import choose
from top_server.fitted import fitted
from top_server.outlook import doubts, outlook

EVERYBODY = {"sampling_rate": 1.0, "rounds": 10}


def told(clients: int, **settings: Any) -> str:
    config = RunConfig(**settings)
    config = fitted(config, choose(config), clients).config
    return outlook(config, choose(config), clients)


def doubted(clients: int, **settings: Any) -> list[str]:
    config = RunConfig(**settings)
    return list(doubts(config, choose(config), clients))


@pytest.mark.parametrize(
    ("scheme", "clients", "settings", "text"),
    [
        ("fedgsp", 2, {}, "1 in rounds 1 to 10; all of them train, with 2 clients in each"),
        (
            "fedgsp",
            6,
            {},
            "1 in rounds 1 and 2, 2 in rounds 3 to 7, 3 in rounds 8 to 10;"
            " all of them train, with 2 to 6 clients in each",
        ),
        (
            "fedgsp",
            368,
            {"rounds": 500},
            "10 in round 1, 20 in round 2, 30 in rounds 3 and 4, ..., 130 in rounds 404 to 500;"
            " 3 to 39 of them train in a round, with 2 to 36 clients in each",
        ),
        ("naive-gsp", 12, {}, "2 in rounds 1 to 10; all of them train, with 6 clients in each"),
        ("fedgsp", 5, {"beta": 5}, "5 in rounds 1 to 10; all of them train, with 1 client in each"),
        ("fedavg", 6, {}, "1 in every round, of all 6 clients"),
        ("fedavg", 1, {}, "1 in every round, of 1 client"),
        ("fedavg", 100, {}, "1 in every round, of 30 of the 100 clients, drawn anew"),
        ("global", 6, {}, "1 in every round, of all 6 clients"),
        ("independent", 6, {}, "none; every client trains alone"),
        ("flsc", 6, {}, "none; every client trains alone, for one or more of 2 models"),
        (
            "ifca",
            6,
            {},
            "clients for which the same cluster's model has the smallest loss; in all 2 models",
        ),
        ("fedcollab", 6, {}, "coalitions with the smallest bound on their members' errors, found once"),
        (
            "fedgsp",
            6,
            {"grouping": "grpc://127.0.0.1:7300"},
            "as the grouping service at 127.0.0.1:7300 forms them",
        ),
    ],
)
def test_the_groups_are_told_in_words(scheme: str, clients: int, settings: dict[str, Any], text: str) -> None:
    assert told(clients, **{"scheme": scheme, "rounds": 10, **settings}) == text


@pytest.mark.parametrize(
    ("settings", "doubt"),
    [
        (
            {"beta": 10, **EVERYBODY},
            "in rounds 1 to 10 every group is a single client, so that no model is relayed:"
            " give --smallest-group 2, or leave out --beta",
        ),
        (
            {"beta": 2, **EVERYBODY},
            "in rounds 2 to 10 every group is a single client, so that no model is relayed:"
            " give --smallest-group 2, or leave out --beta",
        ),
        (
            {"beta": 4, "grouping_option": {"mode": "all"}, **EVERYBODY},
            "in rounds 1 to 10 some groups are single clients, so that no model is relayed:"
            " give --smallest-group 2, or leave out --beta",
        ),
        (
            {"scheme": "hcct", "grouping": "random", "beta": 6},
            "in rounds 1 to 20 every group is a single client, which learns from no other client:"
            " give --smallest-group 2, or leave out --beta",
        ),
        (
            {"scheme": "naive-gsp", "beta": 4, "grouping_option": {"mode": "exact"}, "smallest_group": 1, **EVERYBODY},
            "2 clients will be in no group in the whole run: give --grouping-option mode=all",
        ),
        (
            {"beta": 2, "sampling_rate": 0.5, "rounds": 2, "growth": "constant"},
            "about 2 of 6 clients will train in none of the 2 rounds: give --sampling-rate 1, or more --rounds",
        ),
        (
            {"scheme": "fedavg", "sampling_rate": 0.3, "rounds": 4},
            "about 1 of 6 clients will train in none of the 4 rounds: give --sampling-rate 1, or more --rounds",
        ),
    ],
)
def test_groups_of_one_and_clients_that_never_train_are_doubted(settings: dict[str, Any], doubt: str) -> None:
    assert doubt in doubted(6, **settings)


@pytest.mark.parametrize(
    "settings",
    [
        {"beta": 3, "growth": "constant", **EVERYBODY},
        {"beta": 10, "smallest_group": 3, **EVERYBODY},
        {"scheme": "independent"},
        {"scheme": "fedavg", "sampling_rate": 0.5},
        {"grouping": "grpc://127.0.0.1:7300", "beta": 10},
    ],
)
def test_other_groups_are_not_doubted(settings: dict[str, Any]) -> None:
    assert doubted(6, **settings) == []


def test_a_client_without_others_is_not_doubted() -> None:
    assert doubted(1) == []
