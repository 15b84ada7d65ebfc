"""Compares partitions by sketches and by whole updates: sketch_partitions.py EXPERIMENT.toml [--rounds N] [...]

The script runs HCCT in one process. In every round it makes both partitions from the same updates, and continues with
the partition by whole updates. For several sketch sizes it prints in how many rounds the partitions are equal, the
bytes of a sketch, and a share of utility: the gain of the sketch's partition over training alone, divided by the gain
of the exact partition. Both gains are computed from the whole updates.
"""

from __future__ import annotations

import argparse
import tempfile
import tomllib
from pathlib import Path

import numpy as np

from fedgsp.means.averages import Mean
from fedgsp.messages import TrainingSettings
from fedgsp.seeds import derive
from fedgsp.tensors.updates import LENGTH_BYTES, trainable_size
from fedgsp.tensors.weights import Weights
from fedgsp_node.clients import Clients
from fedgsp_node.tasks import load_task
from fedgsp_node.training.control import Control
from fedgsp_node.updates import reveal
from top_server.grouping.greedy_merging import partition, utility
from top_server.reveals.spool import SketchSpool, UpdateSpool

SIZES = (1024, 4096, 16384, 65536)  # bytes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiment", type=Path)
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--task-option", action="append", default=[], metavar="KEY=VALUE")
    arguments = parser.parse_args()
    experiment = tomllib.loads(arguments.experiment.read_text(encoding="utf-8"))
    run, alpha = experiment["run"], float(experiment["variants"]["hcct"]["grouping_option"]["alpha"])
    given = dict(option.split("=", 1) for option in arguments.task_option)
    options = {**run["task_option"], "seed": str(arguments.seed), **given}
    clients = Clients(load_task(run["task"], options), None)
    hosted = [hosted.client for hosted in clients.hosted]
    sizes = np.array([clients.train_samples(client) for client in hosted])
    alphas = np.full(len(hosted), alpha)
    models = dict.fromkeys(hosted, clients.initial_weights(derive(arguments.seed, "initial-weights")))
    groups = [[row] for row in range(len(hosted))]
    rounds, equal = arguments.rounds or run["rounds"], dict.fromkeys(SIZES, 0)
    shares: dict[int, list[float]] = {size: [] for size in SIZES}
    directory = Path(tempfile.gettempdir())  # files there have no names, so nothing remains
    spools = {size: (SketchSpool if size else UpdateSpool)(directory) for size in (0, *SIZES)}
    for number in range(1, rounds + 1):
        rate = run["learning_rate"] * run["learning_rate_decay"] ** (number - 1)
        settings = TrainingSettings("sgd", run["local_epochs"], run["batch_size"], rate, arguments.seed)
        for group in groups:
            start = mean_of([models[hosted[row]] for row in group], sizes[group])
            trained = [clients.train(hosted[row], start, settings, number, Control()).after for row in group]
            merged = mean_of(trained, sizes[group])
            for row, after in zip(group, trained, strict=True):
                models[hosted[row]] = merged
                for size, spool in spools.items():
                    view = reveal(f"sketch:{size}" if size else "exact", start, after, rate, arguments.seed)
                    spool.put(row, view.arrays["update"])
        grams = {size: spool.gram(range(len(hosted))) for size, spool in spools.items()}
        groups = partition(grams[0], sizes, alphas)
        alone = worth(grams[0], sizes, alphas, [[row] for row in range(len(hosted))])
        gain = worth(grams[0], sizes, alphas, groups) - alone
        for size in SIZES:
            found = partition(grams[size], sizes, alphas)
            equal[size] += found == groups
            shares[size].append(
                (worth(grams[0], sizes, alphas, found) - alone) / gain if gain else float(found == groups)
            )
    parameters = trainable_size(models[hosted[0]].tensors)
    print(f"{arguments.experiment.stem}: {len(hosted)} clients, {parameters:,} parameters, alpha {alpha:g}")
    print(
        "| signs | bytes (of the whole update) | equal partitions | share of the benefit: mean | least |\n|"
        + "---|" * 5
    )
    for size in SIZES:
        share, moved = np.array(shares[size]), f"{size + LENGTH_BYTES:,} of {4 * parameters:,}"
        print(f"| {8 * size:,} | {moved} | {equal[size]} of {rounds} | {share.mean():.4f} | {share.min():.4f} |")


def mean_of(models: list[Weights], weights: np.ndarray) -> Weights:
    mean = Mean(weighted=True)
    for model, weight in zip(models, weights, strict=True):
        mean.fold(model, float(weight))
    return mean.result()


def worth(gram: np.ndarray, sizes: np.ndarray, alphas: np.ndarray, groups: list[list[int]]) -> float:
    """The sum of the utilities of all groups."""
    return sum(utility(gram, sizes, alphas, group) for group in groups)


if __name__ == "__main__":
    main()
