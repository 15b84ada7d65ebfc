"""A node that is asked to end while code of another package hangs in it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from signal import SIGTERM

import pytest

from tests.support.outgoing_steps import forget, install
from tests.support.processes import node, top_server

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]

DEADLINE_S = 120.0
OPTIONS = ["--task-option", "clients=6"]


@pytest.fixture(autouse=True)
def _steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    install(tmp_path / "packages", monkeypatch)
    yield
    monkeypatch.undo()
    forget()


async def test_a_node_whose_outgoing_step_hangs_ends_when_it_is_asked_to(tmp_path: Path) -> None:
    flags = ["--scheme", "fedavg", "--rounds", "2", "--sampling-rate", "1", "--outgoing", "hanging", *OPTIONS]
    async with top_server(tmp_path, *flags) as run:
        address = (await run.event("listening", DEADLINE_S))["address"]
        async with node(tmp_path, address, *OPTIONS, "--clients", "0-5") as host:
            await host.line("a step hangs", DEADLINE_S)
            host.send(SIGTERM)
            assert await host.ended(30) == 143, host.errors
            shown = [line for line in host.lines if "an outgoing step was cancelled" in line]
            assert len(shown) == 1
            assert "assert MAY_GO_ON.wait(60)" in shown[0]
            assert any("the process ends without it" in line for line in host.lines)
