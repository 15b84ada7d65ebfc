"""Flower's deprecated functions start_server and start_client. They are fast, because each client keeps a gRPC stream.

`python -m benchmarks.peers.flower_legacy server|client PORT`
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from flwr.client import NumPyClient, start_client
from flwr.common import ndarrays_to_parameters
from flwr.server import ServerConfig, start_server
from flwr.server.strategy import FedAvg

from benchmarks.peers.flower_app import FLAGS
from benchmarks.peers.model import arrays, stamp


class Echo(NumPyClient):  # type: ignore[misc]
    """A client that returns the weights that it received."""

    def fit(self, parameters: Any, config: dict[str, Any]) -> tuple[Any, int, dict[str, Any]]:
        return parameters, 1, {}


class StampedFedAvg(FedAvg):  # type: ignore[misc]
    """FedAvg that records when a round begins and when its average is complete."""

    def initialize_parameters(self, client_manager: Any) -> Any:
        client_manager.wait_for(self.min_available_clients)
        return ndarrays_to_parameters(arrays(json.loads(os.environ[FLAGS])["parameters"]))

    def configure_fit(self, server_round: int, parameters: Any, client_manager: Any) -> Any:
        chosen = super().configure_fit(server_round, parameters, client_manager)
        stamp("begin")
        return chosen

    def aggregate_fit(self, server_round: int, results: Any, failures: Any) -> Any:
        average = super().aggregate_fit(server_round, results, failures)
        stamp("end" if len(results) == self.min_fit_clients else "failed")
        return average


def serve(address: str) -> None:
    flags = json.loads(os.environ[FLAGS])
    strategy = StampedFedAvg(
        fraction_fit=flags["sampled"] / flags["clients"],
        fraction_evaluate=0.0,
        min_fit_clients=flags["sampled"],
        min_available_clients=flags["clients"],
    )
    start_server(server_address=address, config=ServerConfig(num_rounds=flags["rounds"]), strategy=strategy)


if __name__ == "__main__":
    if sys.argv[1] == "server":
        serve(f"127.0.0.1:{sys.argv[2]}")
    else:
        start_client(server_address=f"127.0.0.1:{sys.argv[2]}", client=Echo().to_client(), insecure=True)
