"""Whether the policy of a node lets an order in: one pure function, and a table with a rule for each key."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeGuard

from fedgsp.errors import ConfigError
from fedgsp.messages import (
    Additions,
    Cancel,
    Describe,
    Discriminate,
    DiscriminatorSettings,
    Evaluate,
    Initialise,
    Order,
    Recall,
    Release,
    Start,
    Train,
    TrainingSettings,
    Work,
)
from fedgsp.optimizers import AUTO, FRESH, RELAYED
from fedgsp.outgoing import HEAD
from fedgsp.settings.fields import OptionError, described
from fedgsp.settings.policy import UNLIMITED, Entries, Policy, sketch_bytes, written
from fedgsp.tensors.updates import update_of
from fedgsp.words import counted
from fedgsp_node.policies.epochs import epochs, is_training
from fedgsp_node.policies.required import STATE_LEAVES, lacking
from fedgsp_node.policies.short_steps import least_step
from fedgsp_node.policies.step_sizes import step_sizes

#: Most characters of an order's own text in a reason.
MOST_QUOTED = 100
#: Keys that limit what many orders need together. The first order beyond a limit does not tell how much that will be.
COUNTED = (
    "most_evaluations",
    "most_evaluations_per_round",
    "most_held_bytes",
    "most_held_models",
    "most_managers",
    "most_open_orders",
    "most_orders_per_round",
    "most_total_epochs",
    "most_trainings",
    "most_trainings_per_round",
)
#: Orders that only end work or free memory. They always pass.
HARMLESS = (Release, Recall, Cancel)


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What a node knows when an order comes. The order itself counts already."""

    #: Number of clients that the node hosts.
    clients: int
    #: Training samples of the client of the order; None if the node does not host it.
    samples: int | None
    #: Number of floats in an update of the model, and bytes of the model.
    trainable: int
    model_bytes: int
    #: Models that the node holds, or that orders in work fetch and make.
    held_models: int
    held_bytes: int
    open_orders: int
    #: Of the client of the order: its orders, trainings and evaluations of the order's round, and of all rounds.
    orders_in_round: int
    trainings_in_round: int
    evaluations_in_round: int
    trainings: int
    evaluations: int
    epochs: int
    #: Whether the task leaves out a short last batch.
    drop_last: bool = False
    #: Why an address may not be dialled; empty if it may. Raises ConfigError for what is no address.
    not_dialled: Callable[[str], str]


class Beyond(NamedTuple):
    """What an order wants that is beyond a policy, and the value of the key that would allow it."""

    what: str
    needed: str


@dataclass(frozen=True, slots=True)
class Refused:
    """Why a policy refuses an order, and the key that says so."""

    key: str
    why: str

    def __str__(self) -> str:
        return self.why


def refusal(order: Order, policy: Policy, known: Known) -> Refused | None:
    """Why the policy of a node refuses an order; None if the order passes."""
    if isinstance(order.work, HARMLESS) or policy == UNLIMITED:
        return None
    for key, rule in RULES.items():
        for beyond in rule(order, policy, known):
            return Refused(key, told(key, policy, beyond))
    start = start_of(order.work)
    reasons = [_not_dialled(source.address, known) for source in start.sources] if start is not None else []
    return Refused("hosts", reasons[-1]) if reasons and all(reasons) else None  # one source is enough


def told(key: str, policy: Policy, beyond: Beyond) -> str:
    """The reason of a refusal: what was wanted, what the policy says, and how the node's owner can allow it."""
    has, flag = written(policy)[key] or "nothing", f"--allow {key}={beyond.needed}"
    if key in COUNTED:
        flag += " at least: later orders count too"
    how = flag if _is_value(key, beyond.needed) else "--policy"
    return f"{beyond.what}, and {key} of the policy of this node is {has}: its owner can allow it ({how})"


