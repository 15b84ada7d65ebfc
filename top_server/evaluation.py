"""How good the models are on the clients' own test parts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedgsp.messages import Evaluated
from top_server.groups.task import GroupTask

if TYPE_CHECKING:
    from top_server.run import Run


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Each client's counts with the model that it would use now; only clients with test samples."""

    of: dict[int, Evaluated]
    #: Whether some client gave no answer.
    partial: bool = False

    @property
    def accuracy(self) -> float | None:
        """Over all samples; None if the evaluation is partial."""
        return None if self.partial else sum(one.correct for one in self.of.values()) / self._samples

    @property
    def loss(self) -> float | None:
        """Mean over all samples; None if the evaluation is partial."""
        return None if self.partial else sum(one.loss_sum for one in self.of.values()) / self._samples

    @property
    def per_client(self) -> dict[int, float]:
        """Accuracy of each client."""
        return {client: one.correct / one.samples for client, one in self.of.items()}

    @property
    def metrics(self) -> dict[str, dict[int, float]]:
        """The task's further figures: name -> client -> value."""
        names = sorted({name for one in self.of.values() for name in one.metrics})
        return {name: {c: one.metrics[name] for c, one in self.of.items() if name in one.metrics} for name in names}

    @property
    def _samples(self) -> int:
        return sum(one.samples for one in self.of.values())


async def evaluate(run: Run, round_number: int) -> Evaluation | None:
    """Every client's model on its own test part; None, and the reason in the journal, if nobody could be asked.

    A model that nobody trained is no result: its client is left out.
    If only part of the clients answered the evaluation is `partial`: figures over all clients would not compare with
    those of other rounds.
    """
    clients = tuple(client for client in run.membership.clients if not run.merging.untrained(client))
    if not clients:
        reason = "no client that is there has a trained model" if run.membership.clients else "no client is there"
        run.journal.record("not_evaluated", round=round_number, reason=reason)
        return None
    models = {client: run.merging.of(client) for client in clients}
    if len({held.ref.id for held in models.values()}) == 1:
        task = GroupTask(0, "evaluate", clients, ((models[clients[0]], 1.0),))
    else:
        task = GroupTask(0, "evaluate", clients, own_starts=models)
    outcome = await run.survey(round_number, task)
    if run.scheme.after_arrivals == "joined":  # else it is noticed as they train, when their groups may have better
        run.merging.note_lost(outcome)
    answers = {done.client: done.result for done in outcome.done if isinstance(done.result, Evaluated)}
    told = {client: answers[client] for client in clients if client in answers and answers[client].samples}
    partial = len(answers) < len(clients)
    if partial:
        cause = next(iter(outcome.failures), "another answer than was asked for")
        reason = f"{len(clients) - len(answers)} of {len(clients)} clients gave no answer: {cause}"
    else:
        reason = "no client has test samples"
    if partial or not told:
        run.journal.record("not_evaluated", round=round_number, reason=reason)
    return Evaluation(told, partial) if told else None
