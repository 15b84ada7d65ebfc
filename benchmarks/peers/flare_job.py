"""The NVFlare job: NVFlare's standard workflows, and clients that return the weights that they received.

`python -m benchmarks.peers.flare_job fedavg|relay poc|simulator CLIENTS ROUNDS PARAMETERS` runs it.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import numpy as np
from nvflare.apis.dxo import DXO, DataKind, MetaKey, from_shareable
from nvflare.apis.executor import Executor
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal
from nvflare.app_common.abstract.model import ModelLearnable, make_model_learnable
from nvflare.app_common.abstract.model_persistor import ModelPersistor
from nvflare.app_common.app_event_type import AppEventType
from nvflare.app_common.shareablegenerators.full_model_shareable_generator import FullModelShareableGenerator
from nvflare.app_common.workflows.cyclic_ctl import CyclicController
from nvflare.app_common.workflows.fedavg import FedAvg
from nvflare.job_config.api import FedJob
from nvflare.private.fed.app.simulator.simulator_runner import SimulatorRunner
from nvflare.recipe.poc_env import PocEnv

from benchmarks.peers.model import arrays, stamp


class Start(ModelPersistor):  # type: ignore[misc]
    """Provides the initial model. Nothing is saved."""

    def __init__(self, parameters: int) -> None:
        super().__init__()
        self.parameters = parameters

    def load_model(self, fl_ctx: FLContext) -> ModelLearnable:
        weights = {str(number): array for number, array in enumerate(arrays(self.parameters))}
        return make_model_learnable(weights=weights, meta_props={})

    def save_model(self, model: ModelLearnable, fl_ctx: FLContext) -> None:
        pass


class Stamps(FLComponent):  # type: ignore[misc]
    """Records when a round begins and when its average is complete."""

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        if event_type == AppEventType.ROUND_STARTED:
            stamp("begin")
        elif event_type == AppEventType.AFTER_AGGREGATION:
            stamp("end")


class Echo(Executor):  # type: ignore[misc]
    """A client that records the time and returns the weights that it received."""

    def execute(self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        stamp("hop")
        weights: dict[str, Any] = from_shareable(shareable).data
        if not all(isinstance(array, np.ndarray) for array in weights.values()):
            stamp("failed")
        return DXO(DataKind.WEIGHTS, weights, {MetaKey.NUM_STEPS_CURRENT_ROUND: 1}).to_shareable()


def job_of(workflow: str, clients: int, rounds: int, parameters: int, poll: float) -> FedJob:
    """The job. `poll` is the interval in seconds at which each side asks for work."""
    job = FedJob(name="peer", min_clients=clients)
    job.to_server(Start(parameters), id="persistor")
    if workflow == "fedavg":
        job.to_server(FedAvg(num_clients=clients, num_rounds=rounds, task_check_period=poll))
        job.to_server(Stamps(), id="stamps")
    else:
        job.to_server(CyclicController(num_rounds=rounds, task_check_period=poll, snapshot_every_n_rounds=0))
        job.to_server(FullModelShareableGenerator(), id="shareable_generator")
    job.to_server({"server": {"task_request_interval": poll}})
    job.to_clients(Echo(), tasks=["*"])
    job.to_clients({"default_task_fetch_interval": poll})
    return job


def main() -> None:
    workflow, place, *numbers = sys.argv[1:]
    clients, rounds, parameters = map(int, numbers)
    if place == "poc":
        PocEnv(num_clients=clients).deploy(job_of(workflow, clients, rounds, parameters, 0.05))
    else:
        # Not SimEnv, which accepts at most 100 clients.
        job_of(workflow, clients, rounds, parameters, 0.5).export_job("jobs")
        runner = SimulatorRunner(
            "jobs/peer", "simulation", n_clients=clients, threads=os.cpu_count(), max_clients=clients
        )
        sys.exit(runner.run())


if __name__ == "__main__":
    main()
