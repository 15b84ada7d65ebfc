"""The accuracy, loss and metrics of the models on the clients' own test or validation parts."""

import logging
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from fedgsp.messages import Evaluated, HostedClient
from fedgsp.scoring import (
    ACCURACY,
    LOSS,
    MOST_METRICS,
    Figure,
    Scoring,
    accuracy_of,
    is_figure,
    loss_of,
    metric_of,
    rated,
)
from fedgsp.words import counted
from top_server.groups.run import survey
from top_server.groups.taking import note_lost
from top_server.groups.task import GroupTask
from top_server.merging import Merging
from top_server.progress import Progress
from top_server.record.events.rounds import MetricLeftOut, NotEvaluated, NotValidated
from top_server.run import RunContext

logger = logging.getLogger(__name__)

#: Why the figure of a client does not count.
NOT_FINITE = "it is not a finite number, or it is too large to count"
NOT_REPORTED = "the client did not report it"
#: Bytes of the events of one evaluation about what does not count, roughly: a node may report 256 figures for each of
#: its clients, and others of them in each round that are no numbers.
MOST_LEFT_OUT = 1 << 21
#: Bytes of a client in such an event, roughly.
_OF_CLIENT = 20
#: Stands for all metrics of a client whose metrics() failed, if none of them rates the models.
METRICS = "metrics()"


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A part of the clients' data on which models are evaluated."""

    #: The program that asks for it.
    program: str
    #: The number of samples of a client.
    samples: Callable[[HostedClient], int]
    #: Whether clients without samples are not asked.
    optional: bool = False
    #: In the reason of a missing answer, and before the names of figures in the record.
    on: str = ""
    prefix: str = ""

    def of(self, names: Iterable[str]) -> set[str]:
        """The names of figures on this part."""
        return {name for name in names if name.startswith(VALIDATION.prefix) == (self is VALIDATION)}


TEST = Part(program="evaluate", samples=lambda hosted: hosted.test_samples)
VALIDATION = Part(
    program="evaluate-validation",
    samples=lambda hosted: hosted.validation_samples,
    optional=True,
    on=" on validation data",
    prefix="validation ",
)


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The answers of the clients that have samples of a part, by ascending client."""

    #: Client -> its answer, with the model that it would use now.
    of: dict[int, Evaluated]
    #: Whether a client gave no answer.
    partial: bool = False
    #: How the task combines its metrics, and what rates a model.
    scoring: Scoring = field(default_factory=Scoring)

    @property
    def overall(self) -> dict[str, float | None]:
        """Accuracy and mean loss over all samples; None if the evaluation is partial, or if there is none.

        Clients whose loss is NaN or infinite are left out of the mean (`left_out`).
        """
        if self.partial:
            return {"accuracy": None, "loss": None}
        return {"accuracy": accuracy_of(self.of.values()), "loss": loss_of(self.of.values())}

    @property
    def per_client(self) -> dict[int, float]:
        """Accuracy of each client that has one."""
        return {client: one.correct / one.judged for client, one in self.of.items() if one.judged}

    @property
    def metrics(self) -> dict[str, dict[int, float]]:
        """The task's further figures: name -> client -> value. The `MOST_METRICS` names of most clients are kept."""
        return {
            name: {client: self.scoring.own(name, figure) for client, figure in self._figures(name).items()}
            for name in self._names
        }

    @property
    def combined(self) -> dict[str, float | None]:
        """The task's further figures over all clients, by name; None if partial, or if no client has a number."""
        return {
            name: None if self.partial else self.scoring.combined(name, self._figures(name).values())
            for name in self._names
        }

    @property
    def score(self) -> float | None:
        """What rates the model or models, over all clients: larger is better. None if the evaluation is partial."""
        metric = metric_of(self.scoring.score)
        return rated(self.scoring.score, {**self.combined, **self.overall}.get(metric))

    @property
    def score_per_client(self) -> dict[int, float]:
        """The score of each client that has one, larger is better."""
        metric = metric_of(self.scoring.score)
        if metric == ACCURACY:
            values = self.per_client
        elif metric == LOSS:
            values = {client: one.loss_sum / one.samples for client, one in self.of.items()}
        else:
            values = {client: self.scoring.own(metric, one) for client, one in self._figures(metric).items()}
        scores = {client: rated(self.scoring.score, value) for client, value in values.items()}
        return {client: score for client, score in scores.items() if score is not None}

    @property
    def behind_score(self) -> dict[int, Figure | None]:
        """What the score is combined of: a figure of each client, None if it is not a finite number."""
        metric = metric_of(self.scoring.score)
        if metric == ACCURACY:
            found = {c: Figure(one.correct / one.judged, 1.0, one.samples) for c, one in self.of.items() if one.judged}
        elif metric == LOSS:
            found = {c: Figure(one.loss_sum / one.samples, 1.0, one.samples) for c, one in self.of.items()}
        else:
            found = self._figures(metric)
        return {client: one if one.is_finite else None for client, one in found.items()}

    @property
    def left_out(self) -> dict[str, dict[int, str]]:
        """Figure -> client -> why its value does not count: it is no finite number, or the score is missing."""
        found = {LOSS: {client: NOT_FINITE for client, one in self.of.items() if not is_figure(one.loss_sum)}}
        found |= {
            name: {client: NOT_FINITE for client, one in self._figures(name).items() if not one.is_finite}
            for name in self._names
        }
        failed = {c: f"metrics() failed: {why.detail}" for c, one in self.of.items() if (why := one.metrics_failed)}
        metric = metric_of(self.scoring.score)
        if metric not in (ACCURACY, LOSS):
            missing = self.of.keys() - self._figures(metric).keys()
            found[metric] = found.get(metric, {}) | dict.fromkeys(missing, NOT_REPORTED) | failed
        else:
            found[METRICS] = failed
        return {name: dict(sorted(clients.items())) for name, clients in found.items() if clients}

    @property
    def _names(self) -> list[str]:
        counts = Counter(name for one in self.of.values() for name in one.metrics)
        return sorted(sorted(counts, key=lambda name: (-counts[name], name))[:MOST_METRICS])

    def _figures(self, name: str) -> dict[int, Figure]:
        return {
            client: Figure(one.metrics[name], one.denominators.get(name, 0.0), one.samples)
            for client, one in self.of.items()
            if name in one.metrics
        }