def _is_value(key: str, needed: str) -> bool:
    """Whether `--allow` takes this value of a key, and then allows it: `[a]` would only match `a`."""
    try:
        described(Policy)[key].parse(needed)
    except OptionError:
        return False
    return Entries.fits(needed) and len(needed) <= MOST_QUOTED and Entries((needed,)).covers(needed)


def refused_run(run_id: str, additions: Additions | None, policy: Policy) -> str | None:
    """Why the policy refuses to join a run that adds this to the model of the task."""
    if not policy.runs.covers(run_id):
        return told("runs", policy, Beyond(f"the run is {run_id}", run_id))
    if additions is None:
        return None
    training, optimizer = additions.training, additions.optimizer
    if training and not policy.training.covers(training):
        return told("training", policy, Beyond(f"the run trains by {training[:MOST_QUOTED]!r}", training))
    if optimizer and not policy.optimizer.covers(optimizer):
        return told("optimizer", policy, Beyond(f"the run steps by {optimizer[:MOST_QUOTED]!r}", optimizer))
    if optimizer and not policy.optimizer_state.covers(RELAYED):
        return told("optimizer_state", policy, Beyond("the state of the optimiser would travel", RELAYED))
    if optimizer and policy.require:
        return told("require", policy, Beyond(STATE_LEAVES, ""))
    return None


def check_start(policy: Policy, top_server: str, task_digest: bytes) -> None:
    """Raises ConfigError if the policy accepts neither the address of the top server nor the source of the task."""
    ConfigError.require(
        policy.top_servers.covers(top_server),
        f"--top-server is {top_server}",
        f"the policy allows {', '.join(policy.top_servers)}",
    )
    ConfigError.require(
        not policy.task_sha256 or task_digest.hex() in policy.task_sha256,
        f"the source file of the task has SHA-256 {task_digest.hex() or '(no source file)'}",
        "task_sha256 of the policy lists others: restore the file, or correct the policy",
    )


def start_of(work: Work | None) -> Start | None:
    """The start that work names."""
    return work.start if isinstance(work, Train | Evaluate | Discriminate) else None


def models_of(work: Work | None) -> Iterator[str]:
    """The ids of the models that work fetches or makes."""
    start = start_of(work)
    if start is not None:
        yield start.model_id
    if isinstance(work, Train | Discriminate | Initialise) and work.produces:
        yield work.produces
        if isinstance(work, Train) and work.reveal is not None:
            yield update_of(work.produces)


def is_evaluation(work: Work | None) -> TypeGuard[Evaluate]:
    """Whether the work tells what a model gets right on data of the client."""
    return isinstance(work, Evaluate) and not work.only_compare


#: Kind of work, as `Policy.work` lists it -> whether an order asks for it. An order may ask for several.
KINDS: Mapping[str, Callable[[Work | None], bool]] = {
    "train": lambda work: isinstance(work, Train),
    "retain": lambda work: isinstance(work, Train) and work.retain,
    "evaluate": lambda work: is_evaluation(work) and not work.training_part,
    "evaluate-training": lambda work: (
        (isinstance(work, Train) and work.measure_accuracy) or (is_evaluation(work) and work.training_part)
    ),
    "compare": lambda work: isinstance(work, Evaluate) and bool(work.compared_with),
    "describe": lambda work: isinstance(work, Describe),
    "discriminate": lambda work: isinstance(work, Discriminate),
    "initialise": lambda work: isinstance(work, Initialise),
}
#: Kinds of work that tell something about the training data of a client, beside a model.
TELLING = ("describe", "discriminate", "evaluate-training", "compare")


def _work(order: Order, policy: Policy, _: Known) -> Iterator[Beyond]:
    for kind, asks in KINDS.items():
        if asks(order.work) and kind not in policy.work:
            yield Beyond(f"it asks for work of kind {kind}", kind)


