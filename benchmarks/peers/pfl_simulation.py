"""Plays FedAvg on FEMNIST's writers with pfl (pfl-research), as `benchmarks.simulation` asks:

    python -m benchmarks.peers.pfl_simulation femnist.npz --model small --cohort 150 --rounds 4 --threads 2

In an environment with pfl. One process, as pfl simulates on one machine. Prints samples and seconds of each round as
JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel

from fedgsp_node.tasks.femnist import Femnist

BATCH, LEARNING_RATE = 5, 0.01


class _Trained(torch.nn.Module):
    """The model of the task, with what pfl asks of a model."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def loss(self, x: torch.Tensor, y: torch.Tensor, is_eval: bool = False) -> torch.Tensor:
        self.eval() if is_eval else self.train()
        return torch.nn.functional.cross_entropy(self.model(x), y)

    @torch.no_grad()
    def metrics(self, x: torch.Tensor, y: torch.Tensor, is_eval: bool = True) -> dict[str, Weighted]:
        found = self.model(x)
        return {"accuracy": Weighted((found.argmax(1) == y).sum().item(), len(y))}


class _Clock(TrainingProcessCallback):  # type: ignore[misc]
    """Notes the time at the end of each round."""

    def __init__(self) -> None:
        self.times = [time.perf_counter()]

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: Any, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        """Goes on."""
        self.times.append(time.perf_counter())
        return False, Metrics()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--model", choices=("small", "leaf"), default="small")
    parser.add_argument("--cohort", type=int, default=150)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--threads", type=int, default=2)
    flags = parser.parse_args()
    torch.set_num_threads(flags.threads)
    np.random.seed(0)
    torch.manual_seed(0)
    task = Femnist(flags.data, model=flags.model)
    seen: list[int] = []

    def dataset(client: int) -> Dataset:
        train = task.data(client).train
        seen.append(len(train.y))
        return Dataset([torch.as_tensor(train.x), torch.as_tensor(train.y)], user_id=str(client))

    clients = list(range(task.num_clients))
    federated = FederatedDataset(dataset, get_user_sampler("random", clients))
    network = _Trained(task.model())
    model = PyTorchModel(
        network,
        local_optimizer_create=torch.optim.SGD,
        central_optimizer=torch.optim.SGD(network.parameters(), lr=1.0),
    )
    clock = _Clock()
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=flags.rounds,
            evaluation_frequency=10**9,
            train_cohort_size=flags.cohort,
            val_cohort_size=0,
        ),
        backend=SimulatedBackend(training_data=federated, val_data=federated),
        model=model,
        model_train_params=NNTrainHyperParams(
            local_num_epochs=1, local_learning_rate=LEARNING_RATE, local_batch_size=BATCH
        ),
        callbacks=[clock],
        send_metrics_to_platform=False,
    )
    seconds = np.diff(clock.times).tolist()
    samples = [sum(seen[start : start + flags.cohort]) for start in range(0, len(seen), flags.cohort)]
    sys.stdout.write(json.dumps({"samples": samples, "seconds": seconds}) + "\n")


if __name__ == "__main__":
    main()
