"""Measures whole rounds whose clients train on one GPU, beside the same training in one node without any round.

16 clients have 1,280 random pictures each, and train a ResNet of 18 layers for one epoch in a round. FedAvg trains all
at the same time, as far as its nodes can; FedGSP relays the model in four groups. Seconds come from the history,
without the first round and the last round.
"""

from __future__ import annotations

import statistics
import sys

from benchmarks.performance.gpu import RATE, SHARED, Pictures, in_a_node, the_gpu
from benchmarks.performance.rows import Row, main
from benchmarks.performance.runs import FEDAVG, fedgsp_with, play

CLIENTS, SAMPLES = 16, 1280
SCHEMES = {"FedAvg": FEDAVG, "FedGSP": fedgsp_with(4)}
#: Numbers of node processes that share the GPU.
NODES = (1, 2, 4, 8)
TIMEOUT_S = 120.0


class PicturesOfMany(Pictures):
    """The same for many clients."""

    num_clients = CLIENTS

    def __init__(self) -> None:
        super().__init__(SAMPLES)


def flags() -> list[str]:
    task = ["--task", f"{__spec__.name}:PicturesOfMany", "--clients", str(CLIENTS)]
    training = ["--batch-size", str(SHARED.batch_size), "--learning-rate", str(RATE), "--local-epochs", "1"]
    return [*task, *training, "--device", "cuda:0"]


def measure(repeats: int) -> list[Row]:
    (gpu, name), rows = the_gpu(), []
    alone = tuple(CLIENTS * SAMPLES / in_a_node(SHARED, SHARED.samples, gpu) for _ in range(repeats))
    for scheme, chosen in SCHEMES.items():
        for nodes in NODES:
            seconds = play([*chosen, *flags()], repeats + 2, TIMEOUT_S, nodes).steady
            what = f"{scheme} round of {CLIENTS} clients, nodes on one GPU: {nodes}"
            rows.append(Row(what, "s", seconds, 1.25, "the training in one node", alone, note=name))
            sys.stderr.write(f"{what}: {seconds}, beside {statistics.median(alone):.2f}\n")
    return rows


if __name__ == "__main__":
    main(measure, __doc__ or "", repeats=3)
