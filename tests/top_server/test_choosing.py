"""From settings to the choices of a run; what does not fit is told before anybody waits for nodes."""

from __future__ import annotations

from typing import Any

import pytest

from fedgsp.aggregations import AGGREGATIONS, Aggregation
from fedgsp.errors import ConfigError
from fedgsp.settings.checks import check
from fedgsp.settings.fields import described
from fedgsp.settings.run import RunConfig
from top_server.choosing import NAMES, TABLES, absent, choose
from top_server.grouping import GROUPINGS
from top_server.merging import MERGES
from top_server.merging.weighing import WEIGHINGS
from top_server.profiles import PROFILES
from top_server.schemes import SCHEMES


def refused(**settings: Any) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        choose(RunConfig(**settings))
    return caught.value


@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_row_names_parts_that_exist_and_goes_by_itself(scheme: str) -> None:
    row = choose(RunConfig(scheme=scheme))
    assert row == SCHEMES[scheme]
    assert row.profile in PROFILES
    assert row.grouping in GROUPINGS
    assert row.merge in MERGES
    assert row.weighing in WEIGHINGS


@pytest.mark.parametrize("kind", TABLES)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_an_option_that_no_part_reads_is_refused_with_the_options_of_its_own_part(scheme: str, kind: str) -> None:
    error = refused(scheme=scheme, **{f"{kind}_option": {"colour": "red"}})
    chosen = TABLES[kind][getattr(SCHEMES[scheme], kind)]
    assert error.what == f"{kind} {chosen.name} has no option 'colour'"
    assert [one.name for one in described(chosen.options).values() if one.name not in error.remedy] == []


@pytest.mark.parametrize(
    ("scheme", "given", "remedy"),
    [
        ("hcct", {"grouping_option": {"similarity": "layer"}}, "give --profile-option similarity=..."),
        ("hcct", {"profile_option": {"alpha.3": "1"}}, "give --grouping-option alpha.3=..."),
        ("flsc", {"grouping_option": {"soft": "3"}}, "give --merge-option soft=..."),
        ("fedprox", {"aggregation_option": {"mu": "3"}}, "give --training-option mu=..."),
        (
            "fedavg",
            {"merge": "trimmed-mean", "aggregation": "trimmed-mean", "grouping_option": {"trim": "0.2"}},
            "give --merge-option trim=... or --aggregation-option trim=...",
        ),
    ],
)
def test_an_option_of_another_part_is_refused_with_the_flag_of_that_part(
    scheme: str, given: dict[str, Any], remedy: str
) -> None:
    assert refused(scheme=scheme, **given).remedy == remedy


def test_a_chosen_scheme_has_the_options_of_its_row_and_over_them_those_that_are_given() -> None:
    assert choose(RunConfig(scheme="hcct-e")).options == {"profile": {"similarity": "layer"}}
    given = RunConfig(scheme="hcct-e", grouping_option={"alpha.2": "3"}, profile_option={"similarity": "exact"})
    assert choose(given).options == {"grouping": {"alpha.2": "3"}, "profile": {"similarity": "exact"}}


@pytest.mark.parametrize("merge", ["clusters", "soft-clusters"])
@pytest.mark.parametrize("scheme", [name for name, row in SCHEMES.items() if row.profile != "losses"])
def test_clusters_need_a_scheme_whose_clients_tell_losses(scheme: str, merge: str) -> None:
    error = refused(scheme=scheme, merge=merge)
    assert error.what.startswith(f"merge {merge} ")
    assert scheme in error.what
    assert error.remedy == {"clusters": "use scheme ifca", "soft-clusters": "use scheme flsc"}[merge]


def test_single_choices_may_be_replaced() -> None:
    row = choose(RunConfig(scheme="fedgsp", merge="none", program="parallel", grouping="random", growth="linear"))
    assert (row.merge, row.program, row.grouping, row.growth) == ("none", "parallel", "random", "linear")
    assert row.profile == "histograms"


