"""How good the models of a round are, read from its row in the history. A larger score is always better."""

from collections.abc import Mapping
from typing import Any

from fedgsp.scoring import ACCURACY


def scored_by(row: Mapping[str, Any]) -> str:
    """What rates the models: "accuracy", or what the task names, such as "f1" or "-mae"."""
    return str(row.get("scored_by") or ACCURACY)


def score_of(row: Mapping[str, Any]) -> float | None:
    """The score over all clients; None if the round was not evaluated, or only a part of the clients answered."""
    value = row.get("score" if row.get("scored_by") else "accuracy")
    return None if value is None else float(value)


def scores_of(row: Mapping[str, Any]) -> dict[int, float]:
    """The score of each client; empty unless the row tells clients apart."""
    found = row.get("score_per_client" if row.get("scored_by") else "accuracy_per_client") or {}
    return {int(client): float(value) for client, value in found.items() if value is not None}


def rating_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """The columns of a row that say what rates the models, and how they are rated; empty if accuracy does."""
    return {name: row[name] for name in ("scored_by", "score") if name in row}
