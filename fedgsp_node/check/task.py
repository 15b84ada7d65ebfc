"""Judges what was found of the task, of the data of the clients, and of the model."""

from __future__ import annotations

import re

from fedgsp_node.check.facts import Data, Facts, Model
from fedgsp_node.check.finding import Finding, bad, good, warning

#: Clients without usable data of which the line has the errors.
MOST_TOLD = 3
SLOW = "give a longer --data-timeout, or make data() of the task faster"


def judge_task(task: str, facts: Facts) -> Finding:
    """A task that could be loaded."""
    return good(f"{task} is loaded")


def judge_data(data: Data, facts: Facts) -> Finding:
    """The data of the hosted clients: those of every client have to be usable."""
    train, test = (sum(getattr(one, f"{part}_samples") for one in data.sizes.values()) for part in ("train", "test"))
    read = f"{len(data.sizes)} of {data.wanted} clients have {train} training and {test} test samples"
    if data.failed:
        shown = list(data.failed.items())[:MOST_TOLD]
        # Errors that differ in the number of the client alone are one error, with the words of the first client.
        told = {_without(client, error.what): error.what for client, error in reversed(shown)}
        more = [f"{len(data.failed) - MOST_TOLD} more clients"] if len(data.failed) > MOST_TOLD else []
        who = ", ".join(str(client) for client, _ in shown)
        words = f"data of client {who} cannot be used: {'; '.join([*reversed(told.values()), *more])} ({read})"
        return bad(words, next(iter(data.failed.values())).remedy)
    if len(data.sizes) < data.wanted:
        return bad(f"not all data were read within {facts.data_timeout:g} s: {read}", SLOW)
    return good(f"{read}, read in {data.seconds:.1f} s; a check sends no counts to the top server")


def _without(client: int, words: str) -> str:
    """The words about a client without its number, and without its name, which stands after the number."""
    return re.sub(rf"\b{client}\b(?: \([^()]*\))?", "", words)


def judge_model(model: Model, facts: Facts) -> Finding:
    """The model, tried on two samples of a client."""
    words = f"{model.tensors} tensors, {model.size / 1e6:.3g} MB; it works on two samples"
    if model.class_counts_failed is not None:
        return warning(
            f"{words}, but the task has no class counts: {model.class_counts_failed.detail}",
            "correct class_counts(), or the data that it reads; schemes without class counts need no change",
        )
    return good(words)