@pytest.mark.parametrize(
    ("scheme", "option", "reason"),
    [
        ("hcct", {"grouping_option": {"alpha": "much"}}, "option alpha is 'much'"),
        ("hcct", {"grouping_option": {"alpha.9": "much"}}, "option alpha.9 is 'much'"),
        ("hcct", {"grouping_option": {"first_epoch": "some"}}, "option first_epoch is 'some'"),
        ("hcct", {"grouping_option": {"alpha.x": "1"}}, "'alpha.x'"),
        ("hcct", {"profile_option": {"similarity": "red"}}, "option similarity is 'red'"),
        ("hcct", {"profile_option": {"similarity": "sketch", "sketch_bytes": "12"}}, "option sketch_bytes is '12'"),
        (
            "hcct",
            {"profile_option": {"sketch_bytes": "16"}},
            "sketch_bytes has no effect where similarity is exact",
        ),
        (
            "hcct-e",
            {"profile_option": {"sketch_bytes": "16"}},
            "sketch_bytes has no effect where similarity is layer",
        ),
        (
            "hcct",
            {"profile_option": {"layer_score": "release"}},
            "layer_score has no effect where similarity is exact",
        ),
        ("maxfl", {"profile_option": {"prior_epochs": "none"}}, "option prior_epochs is 'none'"),
        ("ifca", {"profile_option": {"models": "0"}}, "option models is '0'"),
        ("flsc", {"merge_option": {"soft": "5"}}, "option soft is 5, and there are 4 models"),
        (
            "flsc",
            {"profile_option": {"models": "3"}, "merge_option": {"soft": "4"}},
            "soft is 4, and there are 3 models",
        ),
    ],
)
def test_a_wrong_value_is_refused_with_what_is_accepted(scheme: str, option: dict[str, Any], reason: str) -> None:
    error = refused(scheme=scheme, **option)
    assert reason in error.what
    assert error.remedy


@pytest.mark.parametrize("trim", ["0.5", "-0.1", "some", "nan"])
@pytest.mark.parametrize("kind", ["merge", "aggregation"])
def test_a_share_that_cannot_be_trimmed_is_refused(kind: str, trim: str) -> None:
    error = refused(scheme="fedavg", **{kind: "trimmed-mean"}, **{f"{kind}_option": {"trim": trim}})
    assert error.what == f"{kind} trimmed-mean: option trim is '{trim}'"
    assert error.remedy == "give a number of at least 0 and below 0.5"


def test_models_of_groups_have_no_training_accuracy() -> None:
    error = refused(scheme="fedgsp", merge="ida", merge_option={"times": "intrac"})
    assert error.what.startswith("merge ida: times=intrac needs the training accuracy of each model")
    assert choose(RunConfig(scheme="ida", aggregation_option={"times": "intrac"})).aggregation == "ida"


def test_members_of_a_relay_have_no_distances_from_each_other() -> None:
    assert refused(scheme="fedgsp", aggregation="ida").what.startswith("aggregation ida needs program parallel")


@pytest.mark.parametrize("aggregation", ["median", "trimmed-mean"])
def test_models_are_aggregated_only_where_clients_train_in_parallel(aggregation: str) -> None:
    error = refused(scheme="fedgsp", aggregation=aggregation)
    assert error.what == f"aggregation {aggregation} needs program parallel, and scheme fedgsp has relay"
    assert error.remedy == "give --program parallel"
    assert choose(RunConfig(scheme="fedgsp", aggregation=aggregation, program="parallel")).aggregation == aggregation


@pytest.mark.parametrize("scheme", ["hcct", "hcct-e", "hcct-p", "maxfl-hcct"])
@pytest.mark.parametrize("aggregation", ["median", "trimmed-mean"])
def test_a_robust_aggregation_is_refused_where_new_groups_start_from_a_mean(scheme: str, aggregation: str) -> None:
    error = refused(scheme=scheme, aggregation=aggregation)
    assert "would not protect" in error.what
    assert "--update-norm-limit" in error.remedy
    choose(RunConfig(scheme=scheme, aggregation="fednova"))


@pytest.mark.parametrize("scheme", ["fedcollab", "kmeans", "fedcluster", "ifca", "global"])
def test_a_robust_aggregation_goes_where_groups_last_or_share_a_model(scheme: str) -> None:
    assert choose(RunConfig(scheme=scheme, aggregation="median")).aggregation == "median"


