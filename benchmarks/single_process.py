"""Plays FedGSP or FedAvg in a single process, in plain torch, as a reference: single_process.py CONFIG.toml [...]

CONFIG.toml is a run's config, such as benchmarks/experiments/femnist-paper.toml. The program shares with the system
the task, the groups of ICG and the names of its random streams, but no code that trains, sends or averages. So a run
of the same settings has the same models, bit for bit, and a curve that differs from the paper's does so for another
reason than an error in relaying. After every round it prints the accuracy and loss over all test samples.
"""

from __future__ import annotations

import argparse
import dataclasses
import time
from pathlib import Path

import torch

from fedgsp.errors import UserError
from fedgsp.options import options
from fedgsp.settings.files import load
from fedgsp.settings.run import RunConfig
from fedgsp_node.tasks import load_task
from tests.support.reference import Reference, State
from top_server.sizes import value_of


def accuracy(reference: Reference, state: State) -> tuple[float, float]:
    """(Share of right answers, mean loss) over the test parts of all clients."""
    task, model = reference.task, reference.task.model()
    model.load_state_dict({name: torch.from_numpy(array) for name, array in state.items()})
    model.eval()
    right, loss, count = 0, 0.0, 0
    with torch.no_grad():
        for client in reference.clients:
            test = task.data(client).test
            outputs, labels = model(torch.from_numpy(test.x)), torch.from_numpy(test.y)
            right += int((outputs.argmax(1) == labels).sum())
            loss += float(task.loss(outputs, labels)) * len(test)
            count += len(test)
    return right / count, loss / count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path)
    parser.add_argument("--scheme", choices=("fedgsp", "fedavg"), default="fedgsp")
    parser.add_argument("--rounds", type=int, help="by default those of the config")
    parser.add_argument("--task-option", action="append", default=[], metavar="KEY=VALUE")
    arguments = parser.parse_args()
    try:
        config = load(RunConfig, arguments.config)
        task = load_task(config.task, {**config.task_option, **options("--task-option", arguments.task_option)})
    except UserError as error:
        parser.error(str(error))
    torch.set_num_threads(1)
    reference = Reference(
        task,
        range(config.clients or 0),
        config.rounds if arguments.rounds is None else arguments.rounds,
        alpha=value_of(config, "alpha"),
        beta=value_of(config, "beta"),
        sampling_rate=value_of(config, "sampling_rate"),
        learning_rate=config.learning_rate,
        batch_size=config.batch_size,
        local_epochs=config.local_epochs,
        seed=config.seed,
        options=config.grouping_option,
    )
    begin = time.monotonic()

    def told(number: int, state: State) -> None:
        share, loss = accuracy(reference, state)
        print(f"round {number}: {share:.2%}, loss {loss:.3f}, {time.monotonic() - begin:.0f} s", flush=True)

    plays = {"fedgsp": Reference.play_fedgsp, "fedavg": Reference.play_fedavg}
    plays[arguments.scheme](dataclasses.replace(reference, told=told))


if __name__ == "__main__":
    main()
