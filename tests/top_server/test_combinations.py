"""Choices and options that do not go together are refused before anybody waits for nodes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fedgsp.errors import ConfigError
from fedgsp.settings.run import RunConfig
from top_server.choosing import choose, ignored


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"scheme": "ifca", "merge": "soft-clusters"}, "merge soft-clusters needs grouping singletons"),
        ({"scheme": "flsc", "merge": "clusters"}, "merge clusters needs grouping ifca"),
        ({"scheme": "fesem", "merge": "clusters"}, "merge clusters needs grouping ifca"),
        ({"scheme": "fedgsp", "grouping": "hcct"}, "grouping hcct needs profile updates"),
        ({"scheme": "hcct", "grouping": "icg"}, "grouping icg needs profile histograms"),
    ],
)
def test_parts_that_need_others_are_refused(settings: dict[str, Any], what: str) -> None:
    with pytest.raises(ConfigError, match=what) as caught:
        choose(RunConfig(**settings))
    assert caught.value.remedy.startswith("use scheme ")


@pytest.mark.parametrize(
    ("scheme", "choice", "value", "what"),
    [
        ("flsc", "grouping", "single", "merge soft-clusters needs grouping singletons"),
        ("ifca", "grouping", "random", "merge clusters needs grouping ifca"),
        ("fesem", "aggregation", "median", "merge centres needs aggregation mean"),
        ("fesem", "weighing", "samples", "merge centres needs weighing uniform"),
        # members of a chain are not weighed
        ("fedfa", "program", "relay", "weighing fedfa needs program parallel"),
        ("maxfl", "program", "relay", "weighing maxfl needs program parallel"),
        # nobody would train the models that clients choose among
        ("ifca", "merge", "none", "grouping ifca needs merge clusters"),
        ("ifca", "merge", "weighted-mean", "grouping ifca needs merge clusters"),
        ("fesem", "merge", "none", "grouping fesem needs merge centres"),
        ("flsc", "merge", "none", "profile losses needs merge clusters or soft-clusters"),
    ],
)
def test_a_choice_that_the_scheme_does_not_go_with_is_to_be_left_out(
    scheme: str, choice: str, value: Any, what: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        choose(RunConfig(scheme=scheme, **{choice: value}))
    assert caught.value.what == f"{what}, and scheme {scheme} has {value}"
    assert caught.value.remedy == f"leave out --{choice}"


def test_groups_may_be_chosen_by_loss_where_the_models_are_trained() -> None:
    assert choose(RunConfig(scheme="flsc", grouping="ifca", merge="clusters")).merge == "clusters"


@pytest.mark.parametrize(
    ("scheme", "changes"),
    [
        ("fedcollab", {"grouping": "random"}),
        ("hcct", {}),
        ("fedgsp", {}),
        ("global", {}),
        ("independent", {}),
        ("fedcollab", {"merge": "weighted-mean"}),
    ],
)
def test_groups_that_do_not_stay_cannot_rest(scheme: str, changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="--after-arrivals joined needs groups that stay") as caught:
        choose(RunConfig(scheme=scheme, after_arrivals="joined", **changes))
    assert caught.value.remedy == "use scheme fedcollab or kmeans"


def test_the_order_of_relays_is_that_of_the_scheme_or_the_one_that_is_chosen() -> None:
    assert choose(RunConfig(scheme="fedgsp")).shuffle
    assert not choose(RunConfig(scheme="fedgsp", relay_order="kept")).shuffle
    assert not choose(RunConfig(scheme="naive-gsp")).shuffle
    assert choose(RunConfig(scheme="naive-gsp-icg", relay_order="drawn")).shuffle
    with pytest.raises(ConfigError, match="--relay-order is for program relay; in program parallel"):
        choose(RunConfig(scheme="fedavg", relay_order="drawn"))


@pytest.mark.parametrize(
    ("scheme", "kind", "option", "value"),
    [
        ("hcct", "profile", "similarity", "colour"),
        ("hcct", "profile", "sketch_bytes", "0"),
        ("hcct", "profile", "sketch_bytes", "1000000000"),
        ("hcct", "profile", "layer_score", "x"),
        ("hcct", "profile", "newcomer_start", "x"),
        ("ifca", "profile", "models", "0"),
        ("ifca", "profile", "models", "abc"),
        ("flsc", "merge", "soft", "9"),
        ("flsc", "merge", "soft", "x"),
        ("maxfl", "profile", "prior_epochs", "0"),
        ("maxfl", "profile", "prior_epochs", "99999999999"),
    ],
)
def test_options_of_every_part_are_judged_at_once(scheme: str, kind: str, option: str, value: str) -> None:
    given: dict[str, Any] = {f"{kind}_option": {option: value}}
    with pytest.raises(ConfigError, match=f"option {option} is '?{value}"):
        choose(RunConfig(scheme=scheme, **given))


def test_the_growths_alpha_is_not_taken_for_that_of_hcct() -> None:
    with pytest.raises(ConfigError, match="--alpha has no effect in scheme hcct") as caught:
        choose(RunConfig(scheme="hcct", alpha=100.0))
    assert caught.value.remedy == "give --grouping-option alpha=..."
    assert choose(RunConfig(scheme="fedgsp", alpha=100.0)).growth == "log"


@pytest.mark.parametrize("grouping", ["random", "grpc://127.0.0.1:9"])
def test_a_counted_grouping_accepts_settings_of_the_number_of_groups(grouping: str) -> None:
    config = RunConfig(scheme="global", grouping=grouping, beta=2)
    chosen = choose(config)
    assert (chosen.grouping, chosen.service) == (("random", "") if grouping == "random" else ("single", "127.0.0.1:9"))
    assert choose(replace(config, growth="log", alpha=3.0)).growth == "log"
    with pytest.raises(ConfigError, match="--alpha has no effect in scheme global"):
        choose(replace(config, alpha=3.0))  # the number is constant
    with pytest.raises(
        ConfigError, match="--sampling-rate has no effect in scheme global, in which all clients train"
    ):
        choose(replace(config, sampling_rate=0.5))


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"scheme": "fedgsp", "alpha": 9.0, "beta": 3, "smallest_group": 2, "sampling_rate": 0.5}, []),
        ({"scheme": "fedavg", "sampling_rate": 0.5}, []),
        ({"scheme": "fedavg", "alpha": 9.0, "beta": 3}, ["--beta", "--alpha"]),
        ({"scheme": "naive-gsp", "alpha": 2.0, "beta": 3}, ["--alpha"]),
        ({"scheme": "hcct", "alpha": 2.0, "sampling_rate": 0.3}, ["--alpha", "--sampling-rate"]),
        ({"scheme": "fedgsp", "weighing": "uniform"}, ["--weighing"]),
        ({"scheme": "fedgsp", "program": "parallel", "weighing": "uniform"}, []),
        ({"scheme": "global", "weighing": "uniform"}, []),
        ({"scheme": "global", "aggregation": "median", "weighing": "samples"}, ["--weighing"]),
        ({"scheme": "fednova", "weighing": "uniform"}, []),
        ({"scheme": "fedfa", "aggregation": "trimmed-mean", "weighing": "fedfa"}, []),
        ({"scheme": "maxfl", "aggregation": "median"}, []),
        ({"scheme": "independent", "weighing": "uniform"}, ["--weighing"]),
    ],
)
def test_settings_that_have_no_effect_are_named(settings: dict[str, Any], told: list[str]) -> None:
    config = RunConfig(**settings)
    phrases = ignored(config, choose(config))
    assert [phrase.split()[0] for phrase in phrases] == told
    assert all(f"has no effect in scheme {config.scheme}, " in phrase for phrase in phrases)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        (
            {"schedule_option": {"horizon": "20"}},
            "--schedule-option horizon changes no step size",
        ),
        ({"local_schedule_option": {"horizon": "999"}}, "--local-schedule-option horizon changes no step size"),
        ({"schedule_option": {"warmup": "0"}}, "--schedule-option warmup changes no step size"),
        ({"schedule_option": {"warmup": "2", "horizon": "20"}}, ""),
        ({"schedule": "linear", "schedule_option": {"horizon": "20"}}, ""),
    ],
)
def test_options_of_a_constant_schedule_without_effect_are_named(settings: dict[str, Any], told: str) -> None:
    config = RunConfig(rounds=20, **settings)
    phrases = ignored(config, choose(config))
    assert len(phrases) == bool(told)
    assert all(phrase.startswith(told) for phrase in phrases)


@pytest.mark.parametrize("name", ["beta", "growth"])
@pytest.mark.parametrize("grouping", [None, "singletons", "fixed"])
def test_a_grouping_that_is_not_counted_refuses_settings_of_the_number_of_groups(
    grouping: str | None, name: str
) -> None:
    given: dict[str, Any] = {name: {"beta": 2, "growth": "log"}[name]}
    with pytest.raises(ConfigError, match=f"--{name} has no effect in scheme global, which grows no groups"):
        choose(RunConfig(scheme="global", grouping=grouping, **given))


def test_a_learning_rate_that_vanishes_is_refused() -> None:
    with pytest.raises(ConfigError, match="the learning rate is 0 before round 3"):
        choose(RunConfig(rounds=3, learning_rate_decay=1e-300))