@pytest.mark.parametrize("scheme", ["independent", "flsc"])
@pytest.mark.parametrize("aggregation", ["median", "fednova"])
def test_an_aggregation_is_refused_where_all_train_alone(scheme: str, aggregation: str) -> None:
    error = refused(scheme=scheme, aggregation=aggregation)
    assert f"aggregation {aggregation} needs" in error.what or "needs aggregation mean" in error.what
    assert error.remedy == "leave out --aggregation"


def test_nor_is_that_of_a_row_told_to_train_all_alone() -> None:
    error = refused(scheme="fednova", grouping="singletons")
    assert error.what == "aggregation fednova needs groups of several, and grouping singletons has none"
    assert error.remedy == "leave out --grouping"


def test_a_new_aggregation_is_not_passed_over_in_silence_where_clients_relay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(AGGREGATIONS.built_in, "mine", Aggregation(help="mine", code="nowhere:Mine"))
    check(RunConfig(scheme="fedavg", aggregation="mine"), NAMES)
    assert choose(RunConfig(scheme="fedavg", aggregation="mine")).aggregation == "mine"
    error = refused(scheme="fedgsp", aggregation="mine")
    assert error.what == "aggregation mine needs program parallel, and scheme fedgsp has relay"


def test_options_of_a_grouping_service_are_for_the_service_to_judge() -> None:
    config = RunConfig(scheme="hcct", grouping="grpc://127.0.0.1:9", grouping_option={"colour": "red"})
    assert choose(config).service == "127.0.0.1:9"
    assert choose(config).given("grouping") == {"colour": "red"}


def test_options_of_a_scheme_are_not_given_to_a_grouping_that_replaces_its_own() -> None:
    for replaced, told in [(None, {"mode": "all"}), ("icg", {}), ("grpc://127.0.0.1:9", {})]:
        config = RunConfig(scheme="naive-gsp", grouping=replaced)
        assert choose(config).given("grouping") == told
    config = RunConfig(scheme="hcct-e", grouping="fedcluster")
    assert choose(config).given("profile") == {"similarity": "layer"}


def test_groups_of_clients_that_are_drawn_every_round_do_not_last() -> None:
    assert not choose(RunConfig(scheme="fedavg", merge="none")).lasts
    assert choose(RunConfig(scheme="global", merge="none")).lasts


def test_clients_that_options_name_are_known_by_their_ids() -> None:
    hcct = choose(RunConfig(scheme="hcct", grouping_option={"alpha": "1", "alpha.3": "2", "alpha.12": "2"}))
    assert absent(hcct, {0, 3}) == [12]
    assert absent(hcct, {3, 12}) == []
    fixed = choose(RunConfig(scheme="hcct", grouping="fixed", grouping_option={"groups": "0,1/22"}))
    assert absent(fixed, {0, 1, 2, 3}) == [22]
    assert absent(choose(RunConfig(scheme="hcct", grouping="fixed")), {0}) == []
    of_service = {"groups": "as it likes", "eps.x": "1", "7": "1"}
    asked = choose(RunConfig(scheme="hcct", grouping="grpc://127.0.0.1:7300", grouping_option=of_service))
    assert absent(asked, {0}) == []


# --- training with which nobody would learn


@pytest.mark.parametrize(
    ("training", "rate", "given", "told"),
    [
        ("fedprox", 0.2, {"mu": "10"}, "2"),
        ("fedprox", 0.5, {"mu": "6"}, "3"),
        ("ditto", 2.0, {}, "2"),
        ("ditto", 0.01, {"lambda": "250"}, "2.5"),
        ("pfedme", 0.01, {"lambda": "20"}, "2"),
        ("pfedme", 0.01, {"lambda": "15", "personal_rate": "0.2"}, "3"),
        ("pfedme", 0.5, {"lambda": "5", "personal_rate": "0.001"}, "2.5"),
    ],
)
def test_steps_that_swing_ever_wider_about_the_received_model_are_refused(
    training: str, rate: float, given: dict[str, str], told: str
) -> None:
    error = refused(scheme="fedavg", training=training, learning_rate=rate, training_option=given)
    assert error.what == f"the step size times the pull of training {training} is {told}: from 2 on, training diverges"
    assert "lower --learning-rate" in error.remedy


