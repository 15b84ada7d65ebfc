"""Which nodes may not join a run, and what each is told to do about it."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import pytest

from fedgsp.messages import (
    PROTOCOL,
    Additions,
    Constant,
    Failure,
    FailureCode,
    Hello,
    HostedClient,
    RelayMode,
    TensorSpec,
)
from fedgsp.options import shortened
from fedgsp.tensors.additions import added_tensors
from tests.support.hellos import hello
from tests.support.weights import TENSORS
from top_server.nodes import admission
from top_server.nodes.admission import Known, refusal

FIRST = hello(task_options={"seed": "0", "alpha": "1e-1"})


def known(*nodes: Hello, **changes: Any) -> Known:
    """What a run knows that these nodes have joined."""
    hosts = {hosted.client: node.node for node in nodes for hosted in node.clients}
    standard = nodes[0] if nodes else None
    names = {node.node for node in nodes}
    run = Known("digits", {"partition": "shards"}, RelayMode.AUTO, names, len(hosts), hosts.get, standard)
    constants = {one.tensor.name: one.digest for one in standard.constants if one.tensor} if standard else None
    return dataclasses.replace(run, **{"constants": constants, **changes})


def told(node: Hello, run: Known) -> Failure | None:
    """What a node is told that may not join."""
    refused = refusal(node, run)
    return refused.failure if refused else None


SECOND = ("n1", (2, 3))
REFUSED: dict[str, tuple[Hello, FailureCode, str]] = {
    "an older protocol": (hello(*SECOND, protocol=0), FailureCode.WRONG_PROTOCOL, "install the same version"),
    "a newer protocol": (
        hello(*SECOND, protocol=PROTOCOL + 1),
        FailureCode.WRONG_PROTOCOL,
        "install the same version",
    ),
    "other features": (
        hello(*SECOND, features=TensorSpec("5", "float32", (64,))),
        FailureCode.WRONG_SHAPES,
        "its task names other features than the run has: give all nodes the same task options",
    ),
    "an optimiser of its own": (
        hello(*SECOND, own_optimizer=True),
        FailureCode.WRONG_TASK,
        "its task has an optimizer(), and that of the run has none: use the same version of the task",
    ),
    "another score": (
        hello(*SECOND, score="-mae"),
        FailureCode.WRONG_TASK,
        "its task has score '-mae', and that of the run another: use the same version of the task",
    ),
    "a metric that is combined in another way": (
        hello(*SECOND, combine={"f1": "ratio"}),
        FailureCode.WRONG_TASK,
        "its task combines metric 'f1' by 'ratio', and that of the run otherwise",
    ),
    "a metric that is combined in an unknown way": (
        hello(*SECOND, combine={"f1": "median"}),
        FailureCode.WRONG_PROTOCOL,
        "combines a metric in a way that is none of samples, clients, root-mean-square, ratio, sum",
    ),
    "a metric with a name that cannot be shown": (
        hello(*SECOND, combine={"f1\x1b": "ratio"}),
        FailureCode.WRONG_PROTOCOL,
        "the name of a metric has to be",
    ),
    "a score that cannot be shown": (
        hello(*SECOND, score="f1\n"),
        FailureCode.WRONG_PROTOCOL,
        "the score of its task has to be",
    ),
    "a score of nothing": (hello(*SECOND, score="-"), FailureCode.WRONG_PROTOCOL, "the score of its task has to be"),
    "no accuracy, where the run has one": (
        hello(*SECOND, lacks=("accuracy",)),
        FailureCode.WRONG_TASK,
        "its task has no accuracy, and that of the run has one: use the same version of the task",
    ),
    "a lack of something unknown": (
        hello(*SECOND, lacks=("patience",)),
        FailureCode.WRONG_PROTOCOL,
        "what its task lacks has to be among a model that returns one tensor, accuracy, class counts, class labels",
    ),
    "a constant without a digest": (
        hello(*SECOND, constants=(Constant(TensorSpec("c", "float32", (2,))),)),
        FailureCode.WRONG_PROTOCOL,
        "a digest of a constant is missing",
    ),
    "a tensor that stays, where that of the run travels": (
        hello(*SECOND, constants=(Constant(TensorSpec("c", "float32", (2,)), bytes(32)),)),
        FailureCode.WRONG_SHAPES,
        "its tensor 'c' does not travel, and that of the run travels",
    ),
    "a constant with a strange name": (
        hello(*SECOND, constants=(Constant(TensorSpec("c\n", "float32", (2,)), bytes(32)),)),
        FailureCode.WRONG_PROTOCOL,
        "the name of a tensor has to be",
    ),
    "half a digest of its task": (
        hello(*SECOND, task_digest=bytes(16)),
        FailureCode.WRONG_PROTOCOL,
        "has 16 bytes, not 32: install the same version",
    ),
    "no client": (hello("n1", ()), FailureCode.NO_CLIENTS, "give it --clients"),
    "the name of another": (hello("n0", (2,)), FailureCode.NAME_TAKEN, "another --name"),
    "another task": (hello(*SECOND, task="mnist"), FailureCode.WRONG_TASK, "start it with the --task of the run"),
    "a client of another": (
        hello("n1", (2, 1)),
        FailureCode.CLIENT_TAKEN,
        "hosted by another node: choose other --clients",
    ),
    "a client twice": (hello("n1", (2, 2)), FailureCode.CLIENT_TAKEN, "names client 2 twice: choose other --clients"),
    "other classes": (
        hello(*SECOND, num_classes=9),
        FailureCode.WRONG_TASK,
        "9 classes, and the run has another number: give all",
    ),
    "another model": (
        hello(*SECOND, tensors=(TensorSpec("w", "float32", (3, 2)), *TENSORS[1:])),
        FailureCode.WRONG_SHAPES,
        "give all nodes the same task options",
    ),
    "another option than the first node": (
        hello(*SECOND, task_options={"seed": "1", "alpha": "0.1"}),
        FailureCode.WRONG_TASK,
        "its task has seed=1, and the run has another value: give all the same --task-option, or name seed in",
    ),
    "another option than the run": (
        hello(*SECOND, task_options={"partition": "iid"}),
        FailureCode.WRONG_TASK,
        "its task has partition=iid, and the run has another value: give all",
    ),
    "nothing to train on": (
        dataclasses.replace(hello("n1"), clients=(HostedClient(2, 9, 5), HostedClient(3, 0, 5))),
        FailureCode.WRONG_TASK,
        "client 3 has no training samples: leave it out of --clients",
    ),
    "no model": (hello(*SECOND, tensors=()), FailureCode.WRONG_SHAPES, "its model has other tensors than the run's"),
    "no port": (hello(*SECOND, peer_address="host"), FailureCode.CANNOT_BE_DIALLED, "correct its --advertise"),
    "port 0": (hello(*SECOND, peer_address="host:0"), FailureCode.CANNOT_BE_DIALLED, "correct its --advertise"),
    "any host": (hello(*SECOND, peer_address="[::]:80"), FailureCode.CANNOT_BE_DIALLED, "correct its --advertise"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_node_is_refused_that_has(name: str) -> None:
    said, code, remedy = REFUSED[name]
    failure = told(said, known(FIRST))
    assert failure is not None
    assert failure.code is code
    assert remedy in failure.detail


def test_a_node_that_is_like_the_first_one_may_join() -> None:
    assert refusal(FIRST, known()) is None
    assert refusal(hello(*SECOND, task_options=FIRST.task_options), known(FIRST)) is None


def test_a_node_that_is_checked_need_not_tell_how_many_samples_it_has() -> None:
    blank = dataclasses.replace(hello(*SECOND), clients=(HostedClient(2, 0, 0), HostedClient(3, 0, 0)))
    assert refusal(blank, known(FIRST), made=False) is None
    assert told(blank, known(FIRST)) is not None


def test_options_are_compared_by_value_and_where_both_have_them() -> None:
    first = hello(task_options={"alpha": "0.10", "validation": "True"})
    run = known(first, task_options={"data": "/srv/a", "validation": "yes"})
    for options in ({"alpha": "1e-1", "validation": "True", "seed": "4"}, {"validation": "yes"}, {}):
        assert refusal(hello(*SECOND, task_options=options), run) is None


@pytest.mark.parametrize("value", ["\t", "a\tb", "a\\tb", " ", "", "\x1b[2J" * 60, "é" * 300])
def test_an_option_with_any_characters_is_the_same_on_the_node_and_in_the_run(value: str) -> None:
    """A node sends it without control characters."""
    sent = shortened(value)
    assert shortened(sent) == sent
    assert refusal(hello(task_options={"separator": sent}), known(task_options={"separator": value})) is None
    assert refusal(hello(task_options={"separator": sent}), known(task_options={"separator": "a\nb"})) is not None


@pytest.mark.parametrize(
    "tensor",
    [
        TensorSpec("w", "object", (1,)),
        TensorSpec("w", "float32", (2**62, 2**62)),
        TensorSpec("w", "float32", (1,) * 65),
    ],
)
def test_the_first_node_may_not_bring_a_model_that_nobody_could_hold(tensor: TensorSpec) -> None:
    failure = told(hello(tensors=(tensor,)), known())
    assert failure is not None
    assert failure.code is FailureCode.WRONG_SHAPES
    assert "change the model of its task" in failure.detail


@pytest.mark.parametrize(
    ("name", "dtype", "shape"),
    [
        ("f", "float32", ()),
        ("f", "float32", (1, 2)),
        ("f", "float32", (0,)),
        ("f", "float32", (2**62,)),
        ("f", "float32", (2**31,)),  # the weights that fuse such features would have 2^63 numbers
        ("f", "object", (4,)),
        ("\x1b[2Jf", "float32", (4,)),
        ("", "float32", (4,)),
        ("f" * 256, "float32", (4,)),
    ],
)
def test_the_first_node_may_not_bring_features_that_no_model_can_have(
    name: str, dtype: str, shape: tuple[int, ...]
) -> None:
    fused = functools.partial(added_tensors, Additions("fedfusion", {"operator": "conv"}))
    failure = told(hello(features=TensorSpec(name, dtype, shape)), known(adds=fused))
    assert failure is not None
    assert failure.code in (FailureCode.WRONG_SHAPES, FailureCode.WRONG_PROTOCOL)
    assert failure.detail.isprintable()
    assert told(hello(features=TensorSpec("f", "float32", (4,))), known(adds=fused)) is None


def test_a_node_that_nobody_can_dial_is_refused_only_where_peers_must() -> None:
    failure = told(hello(peer_address=""), known(relay=RelayMode.DIRECT))
    assert failure is not None
    assert failure.code is FailureCode.CANNOT_BE_DIALLED
    assert "--peer-listen" in failure.detail
    for relay in (RelayMode.AUTO, RelayMode.MANAGER):
        assert refusal(hello(peer_address=""), known(relay=relay)) is None


@pytest.mark.parametrize(
    ("limit", "most", "too_many", "fits", "reason"),
    [
        ("MOST_NODES", 1, (2,), None, "a run cannot have more than 1 nodes"),
        ("MOST_CLIENTS_OF_NODE", 2, (2, 3, 4), (2, 3), "it hosts 3 clients"),
        ("MOST_CLIENTS", 4, (2, 3, 4), (2, 3), "would have more than 4 clients"),
    ],
)
def test_no_more_are_admitted_than_a_run_can_have(
    monkeypatch: pytest.MonkeyPatch,
    limit: str,
    most: int,
    too_many: tuple[int, ...],
    fits: tuple[int, ...] | None,
    reason: str,
) -> None:
    monkeypatch.setattr(admission, limit, most)
    failure = told(hello("n1", too_many), known(hello()))
    assert failure is not None
    assert failure.code is FailureCode.TOO_MANY
    assert reason in failure.detail
    assert refusal(hello("n1", fits or too_many), known(hello()) if fits else known()) is None


def test_after_the_end_of_a_run_that_is_the_reason_whatever_else_is_wrong() -> None:
    failure = told(hello("n1", (), protocol=0), known(FIRST, over=True))
    assert failure == Failure(FailureCode.RUN_OVER, "the run is over: join the next one")


BODY, NORM = (TensorSpec(name, "float32", (2,), trainable=False) for name in ("body", "norm"))


def test_constants_are_compared_by_name_and_both_nodes_are_recorded() -> None:
    first = hello(constants=(Constant(BODY, bytes(32)), Constant(NORM, bytes(32))))
    assert refusal(dataclasses.replace(hello(*SECOND), constants=first.constants), known(first)) is None
    other = hello(*SECOND, constants=(Constant(BODY, bytes(32)), Constant(NORM, b"1" * 32)))
    refused = refusal(other, known(first))
    assert refused is not None
    assert "its tensor 'norm', which does not travel, has other values" in refused.failure.detail
    assert "n0" not in refused.failure.detail  # a stranger learns nothing of the others
    assert refused.known == "than that of node 'n0'"
    lacks = refusal(hello(*SECOND, constants=(Constant(BODY, bytes(32)),)), known(first))
    assert lacks is not None
    assert "its tensor 'norm' travels, and that of the run does not travel" in lacks.failure.detail


def test_the_constants_of_a_resumed_run_are_those_that_it_had() -> None:
    run = known(constants={"body": bytes(32)})
    assert refusal(hello(constants=(Constant(BODY, bytes(32)),)), run) is None
    refused = refusal(hello(constants=(Constant(BODY, b"1" * 32),)), run)
    assert refused is not None
    assert refused.known == "than that of the run before it was resumed"


def test_a_tensor_travels_or_does_not() -> None:
    both = hello(constants=(Constant(TENSORS[0], bytes(32)),))
    found = refusal(both, known())
    assert found is not None
    assert f"its tensor {TENSORS[0].name!r} both travels and does not" in found.failure.detail


def named(node: str, **names: str) -> Hello:
    """A node whose clients have these names: named("n1", c3="Ghent")."""
    hosted = tuple(HostedClient(int(client[1:]), 5, 5, name) for client, name in names.items())
    return dataclasses.replace(hello(node), clients=hosted)


@pytest.mark.parametrize("name", ["Ghent\x1b[2J", "x" * 61, "3", " Ghent"])
def test_a_client_needs_a_name_that_people_can_read(name: str) -> None:
    found = told(named("n1", c2=name), known(FIRST))
    assert found is not None
    assert found.code is FailureCode.WRONG_PROTOCOL
    assert found.detail.startswith("the name of a client has to be 1 to 60 characters that can be shown")


def test_a_name_belongs_to_one_client() -> None:
    run = known(FIRST, named={"Ghent": 1}.get)
    refused = refusal(named("n1", c2="Ghent"), run)
    assert refused is not None
    assert refused.failure.detail == (
        "the name of its client 2 is that of another client: give it another client_names"
    )
    assert refused.known == "client 1 is called 'Ghent'"
    assert told(named("n1", c2="Lyon", c3="Lyon"), run) is not None
    assert told(named("n1", c2="Lyon", c3=""), run) is None
    assert told(named("n1", c4="", c5=""), run) is None