def _reveal(order: Order, policy: Policy, known: Known) -> Iterator[Beyond]:
    if not isinstance(order.work, Train) or order.work.reveal is None:
        return
    view, allowed = order.work.reveal.view, policy.reveal
    kind, _, argument = view.partition(":")
    # A sketch that has no fewer signs than the update has numbers tells as much as the update.
    partial = kind == "layer" or (kind == "sketch" and 8 * sketch_bytes(argument) < known.trainable)
    if "exact" not in allowed and not (partial and allowed.covers(view)):
        yield Beyond(
            f"it asks a client to reveal the view {view[:MOST_QUOTED]!r} of its update", view if partial else "exact"
        )


def _require(order: Order, policy: Policy, _: Known) -> Iterator[Beyond]:
    if isinstance(order.work, Discriminate) and policy.require:
        yield Beyond("networks that tell clients apart pass no outgoing steps", "")
    if isinstance(order.work, Train):
        for what in lacking(order.work, policy.require):
            yield Beyond(what, "")


def _outgoing(order: Order, policy: Policy, _: Known) -> Iterator[Beyond]:
    for step in order.work.outgoing if isinstance(order.work, Train) else ():
        if step.name != HEAD and not policy.outgoing.covers(step.name):
            yield Beyond(f"it asks for outgoing step {step.name[:MOST_QUOTED]!r}", step.name)


def _training(order: Order, policy: Policy, _: Known) -> Iterator[Beyond]:
    if isinstance(order.work, Train | Evaluate) and order.work.settings is not None:
        algorithm = order.work.settings.algorithm
        if not policy.training.covers(algorithm):
            yield Beyond(f"it asks for training {algorithm[:MOST_QUOTED]!r}", algorithm)


def _optimizer(order: Order, policy: Policy, _: Known) -> Iterator[Beyond]:
    if isinstance(order.work, Train | Evaluate) and order.work.settings is not None:
        optimizer = order.work.settings.optimizer
        name = optimizer.name if optimizer is not None else AUTO
        if not policy.optimizer.covers(name):
            yield Beyond(f"it asks for optimiser {name[:MOST_QUOTED]!r}", name)


def _optimizer_state(order: Order, policy: Policy, _: Known) -> Iterator[Beyond]:
    optimizer = order.work.settings.optimizer if isinstance(order.work, Train) and order.work.settings else None
    state = (optimizer.state if optimizer is not None else "") or FRESH
    if isinstance(order.work, Train) and not policy.optimizer_state.covers(state):
        yield Beyond(f"it asks for optimiser state {state[:MOST_QUOTED]!r}", state)


def _least_samples(order: Order, policy: Policy, known: Known) -> Iterator[Beyond]:
    telling = any(KINDS[kind](order.work) for kind in TELLING)
    revealing = isinstance(order.work, Train) and order.work.reveal is not None
    if not (telling or revealing) or known.samples is None:
        return
    if known.samples < policy.least_samples:
        yield Beyond(f"client {order.client} has {known.samples} training samples to tell about", f"{known.samples}")
    if isinstance(order.work, Discriminate) and order.work.settings is not None:
        # Discriminators are trained on some samples and judged on the others. A judgement on a few tells about each.
        few = min(order.work.settings.samples, known.samples - order.work.settings.samples)
        if 0 < 2 * few < policy.least_samples:  # an order without samples on one side fails later, by name
            yield Beyond(f"it judges or trains discriminators on {few} samples of client {order.client}", f"{few}")


def _least_batch_size(order: Order, policy: Policy, known: Known) -> Iterator[Beyond]:
    least = least_step(order, known.samples, known.drop_last)
    if least is None or least.samples >= policy.least_batch_size:
        return
    if least.short:
        few = f"a step on {counted(least.samples, 'sample')}, the last of an epoch"
        what = f"its settings let {few}, stand alone (drop_last = True in the task leaves it out)"
    else:
        what = f"it asks for batches of {least.samples}"
    yield Beyond(what, str(least.samples))


class Amount(NamedTuple):
    """A number that an order asks for, and its noun with a place for it."""

    of: Callable[[Order, Known], float | None]
    words: str


