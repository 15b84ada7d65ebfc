"""Events of a round."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from top_server.record.events.base import ABSENT, Event, GroupEvent, MayLack, RoundEvent, told

#: A row of more bytes lacks the figures of the task by client: a node may report 256 of them for each of its clients,
#: and whoever reads the history needs memory for some rows.
_MOST_WITH_METRICS = 1 << 24


class RoundStarted(RoundEvent):
    """The groups are formed. All clients that train alone are groups of one, and share one group manager."""

    groups: int = told("number of groups that were formed")
    sampled_groups: int = told("number of groups that train")
    clients: int = told("number of clients that train")
    teams: Sequence[Sequence[int]] = told(
        "the clients of each group that trains; `group` in later events is a position in this list"
    )
    reason: str = told("why these groups were formed or kept, and why only some of them train")


class RoundWaits(RoundEvent):
    """A round does not begin yet, because too few clients are there (`--min-clients`)."""

    clients: int = told("number of clients that are there")
    needed: int = told("number of clients that every round needs")
    timeout: float = told("seconds after which the run ends if they do not come")


class RoundWaited(RoundEvent):
    """Enough clients have come, and the round begins."""

    clients: int = told("number of clients that are there")
    seconds: float = told("duration of the wait")


class ClientsAway(RoundEvent):
    """A round begins without the clients of a node that has left, or that came back too late for the round."""

    node: str
    clients: Sequence[int]
    seconds: float = told("time since the node left, or for which it was away")
    reason: str = told("why it left")


class HopFinished(GroupEvent):
    """A client has trained, in a relay or in another program.

    The event comes again if the result was lost and the client trained again.
    """

    program: str
    position: int = told("place in the group, from 0")
    members: int = told("number of clients in the group")
    client: int
    loss: float = told("mean training loss")
    seconds: float = told("time of training")
    turn: float = told(
        "relay: seconds from the end of the hop before, or the begin of the relay, until this result, by the clock of"
        " the group manager",
        default=ABSENT,
    )
    samples: int = told("training samples of the client")
    update_length: float = told(
        "Euclidean length of the change of the weights, not divided by the learning rate; 0 without"
        " `--update-norm-limit`"
    )
    bytes: int = told("bytes of start weights that the node fetched")
    travelled: int = told("of these, the bytes that came over a connection, after coding", default=ABSENT)
    coding: str = told(
        "how they came: `raw`, `coded` against a base, `packed` (coded without a base), or through shared `memory`; "
        "empty: no transfer",
        default=ABSENT,
    )
    model: str | None = told("id of the result")
    node: str
    via: str | None = told("source of the start: `node`, `manager` or `top_server`; `local` or `own`: no transfer")


class ClientSkipped(GroupEvent):
    """A client did not do what it was asked."""

    program: str
    client: int
    node: str = told("the node that hosts the client; missing if that is not known", default=ABSENT)
    code: str | None = told("a name from `protos/fedgsp/v1/failure.proto`")
    reason: str


class QuestionFailed(RoundEvent):
    """A question to clients ended before all of them had answered, for a reason that is not theirs.

    Clients are asked before a round, and when models are evaluated or collected. What is known of these clients stays.
    """

    program: str
    clients: Sequence[int] = told("the clients that could not answer")
    reason: str


class Rerouted(GroupEvent):
    """Weights took another way than planned, came from an earlier model, or a client trains again."""

    client: int
    reason: str


class UpdateMissing(Event):
    """A client was to reveal its update, and the update did not come or cannot be used."""

    client: int
    reason: str


class ModelLost(Event):
    """A model, head or personal model of a client is no longer on its node, or cannot be used."""

    client: int
    reason: str
    round: int = told("missing in some events", default=ABSENT)


class GroupResumed(GroupEvent):
    """Another group manager takes over a group."""

    program: str
    manager: str = told("the new manager")
    finished: int = told("number of hops that are kept")


class GroupFinished(GroupEvent):
    """The result of a group is taken into the merge."""


class GroupFailed(GroupEvent):
    """A group has no result and is left out of the merge."""

    reason: str


class RoundResumed(RoundEvent):
    """A resumed run continues a round that was interrupted."""

    hops: int = told("number of hops that are kept, over all groups")
    kept: Sequence[int] = told("the clients of these hops; no event of them comes again", default=ABSENT)


class RoundFailed(RoundEvent):
    """Nobody trained in a round, or reported a profile, for a reason that may pass: the round is tried again.

    Nodes or managers were lost, or a question before the round failed (`question_failed`).

    A round has fifty tries in all. Of these, at most five may fail although no node has left.
    """

    reason: str


class TrainedNobody(RoundEvent):
    """All clients of a round failed or were lost, and the run goes on with others.

    It ends after three such rounds in a row. A round whose clients are all away does not count.
    """

    reason: str


class NotEvaluated(RoundEvent):
    """The round has no accuracy: clients gave no answer, are away, or have no test samples."""

    reason: str


class NotValidated(RoundEvent):
    """The round has no validation score: clients with validation data gave no answer."""

    reason: str


class MetricLeftOut(RoundEvent):
    """A figure of a client does not count in this evaluation, and those of all other clients do.

    The event comes again only if the clients are others than in the evaluation before.
    """

    metric: str = told("a metric of the task, `loss`, or `metrics()` for all of them")
    clients: Sequence[int]
    reason: str


class ModelNotSaved(Event):
    """The model of a client is not saved: it cannot be fetched, or, after the last round, nobody has trained it."""

    client: int
    reason: str


class RoundFinished(RoundEvent):
    """A round is finished and evaluated. The fields are the columns of `history.jsonl`; null is no value."""

    may_lack: ClassVar[tuple[MayLack, ...]] = (
        MayLack("validation.metrics_per_client", _MOST_WITH_METRICS),
        MayLack("metrics_per_client", _MOST_WITH_METRICS),
        MayLack("validation.accuracy_per_client"),
        MayLack("validation.behind_score"),
        MayLack("validation.score_per_client"),
        MayLack("accuracy_per_client"),
        MayLack("score_per_client"),
        MayLack("partition"),
    )

    groups: int = told("number of groups that were formed", default=None)
    sampled_groups: int = told("number of groups that trained", default=None)
    clients_trained: int = told("number of clients whose training is in a result", default=None)
    clients_skipped: int = told(
        "number of the other clients of the sampled groups: they were skipped, or their group failed", default=None
    )
    accuracy: float | None = told(
        "over the test data of the clients that are there and have a trained model, weighted by samples", default=None
    )
    loss: float | None = told("likewise", default=None)
    clients_evaluated: int | None = told("number of clients behind `accuracy` and `loss`", default=None)
    seconds: float = told("time of the round", default=None)
    bytes_direct: int = told("bytes of weights that moved from node to node", default=None)
    bytes_relayed: int = told("bytes of weights that moved through managers or the top server", default=None)
    bytes_travelled: int = told(
        "bytes that travelled over connections for these weights, after coding; none through a pipe",
        default=ABSENT,
    )
    cpd_median: float | None = told(
        "median distance of the groups' class distributions: how unlike the groups are", default=None
    )
    t_comp_s: float = told("modelled computing time, by the cost model of the FedGSP paper", default=None)
    t_comm_s: float = told("modelled communication time, likewise", default=None)
    d_comm_bytes: float = told("modelled traffic, likewise", default=None)
    accuracy_per_client: Mapping[int, float] = told("schemes in which all clients train", default=ABSENT)
    partition: Sequence[Sequence[int]] = told("the groups that were formed; the same schemes", default=ABSENT)
    metrics: Mapping[str, float | None] = told(
        "figures of the task over all these clients, by name; `combine` of the task says how", default=ABSENT
    )
    metrics_per_client: Mapping[str, Mapping[int, float]] = told(
        "figures of the task, by name and client; null is no number", default=ABSENT
    )
    scored_by: str = told("the `score` of the task, such as `f1` or `-mae`, unless it is accuracy", default=ABSENT)
    score: float | None = told(
        "the value of `scored_by`; larger is better, so that it is -2 for `-mae` if `mae` is 2", default=ABSENT
    )
    score_per_client: Mapping[int, float] = told(
        "the score of each client, where there would be `accuracy_per_client`", default=ABSENT
    )
    validation: Mapping[str, Any] = told(
        "the same figures on the validation data of the clients that have some, from `accuracy` to `score_per_client`,"
        " and `behind_score`: value, denominator and samples of each client that"
        " count for the score; null if the value is no number",
        default=ABSENT,
    )
    ipr: float | None = told("with `--local-run`: share of clients that are better off than alone", default=ABSENT)
    rsd: float | None = told("with `--local-run`: standard deviation of the clients' gains", default=ABSENT)
