"""Evaluation of a model on one part of a client's data."""

import itertools
import logging
from typing import Any

import torch
from torch.nn.utils.rnn import PackedSequence

from fedgsp.errors import TaskError
from fedgsp.messages import Evaluated, Failure, FailureCode
from fedgsp.task import Task, overrides
from fedgsp_node.determinism import refusal
from fedgsp_node.devices import CPU, moved
from fedgsp_node.model.nested import mapped
from fedgsp_node.samples import Samples
from fedgsp_node.training.control import Control
from fedgsp_node.users_code import judged, numbers, where

logger = logging.getLogger(__name__)

#: Limits of an evaluation batch, in samples and bytes. Activations of large batches would not fit into the cache.
BATCH_SIZE, LEAST_BATCH_SIZE, BATCH_BYTES = 256, 32, 1 << 20


def evaluate(
    module: torch.nn.Module,
    task: Task,
    samples: Samples,
    control: Control,
    device: torch.device = CPU,
) -> Evaluated:
    """The numbers of correct and of all labels, the sum of the losses over samples, and the task's further metrics.

    Raises StoppedError, and what the task and the model raise.
    """
    module.eval()
    loss_sum, together = 0.0, batch_size(samples)
    counts: list[tuple[int, int] | None] = []
    kept: list[tuple[Any, Any]] = []
    sizes: list[int] = []
    with_metrics = overrides(task, "metrics")  # they need the outputs of all samples together
    with torch.no_grad():  # in inference mode, a model could not keep what it computes here, such as positions
        for begin in range(0, len(samples), together):
            # Copies: a model or a loss may change its arguments in place, and the data must stay unchanged.
            inputs, targets = moved(samples.take(slice(begin, begin + together)), device)
            number = min(together, len(samples) - begin)  # `targets` may not tell: see `training.base.Batch`
            known = mapped(_copied, targets) if with_metrics else None
            outputs = module(inputs)
            counts.append(judged(task.correct(outputs, targets), targets, number))
            loss_sum += float(task.loss(outputs, targets)) * number
            if with_metrics:
                kept.append((mapped(on_cpu, outputs), known))
                sizes.append(number)
            control.tick()
        metrics: dict[str, float] = {}
        denominators: dict[str, float] = {}
        failed = None
        try:
            if kept:
                metrics, denominators = numbers(task.metrics(*joined(kept, sizes)), task.combine)
        except Exception as error:  # accuracy and loss remain valid
            if refusal(error):
                raise
            logger.warning("the task's metrics() failed, so they are missing in the results: %s", where(error))
            failed = Failure(FailureCode.TASK_RAISED, where(error))
    known_counts = [one for one in counts if one is not None]
    if len(known_counts) < len(counts):
        known_counts.clear()
    return Evaluated(
        sum(correct for correct, _ in known_counts),
        len(samples),
        loss_sum,
        metrics=metrics,
        judged=sum(labels for _, labels in known_counts),
        denominators=denominators,
        metrics_failed=failed,
    )


def on_cpu(value: Any) -> Any:
    """A tensor on the CPU; anything else as it is."""
    return value.cpu() if isinstance(value, torch.Tensor) else value


def _copied(value: torch.Tensor) -> torch.Tensor:
    return value.cpu().clone()


def joined(kept: list[Any], sizes: list[int]) -> Any:
    """Joins what batches of these sizes have: tensors, or tuples, lists or dicts of such; None where all have None.

    A list with one item for each sample becomes one list of all items. TaskError if parts cannot be joined.
    """
    first = kept[0]
    if isinstance(first, torch.Tensor):
        shapes = {tuple(part.shape[1:]) for part in kept}
        if not first.ndim or len(shapes) > 1:
            shown = ", ".join(map(str, [tuple(part.shape) for part in kept]))
            raise TaskError(
                f"tensors of the shapes {shown} of several batches cannot be joined for metrics()",
                "let the model return a number for each sample (value.expand(len(x)))"
                if not first.ndim
                else "pad all to one shape, or return a list with one tensor for each sample",
            )
        return torch.cat(kept)
    if isinstance(first, PackedSequence):
        raise TaskError(
            "a PackedSequence of several batches cannot be joined for metrics()",
            "let the model return a list with one tensor for each sample (torch.nn.utils.rnn.unpack_sequence)",
        )
    if isinstance(first, dict):
        return {name: joined([outputs[name] for outputs in kept], sizes) for name in first}
    if isinstance(first, list) and [len(part) for part in kept] == sizes:
        return list(itertools.chain(*kept))
    if isinstance(first, tuple | list):
        parts = [joined(list(part), sizes) for part in zip(*kept, strict=True)]
        # a named tuple takes its fields as separate arguments
        return type(first)(*parts) if hasattr(first, "_fields") else type(first)(parts)
    if first is None and not any(part is not None for part in kept):
        return None
    raise TaskError(
        f"the model returned {type(first).__name__}, which cannot be joined over batches for metrics()",
        "return tensors, or tuples, lists or dicts of them",
    )


def batch_size(samples: Samples) -> int:
    """The number of samples in an evaluation batch."""
    bytes_of_one = samples.bytes_of_one if len(samples) else 1
    return max(LEAST_BATCH_SIZE, min(BATCH_SIZE, BATCH_BYTES // max(1, bytes_of_one)))
