"""Which steps a run may order, and what it says to nodes about them."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from fedgsp.errors import ConfigError
from fedgsp.messages import HostedClient, OptimizerSettings, TensorSpec
from fedgsp.settings.run import RunConfig
from tests.support.hellos import hello
from top_server.choosing import choose
from top_server.optimization import check_model, check_own_optimizer, optimizer_settings, told_horizon


def refused(**settings: Any) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        choose(RunConfig(**settings))
    return caught.value


def test_nodes_are_told_what_was_chosen() -> None:
    plain = RunConfig()
    assert optimizer_settings(plain, choose(plain)) == OptimizerSettings("auto", accumulate=1)
    config = RunConfig(
        optimizer="adamw",
        optimizer_option={"weight_decay": "0.1"},
        local_schedule="linear",
        local_schedule_option={"warmup": "3"},
        clip_norm=2.0,
        accumulate=4,
    )
    assert optimizer_settings(config, choose(config)) == OptimizerSettings(
        "adamw", {"weight_decay": "0.1"}, "linear", {"warmup": "3"}, 2.0, 4
    )
    warm = RunConfig(local_schedule_option={"warmup": "3"})
    assert optimizer_settings(warm, choose(warm)).schedule == "constant"


def test_the_schedule_gives_the_step_size_of_each_round() -> None:
    config = RunConfig(rounds=4, learning_rate=0.1, schedule="linear", schedule_option={"horizon": "4"})
    assert [config.learning_rate_in(number) for number in (0, 1, 2, 3, 4)] == pytest.approx(
        [0.1, 0.1, 0.075, 0.05, 0.025]
    )
    both = RunConfig(rounds=2, learning_rate=0.1, learning_rate_decay=0.5, schedule_option={"warmup": "1"})
    assert [both.learning_rate_in(number) for number in (1, 2)] == pytest.approx([0.05, 0.05])


@pytest.mark.parametrize(
    "scheme", ["fedgsp", "fedavg", "hcct", "fedcollab", "fedprox", "ditto", "fedmmd", "fedfusion"]
)
def test_any_optimiser_goes_with_schemes_without_a_formula_for_sgd(scheme: str) -> None:
    assert choose(RunConfig(scheme=scheme, optimizer="adamw", clip_norm=1.0, accumulate=2)).optimizer == "adamw"


@pytest.mark.parametrize(
    ("settings", "what", "remedy"),
    [
        (
            {"scheme": "fednova", "optimizer": "adam"},
            "aggregation fednova needs optimizer auto or sgd, and scheme fednova has adam",
            "leave out --optimizer",
        ),
        (
            {"scheme": "fedavg", "aggregation": "fednova", "optimizer": "rmsprop"},
            "aggregation fednova needs optimizer auto or sgd, and scheme fedavg has rmsprop",
            "leave out --optimizer",
        ),
        (
            {"scheme": "fednova", "optimizer": "sgd", "optimizer_option": {"weight_decay": "0.1"}},
            "weight decay is no gradient",
            "leave out --optimizer-option weight_decay",
        ),
        (
            {"scheme": "pfedme", "optimizer": "adam"},
            "training pfedme needs optimizer auto or sgd, and scheme pfedme has adam",
            "leave out --optimizer",
        ),
        (
            {"scheme": "per-fedavg", "batch_size": 8, "optimizer": "sgd", "optimizer_option": {"momentum": "0.9"}},
            "training per-fedavg is defined by plain SGD steps",
            "leave out --optimizer-option, or choose another --training",
        ),
        (
            {"scheme": "pfedme", "clip_norm": 1.0, "accumulate": 2},
            "training pfedme is defined by plain SGD steps",
            "leave out --clip-norm and --accumulate, or choose another --training",
        ),
        (
            {"optimizer_option": {"momentum": "0.9"}},
            "optimizer auto has no option 'momentum'",
            "give --optimizer too, such as sgd; it has no options by itself",
        ),
        (
            {"optimizer": "adam", "optimizer_option": {"momentum": "0.9"}},
            "optimizer adam has no option 'momentum'",
            "its options are beta1, beta2, eps, weight_decay, amsgrad",
        ),
        (
            {"optimizer": "sgd", "optimizer_state": "kept"},
            "--optimizer-state kept has no effect with SGD without momentum",
            "give --optimizer-option momentum=..., or another --optimizer",
        ),
        (
            {
                "scheme": "fednova",
                "optimizer": "sgd",
                "optimizer_option": {"momentum": "0.9"},
                "optimizer_state": "kept",
            },
            "kept momentum has those of earlier rounds",
            "leave out --optimizer-state",
        ),
        (
            {"optimizer": "rprop", "local_schedule": "linear"},
            "optimizer rprop finds its own step sizes",
            "leave out --schedule and --local-schedule, or choose another --optimizer",
        ),
        (
            {"optimizer_state": "relayed"},
            "--optimizer-state relayed needs to know which state travels",
            "name the optimiser, such as --optimizer adamw",
        ),
        (
            {"optimizer_state": "relayed", "optimizer": "adafactor"},
            "the state of optimizer adafactor cannot travel with the model",
            "give --optimizer-state kept or fresh",
        ),
        (
            {"optimizer_state": "relayed", "optimizer": "adam", "scheme": "ditto"},
            "training ditto has a second optimiser, for the personal model, whose state may not travel",
            "give --optimizer-state kept",
        ),
        (
            {"optimizer_state": "relayed", "optimizer": "adam", "update_norm_limit": 3.0},
            "--update-norm-limit does not measure the state that --optimizer-state relayed sends",
            "give --optimizer-state kept or fresh",
        ),
        (
            {"scheme": "pfedme", "optimizer_state": "kept"},
            "training pfedme is defined by plain SGD steps",
            "leave out --optimizer-state, or choose another --training",
        ),
        (
            {"schedule": "cosine"},
            "--schedule cosine needs a horizon",
            "give --schedule-option horizon=20",
        ),
        (
            {"schedule": "cosine", "schedule_option": {"horizon": "10"}},
            "--rounds is 20, and the horizon of --schedule cosine is 10 rounds",
            "give --schedule-option horizon=20, or fewer rounds",
        ),
        (
            {"schedule": "step", "schedule_option": {"gamma": "1"}},
            "schedule step has no option 'gamma'",
            "its options",
        ),
        ({"local_schedule_option": {"every": "1"}}, "schedule constant has no option 'every'", "its options"),
    ],
)
def test_what_does_not_go_together_is_told(settings: dict[str, Any], what: str, remedy: str) -> None:
    error = refused(**settings)
    assert what in error.what
    assert sorted(error.remedy.replace(",", "").split()) == sorted(
        remedy.replace(",", "").split()
    ) or error.remedy.startswith(remedy)


def test_fednova_takes_momentum() -> None:
    momentum = {"momentum": "0.9", "nesterov": "true"}
    assert choose(RunConfig(scheme="fednova", optimizer="sgd", optimizer_option=momentum)).optimizer == "sgd"


def check_own(own: bool, **settings: Any) -> None:
    config = RunConfig(**settings)
    check_own_optimizer(config, choose(config), own)


def test_kept_state_needs_an_optimiser_with_state() -> None:
    with pytest.raises(ConfigError, match="--optimizer-state kept has no effect: the task has no optimizer"):
        check_own(False, optimizer_state="kept")
    check_own(True, optimizer_state="kept")


def local(horizon: int, **settings: Any) -> RunConfig:
    schedule = {"local_schedule": "cosine", "local_schedule_option": {"horizon": str(horizon)}}
    return RunConfig(**{"batch_size": 5, "local_epochs": 3, **schedule, **settings})


def told(config: RunConfig, hosted: list[HostedClient]) -> list[str]:
    return list(told_horizon(config, choose(config), hosted))


def test_trainings_that_are_longer_than_the_local_schedule_are_told_before_the_first_round() -> None:
    hosted = [HostedClient(client, samples, 5) for client, samples in enumerate((9, 20, 33))]
    assert not told(RunConfig(), hosted)
    assert not told(local(18), hosted)  # with or without the 3 samples that are left over
    assert not told(local(9, accumulate=2), hosted)
    assert told(local(12), hosted) == [
        "1 of 3 clients will be skipped: their trainings have more steps than the horizon 12 of --local-schedule"
        " cosine; give --local-schedule-option horizon=21, which is enough"
    ]
    with pytest.raises(ConfigError, match="the training of every client has more steps than the horizon 2") as caught:
        told(local(2), hosted)
    assert caught.value.remedy == "give --local-schedule-option horizon=21, or no horizon"


@pytest.mark.parametrize("scheme", ["maxfl", "maxfl-hcct", "kmeans"])
def test_the_training_of_a_prior_model_counts_with_all_its_epochs(scheme: str) -> None:
    hosted = [HostedClient(client, samples, 5) for client, samples in enumerate((9, 20))]
    with pytest.raises(ConfigError) as caught:
        told(local(15, scheme=scheme, rounds=4), hosted[1:])
    assert caught.value.what == (
        "the training of every client alone, for 12 epochs, has more steps than the horizon 15 of --local-schedule"
        " cosine"
    )
    assert caught.value.remedy == (
        "give --local-schedule-option horizon=48, or no horizon, or fewer epochs (--profile-option prior_epochs)"
    )
    assert told(local(24, scheme=scheme, rounds=4), hosted) == [
        "1 of 2 clients will have no prior model: their trainings alone, for 12 epochs, have more steps than the"
        " horizon 24 of --local-schedule cosine; give --local-schedule-option horizon=48, which is enough, or fewer"
        " epochs (--profile-option prior_epochs)"
    ]
    assert not told(local(48, scheme=scheme, rounds=4), hosted)
    assert not told(local(12, scheme=scheme, rounds=4, profile_option={"prior_epochs": "2"}), hosted)
    assert not told(local(12, rounds=4), hosted)


def test_float16_is_computed_only_where_gradients_can_be_scaled_back() -> None:
    config = RunConfig(precision="float16")
    first = hello(tensors=(TensorSpec("w", "float32", (2,)), TensorSpec("mean", "float16", (2,), trainable=False)))
    check_model(config, choose(config), first)
    first = dataclasses.replace(first, tensors=(*first.tensors, TensorSpec("half", "float16", (2,))))
    with pytest.raises(ConfigError, match=r"--precision float16 scales the loss.* parameter 'half' is in float16"):
        check_model(config, choose(config), first)
    plain = RunConfig()
    check_model(plain, choose(plain), first)
    with pytest.raises(ConfigError, match="the task has an optimiser of its own"):
        check_model(RunConfig(scheme="pfedme"), choose(RunConfig(scheme="pfedme")), hello(own_optimizer=True))


@pytest.mark.parametrize("scheme", ["fednova", "pfedme", "per-fedavg"])
def test_an_optimiser_of_the_task_is_refused_where_a_formula_needs_sgd(scheme: str) -> None:
    with pytest.raises(ConfigError, match="the task has an optimiser of its own") as caught:
        check_own(True, scheme=scheme)
    assert caught.value.remedy == "give --optimizer sgd"
    check_own(True, scheme=scheme, optimizer="sgd")
    check_own(False, scheme=scheme)
    check_own(True, scheme="fedgsp")
