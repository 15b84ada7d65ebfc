"""The accuracy and loss of the models on the clients' own test parts."""

from dataclasses import dataclass

from fedgsp.messages import Evaluated
from top_server.groups.run import survey
from top_server.groups.taking import note_lost
from top_server.groups.task import GroupTask
from top_server.merging import Merging
from top_server.progress import Progress
from top_server.record.events.rounds import NotEvaluated
from top_server.run import RunContext

#: Most metrics in a row of the history. A client may tell names of its own.
MOST_METRICS = 256


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The answers of the clients that have test samples."""

    #: Client -> its answer, with the model that it would use now.
    of: dict[int, Evaluated]
    #: Whether a client gave no answer.
    partial: bool = False

    @property
    def overall(self) -> dict[str, float | None]:
        """Accuracy and mean loss over all samples; both are None if the evaluation is partial."""
        samples = sum(one.samples for one in self.of.values())
        return {
            "accuracy": None if self.partial else sum(one.correct for one in self.of.values()) / samples,
            "loss": None if self.partial else sum(one.loss_sum for one in self.of.values()) / samples,
        }

    @property
    def per_client(self) -> dict[int, float]:
        """Accuracy of each client."""
        return {client: one.correct / one.samples for client, one in self.of.items()}

    @property
    def metrics(self) -> dict[str, dict[int, float]]:
        """The task's further figures: name -> client -> value. The `MOST_METRICS` names of most clients are kept."""
        found: dict[str, dict[int, float]] = {}
        for client, one in self.of.items():
            for name, value in one.metrics.items():
                found.setdefault(name, {})[client] = value
        kept = sorted(found, key=lambda name: (-len(found[name]), name))[:MOST_METRICS]
        return {name: found[name] for name in sorted(kept)}


async def evaluate(context: RunContext, progress: Progress, merging: Merging, round_number: int) -> Evaluation | None:
    """Evaluates every client's model on its own test part; None, and the reason in the journal, without any answer.

    A client whose model nobody trained is left out. If only a part of the clients answered, the evaluation is
    `partial`, since figures over all clients could not be compared with those of other rounds.
    """
    there, slots = context.membership.clients, context.models.slots
    clients = tuple(client for client in there if not merging.untrained(client, slots))
    if not clients:
        reason = "no client that is there has a trained model" if there else "no client is there"
        context.journal.record(NotEvaluated(round=round_number, reason=reason))
        return None
    models = {client: merging.of(client, slots) for client in clients}
    if len({held.ref.id for held in models.values()}) == 1:
        task = GroupTask(0, "evaluate", clients, ((models[clients[0]], 1.0),))
    else:
        task = GroupTask(0, "evaluate", clients, own_starts=models)
    outcome = await survey(context, progress, round_number, task)
    if context.scheme.after_arrivals == "joined":  # in other schemes all clients train, and a loss is noticed then
        note_lost(context, progress, merging, outcome)
    answers = {
        done.client: done.result
        for done in outcome.done
        # With other samples than it joined with, a client would count more, or less, than it may.
        if isinstance(done.result, Evaluated) and done.result.samples == there[done.client].test_samples
    }
    told = {client: answers[client] for client in clients if client in answers and answers[client].samples}
    partial = len(answers) < len(clients)
    if partial:
        cause = next(iter(outcome.failures), "another answer than was asked for")
        reason = f"{len(clients) - len(answers)} of {len(clients)} clients gave no answer: {cause}"
    else:
        reason = "no client has test samples"
    if partial or not told:
        context.journal.record(NotEvaluated(round=round_number, reason=reason))
    return Evaluation(told, partial) if told else None