def _settings(order: Order) -> TrainingSettings | DiscriminatorSettings | None:
    """The settings of work that trains."""
    work = order.work
    if isinstance(work, Train | Discriminate) or (isinstance(work, Evaluate) and work.personalised):
        return work.settings
    return None


def _rate(order: Order, extreme: Callable[[tuple[float, ...]], float]) -> float | None:
    """The smallest or the largest of all step sizes; NaN if one is NaN, which is within no limit."""
    settings = _settings(order)
    sizes = step_sizes(settings) if settings is not None else ()
    return (math.nan if any(map(math.isnan, sizes)) else extreme(sizes)) if sizes else None


#: Key of the policy -> what an order asks for that the key limits; None if the order asks for no such thing.
AMOUNTS: Mapping[str, Amount] = {
    "most_epochs": Amount(
        lambda order, known: epochs(order.work, known.samples) or None, "it asks for {} local epochs"
    ),
    "least_learning_rate": Amount(lambda order, _: _rate(order, min), "it asks for learning rate {}"),
    "most_learning_rate": Amount(lambda order, _: _rate(order, max), "it asks for learning rate {}"),
    "most_open_orders": Amount(lambda _, known: known.open_orders / known.clients, "{} orders per client are in work"),
    "most_model_bytes": Amount(lambda _, known: known.model_bytes, "the model has {} bytes"),
    "most_held_bytes": Amount(lambda _, known: known.held_bytes, "models of {} bytes would be held"),
    "most_held_models": Amount(
        lambda _, known: known.held_models / known.clients, "{} models per client would be held"
    ),
    "most_orders_per_round": Amount(lambda _, known: known.orders_in_round, "it is order {} of the client's round"),
    "most_trainings_per_round": Amount(
        lambda order, known: known.trainings_in_round if is_training(order.work) else None,
        "it is training {} of the client's round",
    ),
    "most_trainings": Amount(
        lambda order, known: known.trainings if is_training(order.work) else None,
        "it is training {} of the client",
    ),
    "most_evaluations_per_round": Amount(
        lambda order, known: known.evaluations_in_round if is_evaluation(order.work) else None,
        "it is evaluation {} of the client's round",
    ),
    "most_evaluations": Amount(
        lambda order, known: known.evaluations if is_evaluation(order.work) else None,
        "it is evaluation {} of the client",
    ),
    "most_total_epochs": Amount(
        lambda order, known: known.epochs if epochs(order.work, known.samples) else None,
        "the client would have trained {} epochs",
    ),
}


def _limit(key: str, amount: Amount) -> Callable[[Order, Policy, Known], Iterator[Beyond]]:
    def rule(order: Order, policy: Policy, known: Known) -> Iterator[Beyond]:
        asked, limit = amount.of(order, known), getattr(policy, key)
        # NaN is within no limit.
        if asked is not None and not (asked <= limit if key.startswith("most_") else asked >= limit):
            shown = f"{asked:.6g}" if isinstance(asked, float) else asked
            yield Beyond(amount.words.format(shown), str(math.ceil(asked) if isinstance(limit, int) else asked))

    return rule


#: Key of the policy -> what an order wants beyond it. The first one that is found is told.
RULES: Mapping[str, Callable[[Order, Policy, Known], Iterator[Beyond]]] = {
    "work": _work,
    "reveal": _reveal,
    "require": _require,
    "outgoing": _outgoing,
    "training": _training,
    "optimizer": _optimizer,
    "optimizer_state": _optimizer_state,
    "least_samples": _least_samples,
    "least_batch_size": _least_batch_size,
    **{key: _limit(key, amount) for key, amount in AMOUNTS.items()},
}


def _not_dialled(address: str, known: Known) -> str:
    """Why the node may not dial a source; empty if it may, if the source is here, or if it is no address."""
    try:
        return known.not_dialled(address) if address else ""
    except ConfigError:
        return ""  # whoever dials it says so
