"""Every rule of a policy refuses by name what is beyond it, and lets pass what its own remedy allows."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import pytest

from fedgsp.errors import ConfigError
from fedgsp.messages import (
    Additions,
    Cancel,
    Describe,
    Discriminate,
    DiscriminatorSettings,
    Evaluate,
    HostedClient,
    Initialise,
    Order,
    OrderKey,
    OutgoingStep,
    Recall,
    Release,
    Reveal,
    SendUp,
    Source,
    SourceKind,
    Start,
    Train,
    TrainingSettings,
    Work,
)
from fedgsp.settings.fields import described
from fedgsp.settings.policy import UNLIMITED, WORK, Policy
from fedgsp.transfers.model_store import ModelStore
from fedgsp_node.order_error import OrderError
from fedgsp_node.policies.guard import Guard
from fedgsp_node.policies.policy import COUNTED, KINDS, RULES, Known, check_start, models_of, refusal, refused_run
from fedgsp_node.policies.policy_file import policy_of
from tests.support.holders import WEIGHTS

SETTINGS = TrainingSettings("sgd", 1, 5, 0.1, seed=1)
NETWORKS = DiscriminatorSettings(10, 1, 8, 0.01, 1)
START = Start("start", (Source(SourceKind.LOCAL, ""),))
TRAIN = Train(START, "end", SETTINGS)
KNOWN = Known(
    clients=2,
    samples=100,
    trainable=1_000_000,
    model_bytes=4_000_000,
    held_models=4,
    held_bytes=16_000_000,
    open_orders=3,
    orders_in_round=5,
    trainings_in_round=1,
    evaluations_in_round=1,
    trainings=9,
    evaluations=9,
    epochs=9,
    not_dialled=lambda address: f"{address} is far" if "far" in address else "",
)


def order(work: Work | None) -> Order:
    return Order(OrderKey(1, "some", 0, 0, 0, "run"), 0, work)


def trained(**changes: Any) -> Train:
    return dataclasses.replace(TRAIN, settings=dataclasses.replace(SETTINGS, **changes))


def adapted(steps: int, algorithm: str = "finetune") -> Evaluate:
    settings = dataclasses.replace(SETTINGS, algorithm=algorithm, options={"steps": str(steps)})
    return Evaluate(START, settings=settings, personalised=True)


def revealing(view: str) -> Train:
    return dataclasses.replace(TRAIN, reveal=Reveal(view))


def known(**changes: Any) -> Known:
    return dataclasses.replace(KNOWN, **changes)


def policy(**texts: str) -> Policy:
    values = {key: described(Policy)[key].parse(text) for key, text in texts.items()}
    return dataclasses.replace(Policy(), **values)


#: What a site allows that takes part in every scheme, as `--allow` takes it. Other keys have their defaults.
ALLOWED = {"work": "discriminate"}
GB = 1 << 30
#: Key -> what the default policy refuses by it: work, and what is known.
BEYOND: list[tuple[str, Work, Known]] = [
    ("work", Discriminate(None, "nets", (1,), NETWORKS), KNOWN),
    ("reveal", revealing("exact"), KNOWN),
    ("reveal", revealing("layer:2"), KNOWN),
    ("reveal", revealing("sketch:32768"), KNOWN),
    ("reveal", revealing("sketch:16384"), known(trainable=8 * 16384)),
    ("reveal", revealing("gram"), KNOWN),
    ("reveal", revealing(""), KNOWN),
    ("reveal", revealing("sketch:"), KNOWN),
    ("reveal", revealing("sketch:²"), KNOWN),
    ("least_samples", Describe(), known(samples=9)),
    ("least_samples", revealing("sketch:64"), known(samples=9)),
    ("least_samples", Discriminate(None, "nets", (1,), NETWORKS), known(samples=9)),
    ("least_samples", Discriminate(START, "", (1,), dataclasses.replace(NETWORKS, samples=99), judge=True), KNOWN),
    ("least_samples", Discriminate(START, "", (1,), dataclasses.replace(NETWORKS, samples=4), judge=True), KNOWN),
    ("least_samples", Evaluate(START, True), known(samples=9)),
    ("least_samples", Evaluate(START, compared_with="own", only_compare=True), known(samples=9)),
    ("least_samples", dataclasses.replace(TRAIN, measure_accuracy=True), known(samples=9)),
    ("most_epochs", trained(local_epochs=1001), KNOWN),
    ("most_epochs", trained(local_epochs=2**32), KNOWN),
    ("most_epochs", trained(algorithm="ditto", local_epochs=501), KNOWN),
    ("most_epochs", trained(algorithm="pfedme", options={"personal_steps": "1001"}), KNOWN),
    ("most_epochs", adapted(1001), known(samples=5)),
    ("most_epochs", adapted(20_001), KNOWN),  # in batches of 5
    ("most_epochs", adapted(1001, "per-fedavg"), known(samples=3)),
    ("most_epochs", Discriminate(None, "n", (1,), dataclasses.replace(NETWORKS, steps=12_501)), KNOWN),
    ("most_total_epochs", TRAIN, known(epochs=1_000_001)),
    ("most_total_epochs", Discriminate(None, "n", (1,), NETWORKS), known(epochs=1_000_001)),
    ("least_batch_size", trained(batch_size=1), KNOWN),
    ("least_batch_size", TRAIN, known(samples=1)),
    ("least_batch_size", Discriminate(None, "n", (1,), dataclasses.replace(NETWORKS, batch_size=1)), KNOWN),
    ("least_batch_size", Evaluate(START, settings=trained(batch_size=1).settings, personalised=True), KNOWN),
    ("most_learning_rate", trained(learning_rate=10.5), KNOWN),
    ("most_learning_rate", trained(learning_rate=12.34564), KNOWN),  # six digits are not enough
    ("most_open_orders", SendUp("end"), known(open_orders=129)),
    ("most_model_bytes", TRAIN, known(model_bytes=GB + 1)),
    ("most_held_bytes", TRAIN, known(held_bytes=4 * GB + 1)),
    ("most_held_models", Initialise("end", 1), known(held_models=65)),
    ("most_orders_per_round", Describe(), known(orders_in_round=20_001)),
    ("most_trainings_per_round", TRAIN, known(trainings_in_round=17)),
    ("most_trainings_per_round", adapted(1), known(trainings_in_round=17)),
    ("most_trainings", TRAIN, known(trainings=10_001)),
    ("most_trainings", adapted(1), known(trainings=10_001)),
    ("most_evaluations_per_round", Evaluate(START), known(evaluations_in_round=65)),
    ("most_evaluations_per_round", Evaluate(START, True), known(evaluations_in_round=65)),
    ("most_evaluations", Evaluate(START), known(evaluations=20_001)),
    ("most_evaluations", Evaluate(START, True), known(evaluations=20_001)),
]


@pytest.mark.parametrize(("key", "work", "there"), BEYOND)
def test_what_is_beyond_the_default_policy_is_refused_and_passes_when_its_remedy_is_followed(
    key: str, work: Work, there: Known
) -> None:
    before = {} if key == "work" else ALLOWED
    why = str(refusal(order(work), policy_of(None, before), there))
    assert f", and {key} of the policy of this node is " in why
    remedy = re.search(r"\(--allow (\w+)=(\S+?)( at least: later orders count too)?\)$", why)
    assert remedy, why
    assert remedy[1] == key
    assert bool(remedy[3]) == (key in COUNTED)
    assert refusal(order(work), policy_of(None, {**before, key: remedy[2]}), there) is None
    assert refusal(order(work), UNLIMITED, there) is None


@pytest.mark.parametrize("rate", [-0.5, float("nan"), float("inf"), -float("inf")])
def test_a_step_size_that_no_flag_can_allow_is_refused_without_a_flag(rate: float) -> None:
    why = str(refusal(order(trained(learning_rate=rate)), Policy(), KNOWN))
    assert "learning rate" in why
    assert "--allow" not in why


@pytest.mark.parametrize("work", [revealing("sketch:20000"), trained(algorithm="[sgd]"), trained(algorithm="a,b")])
def test_a_text_that_no_flag_can_allow_is_refused_without_a_flag(work: Train) -> None:
    why = str(refusal(order(work), policy(training="fedprox") if work.reveal is None else Policy(), KNOWN))
    assert why.endswith("(--policy)")


PASSING: list[tuple[Work, Known]] = [
    (TRAIN, known(samples=2)),
    (revealing("sketch:16384"), KNOWN),
    (revealing("sketch:8"), KNOWN),
    (Describe(), known(samples=10)),
    (Describe(), known(samples=None)),  # it fails later, by name
    (trained(local_epochs=1000, batch_size=2, learning_rate=10.0), KNOWN),
    (TRAIN, known(held_models=64, open_orders=128, held_bytes=4 * GB, model_bytes=GB, trainings_in_round=16)),
    (Describe(), known(trainings_in_round=17, trainings=10_001, epochs=10**9)),
    (adapted(20_000), KNOWN),
    (Discriminate(None, "n", (1,), NETWORKS), known(trainings_in_round=17, trainings=10_001)),
    (Discriminate(START, "", (1,), dataclasses.replace(NETWORKS, steps=10**6), judge=True), KNOWN),
    (dataclasses.replace(adapted(10**9), compared_with="own", only_compare=True), KNOWN),
    (Evaluate(START, settings=SETTINGS, personalised=True), known(trainings_in_round=17, trainings=10_001)),
    (Evaluate(START, settings=trained(batch_size=1, local_epochs=2**32).settings), known(samples=1)),
    *((work, known(held_models=10**9, open_orders=10**9)) for work in (Release(("x",)), Recall("", ()), Cancel())),
]


@pytest.mark.parametrize(("work", "there"), PASSING)
def test_what_is_within_the_default_policy_passes(work: Work, there: Known) -> None:
    assert refusal(order(work), policy_of(None, ALLOWED), there) is None
    assert (refusal(order(work), Policy(), there) is None) != isinstance(work, Discriminate)


OF_KIND: dict[str, Work] = {
    "train": TRAIN,
    "retain": dataclasses.replace(TRAIN, retain=True),
    "evaluate": Evaluate(START),
    "evaluate-training": Evaluate(START, True),
    "compare": Evaluate(START, compared_with="end", only_compare=True),
    "describe": Describe(),
    "discriminate": Discriminate(None, "nets", (1,), NETWORKS),
    "initialise": Initialise("first", 1),
}


@pytest.mark.parametrize("kind", WORK)
def test_a_kind_of_work_that_is_not_listed_is_refused(kind: str) -> None:
    others = policy(work=",".join(other for other in WORK if other != kind))
    why = str(refusal(order(OF_KIND[kind]), others, KNOWN))
    assert why.startswith(f"it asks for work of kind {kind}, and work of the policy")
    assert why.endswith(f"(--allow work={kind})")
    needed = ",".join(other for other, asks in KINDS.items() if asks(OF_KIND[kind]))
    assert refusal(order(OF_KIND[kind]), policy(work=needed), KNOWN) is None


def test_every_kind_and_every_key_has_a_rule() -> None:
    assert set(KINDS) == set(OF_KIND) == set(WORK)
    at_start = {"top_servers", "runs", "task_sha256"}
    elsewhere = {"hosts", "ports", "most_seconds", "most_managers"}
    assert set(RULES) | at_start | elsewhere == set(described(Policy))


def stepping(*steps: OutgoingStep) -> Order:
    return order(dataclasses.replace(TRAIN, outgoing=steps))


def test_a_training_without_a_required_step_is_refused() -> None:
    needs = policy(require="rounding", work=",".join(WORK))
    why = str(refusal(order(TRAIN), needs, KNOWN))
    assert "the trained model would leave without step rounding, and require of the policy" in why
    assert refusal(stepping(OutgoingStep("head"), OutgoingStep("rounding")), needs, KNOWN) is None
    assert "pass no outgoing steps" in str(refusal(order(OF_KIND["discriminate"]), needs, KNOWN))


def test_a_required_step_has_the_required_option_or_it_does_not_count() -> None:
    needs = policy(require="rounding.strength=2")
    for options in ({}, {"strength": "2"}):  # a step without that option
        assert "without step rounding.strength=2" in str(
            refusal(stepping(OutgoingStep("rounding", options)), needs, KNOWN)
        )


def test_steps_and_trainings_that_are_not_listed_are_refused() -> None:
    assert "outgoing step 'rounding'" in str(
        refusal(stepping(OutgoingStep("rounding")), policy(outgoing="dp-*"), KNOWN)
    )
    assert refusal(stepping(OutgoingStep("head")), policy(outgoing="dp-*"), KNOWN) is None
    for work in (TRAIN, Evaluate(START, settings=SETTINGS)):
        assert "asks for training 'sgd'" in str(refusal(order(work), policy(training="fedprox"), KNOWN))
        assert refusal(order(work), policy(training="fedprox,sg?"), KNOWN) is None


def test_layers_are_revealed_if_they_or_all_are_listed() -> None:
    for allowed, view, passes in (
        ("layer:2", "layer:2", True),
        ("layer:2", "layer:20", False),
        ("layer", "layer:20", True),
        ("layer", "exact", False),
        ("exact", "layer:20", True),
        ("exact", "sketch:131072", True),
        ("sketch:8", "sketch:16", False),
    ):
        assert (refusal(order(revealing(view)), policy(reveal=allowed), KNOWN) is None) == passes, (allowed, view)


def test_a_start_that_can_be_had_nowhere_is_refused_but_one_source_is_enough() -> None:
    far, near = Source(SourceKind.NODE, "n1", "far:1"), Source(SourceKind.MANAGER, "m0", "near:1")
    for sources, refused in (((far,), True), ((far, far), True), ((far, near), False), ((), False)):
        asked = dataclasses.replace(TRAIN, start=Start("start", sources))
        assert (str(refusal(order(asked), Policy(), KNOWN)) == "far:1 is far") == refused


def test_runs_top_servers_and_tasks_that_are_not_listed_are_refused() -> None:
    assert refused_run("r1", None, policy(runs="r1,s*")) is None
    assert "(--allow runs=t9)" in str(refused_run("t9", None, policy(runs="r1,s*")))
    assert "(--allow training=fedfusion)" in str(refused_run("r1", Additions("fedfusion"), policy(training="sgd")))
    ours = policy(top_servers="*.example.org:7000", task_sha256="ab" * 32)
    check_start(ours, "a.example.org:7000", b"\xab" * 32)
    with pytest.raises(ConfigError, match="--top-server is b:7000"):
        check_start(ours, "b:7000", b"\xab" * 32)
    for digest in (b"", b"\xac" * 32):
        with pytest.raises(ConfigError, match="task_sha256 of the policy lists others"):
            check_start(ours, "a.example.org:7000", digest)


def test_the_models_of_an_order_are_those_that_it_fetches_and_makes() -> None:
    assert set(models_of(revealing("exact"))) == {"start", "end", "end.update"}
    assert set(models_of(Discriminate(None, "", (1,), NETWORKS))) == set(models_of(SendUp("x"))) == set()


# --- what the guard counts


def guard(**texts: str) -> Guard:
    return Guard([HostedClient(0, 100, 10)], ModelStore(), policy(**texts))


def refused(where: Guard, work: Work, number: int, client: int = 0) -> str:
    try:
        with where.passing(Order(OrderKey(number, "x", 0, 0, 0, "run"), client, work)):
            return ""
    except OrderError as error:
        return str(error.failure)


def test_trainings_are_counted_by_round_and_in_all() -> None:
    g = guard(most_trainings_per_round="2", most_trainings="3")
    passed = [not refused(g, TRAIN, number) for number in (1, 1, 1, 2, 2, 3)]
    assert passed == [True, True, False, True, False, False]
    assert not refused(g, Describe(), 3)


def test_evaluations_that_train_count_as_trainings_and_others_do_not() -> None:
    g = guard(most_trainings_per_round="2")
    assert [not refused(g, work, 1) for work in (TRAIN, adapted(1), adapted(1), TRAIN)] == [True, True, False, False]
    assert not refused(g, Evaluate(START, settings=SETTINGS, personalised=True), 1)


@pytest.mark.parametrize(
    "work", [adapted(100), Discriminate(None, "n", (1,), dataclasses.replace(NETWORKS, steps=63))]
)
def test_epochs_are_counted_in_all_whatever_trains_and_in_whatever_round(work: Work) -> None:
    g = guard(
        most_total_epochs="32", work=",".join(WORK)
    )  # 100 batches of 5 and 63 batches of 8 are 5 and 6 epochs of 100 samples
    passed = [not refused(g, work, number) for number in range(8)]
    assert passed == [number < (6 if isinstance(work, Evaluate) else 5) for number in range(8)]


@pytest.mark.parametrize("options", [{"steps": "many"}, {"steps": "9" * 5000}, {"other": "1"}])
def test_options_that_no_training_has_pass_and_the_training_refuses_them_by_name(options: dict[str, str]) -> None:
    settings = dataclasses.replace(SETTINGS, algorithm="finetune", options=options)
    assert refusal(order(Evaluate(START, settings=settings, personalised=True)), Policy(), KNOWN) is None


def test_evaluations_are_counted_by_round_and_in_all_and_comparisons_are_none() -> None:
    g = guard(most_evaluations_per_round="2", most_evaluations="3")
    works = (Evaluate(START), Evaluate(START, True), Evaluate(START), Evaluate(START), Evaluate(START))
    passed = [not refused(g, work, number) for work, number in zip(works, (1, 1, 1, 2, 3), strict=True)]
    assert passed == [True, True, False, True, False]
    assert not refused(g, Evaluate(START, compared_with="own", only_compare=True), 3)
    assert not refused(g, TRAIN, 3)


def test_rounds_that_are_named_in_turn_do_not_begin_the_count_again() -> None:
    g = guard(most_trainings_per_round="1", most_trainings="50")
    admitted = sum(not refused(g, TRAIN, number) for _ in range(3) for number in range(100))
    assert admitted == 50


def test_models_that_are_still_to_come_count_as_held() -> None:
    g, works = guard(most_held_models="4"), [dataclasses.replace(TRAIN, produces=f"end {n}") for n in range(4)]
    with g.passing(order(works[0])), g.passing(order(works[1])), g.passing(order(works[2])):
        assert "5 models per client would be held" in refused(g, works[3], 1)
    assert not refused(g, works[3], 1)


def test_a_model_that_is_held_and_used_by_orders_in_work_counts_once() -> None:
    g = guard(most_held_models="3")
    for name in ("start", "end", "other"):
        g._store.put(name, WEIGHTS)
    with g.passing(order(TRAIN)), g.passing(order(Evaluate(START))):
        assert not refused(g, Evaluate(START), 1)
        assert "4 models per client would be held" in refused(g, Initialise("fresh", 1), 1)


def test_orders_in_work_are_counted_also_those_for_no_client() -> None:
    g = guard(most_open_orders="2")
    with g.passing(order(SendUp("a"))), g.passing(order(SendUp("b"))):
        assert "3 orders per client are in work" in refused(g, SendUp("c"), 1, client=7)
        assert not refused(g, Release(("a",)), 1)
    assert not refused(g, SendUp("c"), 1)


def test_networks_are_refused_if_they_are_too_large_alone_or_beside_other_models() -> None:
    g = guard(most_model_bytes="100", most_held_bytes="150")
    g.check_size(100)
    with pytest.raises(OrderError, match=r"networks of 101 bytes .*\(--allow most_model_bytes=101\)"):
        g.check_size(101)
    g._store.bytes = 60
    with pytest.raises(OrderError, match=r"most_held_bytes of the policy of this node is 150"):
        g.check_size(100)


@pytest.mark.parametrize("text", ["sgd\x1b[2J", "a\nb", "a, b", "\u202e", "x" * 10_000])
def test_what_an_order_says_is_shown_escaped_and_cut(text: str) -> None:
    for work in (revealing(text), revealing(f"layer:{text}"), trained(algorithm=text)):
        why = str(refusal(order(work), policy(training="sgd"), KNOWN))
        assert why.isprintable()
        assert len(why) < 500
    assert str(refused_run("run", Additions(text), policy(training="sgd"))).isprintable()
