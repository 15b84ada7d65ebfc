"""Training accuracy of the global model on each client (FedFA as in HCCT, section 4)."""

from __future__ import annotations

import numpy as np

from fedgsp.parts import NoOptions
from top_server.evidence import Evidence
from top_server.profiles.base import Profile


class TrainingAccuracy(Profile[NoOptions]):
    """Asks every client in every round for the training accuracy of the global model."""

    async def gather(self, round_number: int) -> Evidence:
        """Column `train_accuracy` of accuracies in 0..1, of the clients that answered."""
        everyone = tuple(self.context.membership.clients)
        start = self.start(everyone)
        answers = await self.evaluate(round_number, "evaluate-training", everyone, start)
        clients = tuple(sorted(answers))
        accuracies = [[answers[client].correct / answers[client].samples] for client in clients]
        return Evidence(clients, figures={"train_accuracy": np.array(accuracies).reshape(-1, 1)})
