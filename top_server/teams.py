"""Decides who trains with whom in a round, by pure functions that also return the reason in words.

A grouping may be asked of another process, so that the decision has three steps: `ask` says whether the clients are
grouped anew, and with which request; the caller has the request answered; `form` combines the answer with the rest.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import numpy as np

from fedgsp.errors import RunError
from fedgsp.settings.run import RunConfig
from top_server.evidence import Evidence
from top_server.grouping import GroupingRequest, Plan
from top_server.grouping.request import listed
from top_server.grouping.round_size import sample
from top_server.schemes import Scheme
from top_server.sizes import groups_wanted, sampling_rate

Group = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Before:
    """The state that earlier rounds have left."""

    #: The groups of the last round; None before the first one.
    plan: Plan | None = None
    #: Clients of the first plan whose models are intact.
    first_clients: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True, eq=False)
class Question:
    """The first step of the decision."""

    #: The clients that can be placed: all that evidence is about, or a sample of them.
    clients: tuple[int, ...]
    #: The request to the grouping; None if the groups of the last round stay.
    request: GroupingRequest | None
    reason: str


@dataclass(frozen=True, slots=True)
class Teams:
    """All groups, and the groups that train in this round."""

    plan: Plan
    sampled: tuple[Group, ...]
    reason: str = ""
    #: Clients of the first plan whose models are intact.
    first_clients: frozenset[int] = frozenset()
    #: Latecomers that were put into a group of the last round -> the index of that group.
    placed: Mapping[int, int] = field(default_factory=dict)


def ask(
    config: RunConfig,
    scheme: Scheme,
    options: Mapping[str, str],
    number: int,
    before: Before,
    evidence: Evidence,
    sizes: Mapping[int, int],
    rng: np.random.Generator,
    seconds: Mapping[int, float] | None = None,
) -> Question:
    """Whether the clients are grouped anew in round `number`, and with which request.

    `options` are those of the grouping, `sizes` the training samples of all clients that the evidence is about,
    whether they are still present or not; the evidence has those of clients that are away. `seconds` are the times
    that the clients are expected to take. `rng` draws the clients where a scheme samples these. Raises RunError if
    there is evidence about nobody.
    """
    if not evidence.clients:
        raise RunError(f"no client reported its profile ({scheme.profile})", "see events.jsonl for the reasons")
    wanted = groups_wanted(config, scheme, number, len(evidence.clients) - len(evidence.away))  # of all clients
    plan = before.plan
    if evidence.away:
        stay = (
            {client for group in plan.groups for client in group} if plan is not None and scheme.continues else set()
        )
        evidence = evidence.of([one for one in evidence.clients if one in stay or one not in evidence.away])
    if scheme.sampling == "clients":
        evidence = evidence.of(sample(evidence.clients, sampling_rate(config), rng))
    clients, told = evidence.clients, {**evidence.away, **sizes}
    if plan is None:
        reason = "clients are grouped for the first time"
    elif scheme.regroup == "always":
        reason = "clients are grouped anew in every round"
    elif scheme.regroup == "arrivals" and evidence.newcomers:
        reason = f"these clients are newcomers: {listed(evidence.newcomers)}"
    elif scheme.regroup == "arrivals" and not plan.names(clients):
        reason = "clients are present that have no group"
    else:
        return Question(clients, None, "the groups of the last round stay")
    return Question(
        clients,
        GroupingRequest(
            round=number,
            groups=wanted,
            seed=config.seed,
            clients=clients,
            # Also of a client that left after it gave evidence: the manager of its group is told so later.
            sizes=np.array([told[client] for client in clients], np.int64),
            histograms=evidence.histograms,
            matrices=evidence.matrices,
            options=options,
            newcomers=evidence.newcomers,
            settled=plan.among(set(clients) - set(evidence.newcomers)) if plan is not None else (),
            away=tuple(evidence.away),
            learning_rate=config.learning_rate_in(number - 1),
            seconds=np.array([seconds[client] for client in clients]) if seconds is not None else None,
        ),
        reason,
    )


def form(
    config: RunConfig,
    scheme: Scheme,
    before: Before,
    question: Question,
    answer: Plan | None,
    present: Collection[int],
    rng: np.random.Generator,
) -> Teams:
    """The groups of a round, and the groups that train.

    `answer` is the answer to the request of the question, None if there is no request. `rng` draws the groups where a
    scheme samples these.
    """
    reasons = [question.reason]
    placed: dict[int, int] = {}
    if answer is not None:
        plan = answer.with_absent(before.plan) if before.plan is not None and scheme.continues else answer
        if answer.note:
            reasons.append(answer.note)
    else:
        assert before.plan is not None
        plan, placed = before.plan.with_latecomers(question.clients)
    if placed:
        reasons.append(f"latecomers join the smallest groups: {listed(placed)}")
    first = before.first_clients
    if scheme.after_arrivals == "joined" and before.plan is None:
        first = first.union(question.clients)
    sampled = plan.groups
    if scheme.sampling == "groups":
        sampled = sample(sampled, sampling_rate(config), rng)
        reasons.append(f"{len(sampled)} of {len(plan.groups)} groups are drawn")
    if scheme.after_arrivals == "joined":
        joined = set(present) - first
        changed = tuple(group for group in sampled if joined.intersection(group))
        if changed and len(changed) < len(sampled):
            reasons.append("only groups train that a client joined or whose models were lost")
        sampled = changed or sampled
    return Teams(plan, sampled, "; ".join(reasons), first, placed)
