"""The Flower app: FedAvg on the server, and clients that return the weights that they received."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from benchmarks.peers.model import arrays, stamp

#: Environment variable with the numbers of parameters, clients, clients in a round, and rounds, as JSON.
FLAGS = "PEERS_FLAGS"

client = ClientApp()
server = ServerApp()


@client.train()  # type: ignore[untyped-decorator]
def train(message: Message, context: Context) -> Message:
    content = RecordDict({"arrays": message.content["arrays"], "metrics": MetricRecord({"num-examples": 1})})
    return Message(content=content, reply_to=message)


class StampedFedAvg(FedAvg):  # type: ignore[misc]
    """FedAvg that records when a round begins and when its average is complete."""

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        stamp("begin")
        messages: Iterable[Message] = super().configure_train(server_round, arrays, config, grid)
        return messages

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> tuple[Any, Any]:
        answered = list(replies)
        failed = len(answered) != self.min_train_nodes or any(reply.has_error() for reply in answered)
        average: tuple[Any, Any] = super().aggregate_train(server_round, answered)
        stamp("failed" if failed else "end")
        return average


@server.main()  # type: ignore[untyped-decorator]
def main(grid: Grid, context: Context) -> None:
    flags = json.loads(os.environ[FLAGS])
    strategy = StampedFedAvg(
        fraction_train=flags["sampled"] / flags["clients"],
        min_train_nodes=flags["sampled"],
        min_available_nodes=flags["clients"],
        fraction_evaluate=0.0,
    )
    model = ArrayRecord(arrays(flags["parameters"]))
    strategy.start(grid=grid, initial_arrays=model, num_rounds=flags["rounds"])
