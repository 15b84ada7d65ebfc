"""A run orders no other kind of work than its top server tells nodes that are checked."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedgsp.messages import Order
from fedgsp_node.policies.policy import KINDS
from fedgsp_node.worker import Worker
from tests.support.cluster import nodes, play, settings
from tests.support.managers_here import managers_here
from top_server.asked import asked
from top_server.choosing import choose
from top_server.schemes import SCHEMES

CLIENTS = 6
#: One for each way of asking; the others play on demand.
ALWAYS = ("fesem",)


@pytest.mark.e2e
@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "scheme", [name if name in ALWAYS else pytest.param(name, marks=pytest.mark.slow) for name in SCHEMES]
)
async def test_the_orders_of_a_run_are_those_that_were_told(
    scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    managers_here(monkeypatch)
    ordered, real = set[str](), Worker.carry_out

    async def carry_out(self: Worker, order: Order, *args: object) -> object:
        ordered.update(kind for kind, asks in KINDS.items() if asks(order.work))
        return await real(self, order, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(Worker, "carry_out", carry_out)
    few = {"exchanges": "20"} if SCHEMES[scheme].profile == "distances" else {}
    config = settings(
        tmp_path / "run",
        scheme=scheme,
        rounds=3,
        task_option={"clients": str(CLIENTS)},
        min_clients=CLIENTS,
        profile_option=few,
    )
    await play(config, nodes(range(CLIENTS), clients=str(CLIENTS)))
    assert ordered <= {"train", *asked(config, choose(config)).work}
    assert "train" in ordered
