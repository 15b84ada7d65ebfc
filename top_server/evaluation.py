"""How good the models are on the clients' own test parts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedgsp.messages import Evaluated, Failure
from top_server.group_run import GroupTask

if TYPE_CHECKING:
    from top_server.run import Run


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Each client's counts with the model that it would use now; only clients with test samples."""

    of: dict[int, Evaluated]

    @property
    def accuracy(self) -> float:
        """Over all samples."""
        return sum(one.correct for one in self.of.values()) / self._samples

    @property
    def loss(self) -> float:
        """Mean over all samples."""
        return sum(one.loss_sum for one in self.of.values()) / self._samples

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
    """Every client's model on its own test part.

    None, and the reason in the journal, if the clients could not all be asked: part of them would give a figure
    that no other round's can be compared with.
    """
    clients = tuple(run.membership.clients)
    models = {client: run.merging.of(client) for client in clients}
    if len({held.ref.id for held in models.values()}) == 1:
        task = GroupTask(0, "evaluate", clients, ((models[clients[0]], 1.0),))
    else:
        task = GroupTask(0, "evaluate", clients, own_starts=models)
    outcome = await run.survey(round_number, task)
    answers = {done.client: done.result for done in outcome.done if isinstance(done.result, Evaluated)}
    if len(answers) < len(clients):
        cause = outcome.result if isinstance(outcome.result, Failure) else outcome.skipped[0].failure
        reason = f"{len(clients) - len(answers)} of {len(clients)} clients gave no answer: {cause}"
    elif not any(answer.samples for answer in answers.values()):
        reason = "no client has test samples"
    else:
        return Evaluation({client: answers[client] for client in clients if answers[client].samples})
    run.journal.record("not_evaluated", round=round_number, reason=reason)
    return None
