"""Another task, pooled for a centralised run, or with validation data: `--task benchmarks.centralised:changed`.

`--task-option of=TASK` names the task, such as `examples.lora_text:Addresses`. The other options go to that task.

- `pooled=true` puts the data of all clients into one client. A run with this client alone is centralised training: one
  model sees all samples in random order. With `--optimizer-state relayed` one optimiser goes through the whole run. As
  many rounds have the samples of a federated run in which all clients train in every round.
- `validation=true` replaces the test part of each client by a fifth of its training part, for the choice of settings.
  Training has the other four fifths, and the test part is not used.
- `seed` draws the validation part; with `seeded=true` it also goes to the task.

tests/benchmarks/test_centralised.py compares a centralised run with a loop in plain PyTorch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedgsp import ClientData, Split, Task
from fedgsp.seeds import stream
from fedgsp_node.model.nested import mapped
from fedgsp_node.tasks import load_task

VALIDATION_SHARE = 0.2


def changed(
    of: str, pooled: bool = False, validation: bool = False, seed: int = 0, seeded: bool = False, **options: str
) -> Task:
    """The task `of` with other clients or other test parts. Raises what `load_task` raises."""
    task = load_task(of, {**options, "seed": str(seed)} if seeded else options)
    own_data, count = task.data, task.num_clients

    def data(client: int) -> ClientData:
        found = own_data(client)
        return divided(found.train, stream(seed, "validation", client)) if validation else found

    def pooled_data(_: int) -> ClientData:
        found = [data(client) for client in range(count)]
        return ClientData(joined([one.train for one in found]), joined([one.test for one in found]))

    # A subclass, so that everything else stays as the task has it: the model, the loss, the optimiser and the hooks.
    members: dict[str, Any] = {"data": lambda _, client: pooled_data(client) if pooled else data(client)}
    if pooled:
        members["num_clients"] = 1
        vars(task).pop("num_clients", None)
    kind = type(task)
    task.__class__ = type(kind.__name__, (kind,), members)
    return task


def divided(part: Any, rng: np.random.Generator) -> ClientData:
    """A training part as training part and validation part; a part of one sample has an empty validation part."""
    order = rng.permutation(len(part))
    held_out = math.floor(VALIDATION_SHARE * len(part))
    return ClientData(*(taken(part, np.sort(rows)) for rows in (order[held_out:], order[:held_out])))


def taken(part: Any, rows: NDArray[np.int64]) -> Any:
    """Some samples of a part."""
    if isinstance(part, Split):
        return Split(mapped(lambda column: column[rows], part.x), mapped(lambda column: column[rows], part.y))
    return torch.utils.data.Subset(part, rows.tolist())


def joined(parts: Sequence[Any]) -> Any:
    """The samples of several parts as one part."""
    if not isinstance(parts[0], Split):
        return torch.utils.data.ConcatDataset(parts)
    return Split(stacked([part.x for part in parts]), stacked([part.y for part in parts]))


def stacked(values: Sequence[Any]) -> Any:
    """Structures of arrays or tensors, joined leaf by leaf along the first axis."""
    if isinstance(values[0], dict):
        return {name: stacked([value[name] for value in values]) for name in values[0]}
    if isinstance(values[0], tuple | list):
        return tuple(stacked(list(column)) for column in zip(*values, strict=True))
    return torch.cat(list(values)) if isinstance(values[0], torch.Tensor) else np.concatenate(values)