async def evaluate(
    context: RunContext, progress: Progress, merging: Merging, round_number: int, part: Part = TEST
) -> Evaluation | None:
    """Evaluates every client's model on a part of its data; None, and the reason in the journal, without an answer.

    The test part of a client may be empty. Of the clients without a validation part none is asked; if there is no
    other client, nothing is recorded.

    A client whose model nobody trained is left out. If only a part of the clients answered, the evaluation is
    `partial`, since figures over all clients could not be compared with those of other rounds.
    """
    there, slots = context.membership.clients, context.models.slots
    samples = {client: part.samples(hosted) for client, hosted in there.items()}
    if part.optional and not any(samples.values()):
        return None
    clients = tuple(
        client for client in there if not merging.untrained(client, slots) and (samples[client] or not part.optional)
    )
    if not clients:
        reason = "no client that is there has a trained model" if there else "no client is there"
        context.journal.record(NotEvaluated(round=round_number, reason=reason))
        return None
    models = {client: merging.of(client, slots) for client in clients}
    if len({held.ref.id for held in models.values()}) == 1:
        task = GroupTask(0, part.program, clients, ((models[clients[0]], 1.0),))
    else:
        task = GroupTask(0, part.program, clients, own_starts=models)
    outcome = await survey(context, progress, round_number, task)
    if context.scheme.after_arrivals == "joined":  # in other schemes all clients train, and a loss is noticed then
        note_lost(context, progress, merging, outcome)
    answers = {
        done.client: done.result
        for done in outcome.done
        # With other samples than it joined with, a client would count more, or less, than it may.
        if isinstance(done.result, Evaluated) and done.result.samples == samples[done.client]
    }
    told = {client: answers[client] for client in clients if client in answers and answers[client].samples}
    partial = len(answers) < len(clients)
    if partial:
        cause = next(iter(outcome.failures), "another answer than was asked for")
        reason = f"{len(clients) - len(answers)} of {len(clients)} clients gave no answer{part.on}: {cause}"
    else:
        reason = "no client has test samples"
    if partial or not told:
        kind = NotValidated if part is VALIDATION else NotEvaluated
        context.journal.record(kind(round=round_number, reason=reason))
    if not told:
        return None
    found = Evaluation(told, partial, context.membership.scoring)
    _name_left_out(context, progress, round_number, found, part)
    return found


def _name_left_out(context: RunContext, progress: Progress, round_number: int, found: Evaluation, part: Part) -> None:
    """Records which figures of which clients do not count, if they are others than in the evaluation before."""
    left_out = {f"{part.prefix}{name}": clients for name, clients in found.left_out.items()}
    size = untold = 0
    for name, clients in left_out.items():
        if progress.left_out.get(name) == list(clients):
            continue
        by_reason: dict[str, list[int]] = {}
        for client, why in clients.items():
            by_reason.setdefault(why, []).append(client)
        for reason, theirs in sorted(by_reason.items()):
            if size >= MOST_LEFT_OUT:
                untold += 1
                continue
            size += _OF_CLIENT * len(theirs) + len(reason)
            context.journal.record(MetricLeftOut(round=round_number, metric=name, clients=theirs, reason=reason))
    if untold:
        logger.warning(
            "round=%d figures do not count for %s, not recorded", round_number, counted(untold, "more reason")
        )
    others = {name: clients for name, clients in progress.left_out.items() if name not in part.of(progress.left_out)}
    progress.left_out = {**others, **{name: list(clients) for name, clients in left_out.items()}}
