"""Compares what a run will order with the policy of a node, before the node joins."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice

from fedgsp.messages import Describe, Discriminate, Evaluate, HostedClient, Order, TensorSpec, Work, WouldTake
from fedgsp.settings.policy import UNLIMITED, Policy
from fedgsp.tensors.updates import trainable_size
from fedgsp.tensors.weights import total_bytes
from fedgsp_node.check.facts import Fact, Facts, Unchecked
from fedgsp_node.check.finding import Finding, bad, good
from fedgsp_node.policies.policy import KINDS, MOST_QUOTED, RULES, Beyond, Known, told

#: Kind of work -> an order of it, as far as the rules of a policy look at it.
_WORK: Mapping[str, Work] = {
    "describe": Describe(),
    "evaluate": Evaluate(None),
    "evaluate-training": Evaluate(None, training_part=True),
    "compare": Evaluate(None, compared_with="a model", only_compare=True),
    "discriminate": Discriminate(None, "", (), None),
}
#: Most kinds of work of which the line says that the policy refuses them.
MOST_TOLD = 8


def refused_orders(
    taken: WouldTake,
    policy: Policy,
    clients: Iterable[HostedClient],
    tensors: tuple[TensorSpec, ...],
    drop_last: bool = False,
) -> Fact[tuple[str, ...]]:
    """Why the policy would refuse orders of the run, as far as the top server says what it will order."""
    if not taken.trainings:
        return Unchecked("the top server does not say what the run orders")
    if policy == UNLIMITED:
        return ()
    hosted = sorted(clients, key=lambda one: one.train_samples)
    # What holds for the client with the fewest samples holds for all, but for what depends on the last batch.
    known = Known(
        clients=max(1, len(hosted)),
        samples=hosted[0].train_samples if hosted else None,
        trainable=trainable_size(tensors),
        model_bytes=total_bytes(tensors),
        held_models=1,
        held_bytes=total_bytes(tensors),
        open_orders=1,
        orders_in_round=1,
        trainings_in_round=1,
        evaluations_in_round=1,
        trainings=1,
        evaluations=1,
        epochs=1,
        drop_last=drop_last,
        not_dialled=lambda _: "",
    )
    works = [*taken.trainings, *(_WORK[kind] for kind in taken.work if kind in _WORK)]
    client = hosted[0].client if hosted else 0
    reasons = dict.fromkeys(
        told(key, policy, beyond)
        for work in works
        for key, rule in RULES.items()
        for beyond in rule(Order(None, client, work), policy, known)
    )
    others = islice(_of_last_batches(works, policy, known, {one.train_samples for one in hosted[1:]}), 1)
    return tuple(dict.fromkeys((*reasons, *others, *_kinds(taken.work, policy))))


def _of_last_batches(works: Iterable[Work], policy: Policy, known: Known, sizes: Iterable[int]) -> Iterator[str]:
    key = "least_batch_size"
    for work in works:
        for samples in sorted(sizes):
            here = dataclasses.replace(known, samples=samples)
            yield from (told(key, policy, beyond) for beyond in RULES[key](Order(None, 0, work), policy, here))


def _kinds(work: tuple[str, ...], policy: Policy) -> Iterator[str]:
    for kind in work[:MOST_TOLD]:
        if kind not in policy.work:
            shown = kind if kind in KINDS else f"{kind[:MOST_QUOTED]!r}, which this version of fedgsp does not know"
            yield told("work", policy, Beyond(f"it asks for work of kind {shown}", kind))


def judge_orders(reasons: tuple[str, ...], facts: Facts) -> Finding:
    """What the policy would refuse: the node would join, and would be skipped in every round."""
    if not reasons:
        return good("the policy of this node lets through what the run orders, as far as the top server knows it now")
    words = f"the node would join and refuse what this run orders: {'; '.join(reasons)}"
    return bad(words, "let the owner of the data decide whether to allow it; docs/policy.md says what it means")
