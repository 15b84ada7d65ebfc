"""Per-FedAvg (A. Fallah and others, NeurIPS 2020, first order; section 6): trains a good start for fine-tuning."""

import torch

from fedgsp.trainings import SMALLEST_BATCH
from fedgsp_node.devices import moved
from fedgsp_node.model.nested import leaves, mapped
from fedgsp_node.training import finetune
from fedgsp_node.training.base import Algorithm, Batch, LocalWork, Result
from fedgsp_node.training.steps import batch_of, batches, copy, descent


def train(work: LocalWork) -> Result:
    """Local epochs; for each batch u = w - rate grad(w; first half), then w = w - rate grad(u; second half).

    Batches below SMALLEST_BATCH samples are skipped. If all are skipped, the model does not change; the result is
    its loss and one step, because FedNova divides by the number of steps.
    """
    rate, count = work.settings.learning_rate, 0
    with descent(work) as steps:
        own = [parameter.data for parameter in steps.parameters]
        ahead = [torch.empty_like(parameter) for parameter in steps.parameters]
        for batch in batches(work, work.settings.local_epochs):
            if batch.samples < SMALLEST_BATCH:
                continue
            half = batch.samples // 2
            copy(steps.parameters, ahead)
            with steps.at(ahead):
                steps.step(_some(work, batch, slice(half)), rate)
                steps.step(_some(work, batch, slice(half, None)), rate, onto=own)
            count += 1
    if count:
        return Result(steps.loss, count)
    work.module.eval()  # batch statistics of so few samples would be useless
    with torch.no_grad():
        x, y = moved(work.samples.whole(), work.device)
        return Result(float(work.task.loss(work.module(x), y)), 1)


def _some(work: LocalWork, batch: Batch, some: slice) -> Batch:
    """Some samples of a batch. They are collated anew if the tensors of the batch do not have a row for each."""
    rows, content = batch.rows[some], (batch.x, batch.y)
    if all(leaf.ndim and len(leaf) == batch.samples for leaf in leaves(content)):
        x, y = mapped(lambda leaf: leaf[some], content)
        return Batch(x, y, rows)
    return batch_of(work, rows)


PER_FEDAVG = Algorithm(train, in_place=True, adapt=finetune.adapt)
