"""How long each client is expected to take, from the events of a run: the rule written again, plainly."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from fedgsp.task import Task
from fedgsp_node.rehearsal import training_flop


def expected_seconds(
    events: Iterable[Mapping[str, Any]], task: Task, clients: Iterable[int]
) -> Callable[[int], dict[int, float]]:
    """Round -> seconds of each client, with the turns of earlier rounds."""
    hops = [event for event in events if event["event"] == "hop_finished"]
    samples = {client: len(task.data(client).train) for client in clients}
    first = next(iter(samples))
    flop = training_flop(task.model(), torch.from_numpy(task.data(first).train.x[:1]))

    def of(number: int) -> dict[int, float]:
        rates = {}
        for client in samples:
            turns = [
                hop["turn"] / hop["samples"] for hop in hops if hop["client"] == client and hop["round"] < number
            ][-5:]
            if turns:
                rates[client] = sorted(turns)[(len(turns) - 1) // 2]
        known = sorted(rates.values())
        typical = known[(len(known) - 1) // 2] if known else flop / 567e9
        return {client: rates.get(client, typical) * count for client, count in samples.items()}

    return of