@pytest.mark.parametrize(
    ("training", "rate", "given"),
    [
        ("sgd", 50.0, {}),
        ("fedprox", 0.2, {"mu": "9.9"}),
        ("ditto", 1.99, {}),
        ("pfedme", 0.01, {"lambda": "19.9"}),
        ("pfedme", 0.01, {"lambda": "25", "personal_rate": "0.01"}),
    ],
)
def test_steps_that_overshoot_but_come_nearer_go(training: str, rate: float, given: dict[str, str]) -> None:
    config = RunConfig(scheme="fedavg", training=training, learning_rate=rate, training_option=given)
    assert choose(config).training == training


@pytest.mark.parametrize("program", ["relay", "alone"])
def test_distances_of_models_need_clients_that_train_in_parallel(program: str) -> None:
    error = refused(scheme="fesem", program=program)
    assert error.what == f"profile model-distances needs program parallel, and scheme fesem has {program}"
    assert error.remedy == "leave out --program"


@pytest.mark.parametrize(
    ("changes", "what", "remedy"),
    [
        ({"scheme": "fednova", "training": "fedfusion"}, "aggregation fednova makes", "leave out --training"),
        ({"scheme": "fedfusion", "aggregation": "fednova"}, "aggregation fednova makes", "leave out --aggregation"),
        ({"scheme": "hcct-p", "training": "fedfusion"}, "scheme hcct-p keeps the heads", "leave out --training"),
        ({"scheme": "fedavg", "merge": "smoothed-mean"}, "merge smoothed-mean needs training fedfusion", "use scheme"),
    ],
)
def test_what_is_not_defined_for_a_fusion_is_refused(changes: dict[str, Any], what: str, remedy: str) -> None:
    error = refused(**changes)
    assert error.what.startswith(what)
    assert error.remedy.startswith(remedy)


LOOKS_BACK: dict[str, Any] = {"training": "fedfusion", "training_option": {"evaluation": "previous"}}


@pytest.mark.parametrize("scheme", ["fedgsp", "hcct", "ifca", "fedcollab", "fedyogi"])
def test_a_model_is_sent_with_the_one_before_it_only_where_all_clients_had_that_one(scheme: str) -> None:
    for choice in ("fedavg", "fedfusion", "global"):
        assert choose(RunConfig(scheme=choice, **LOOKS_BACK)).training == "fedfusion"
    error = refused(scheme=scheme, **LOOKS_BACK)
    assert error.what.startswith("training option evaluation=previous sends each model with the one before it")
    assert error.remedy == "leave out the option, or use scheme fedfusion"


@pytest.mark.parametrize("scheme", ["fedgsp", "hcct", "ifca", "flsc", "fedcollab", "fedavg"])
def test_a_fusion_goes_with_other_groups_and_programs(scheme: str) -> None:
    assert choose(RunConfig(scheme=scheme, training="fedfusion")).training == "fedfusion"
    if scheme in ("fedgsp", "fedavg"):
        assert choose(RunConfig(scheme=scheme, training="fedfusion", merge="smoothed-mean")).merge == "smoothed-mean"


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"scheme": "fedavg"}, "--balance time needs program relay: in program parallel the members of a group train"),
        ({"scheme": "fedgsp", "program": "parallel"}, "--balance time needs program relay"),
        ({"scheme": "hcct", "program": "relay"}, "--balance time needs grouping icg, and grouping hcct chooses"),
        ({"scheme": "fedgsp", "grouping": "random"}, "--balance time needs grouping icg, and grouping random"),
        ({"scheme": "naive-gsp-icg"}, "--balance time needs groups that are formed in every round"),
        ({"scheme": "fedgsp", "grouping": "grpc://127.0.0.1:7"}, "--balance time is for groupings of FedGSP"),
    ],
)
def test_groups_are_dealt_by_time_only_where_that_can_make_rounds_shorter(changes: dict[str, Any], what: str) -> None:
    error = refused(balance="time", **changes)
    assert error.what.startswith(what)
    assert error.remedy.startswith("leave out --balance")


def test_alike_groups_of_unlike_clients_may_be_dealt_by_time() -> None:
    assert choose(RunConfig(balance="time")) == SCHEMES["fedgsp"]
    choose(RunConfig(balance="time", merge="none", grouping_option={"refine": "true"}))
