"""Local training algorithms: one file each, one line here."""

from __future__ import annotations

from collections.abc import Callable

from fedgsp_node.training import sgd

ALGORITHMS: dict[str, Callable[..., float]] = {
    "sgd": sgd.train,
}
