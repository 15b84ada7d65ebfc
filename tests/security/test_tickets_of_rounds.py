"""The top server gives a model only for a ticket of the round that is being played, also after a local run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedgsp.connections.channels import Channels
from fedgsp.identity import TOP_SERVER, node
from fedgsp.security.tickets import Issuer, Ticket, Verb
from fedgsp.tensors.weights import WeightsError
from fedgsp.transfers.model_calls import fetch
from tests.support import cluster
from tests.support.holders import WEIGHTS
from top_server import rounds
from top_server.run import RunContext

READER = node("n0")


async def gets(context: RunContext, issuer: Issuer, run: str, number: int) -> bool:
    """Whether a node gets a model of the top server for a ticket of this round."""
    context.models._store.put("model", WEIGHTS)
    ticket = issuer.ticket(TOP_SERVER, Ticket(Verb.FETCH, "model", READER, run, number))
    refused = "INTERNAL"  # gRPC says so now and then if a call is refused while its question is written
    while "INTERNAL" in refused:
        async with Channels() as channels:
            channel = await channels.to(context.address, TOP_SERVER)
            try:
                await fetch(channel, "model", None, 1 << 30, promised=False, ticket=ticket)
                return True
            except WeightsError as error:
                refused = error.failure.detail
    return "PERMISSION_DENIED" not in refused


async def test_a_ticket_of_an_earlier_round_or_of_the_local_run_gets_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    play, got = rounds.play, dict[tuple[str, int], list[bool]]()

    async def attacked(context: RunContext, *rest: Any) -> Any:
        number, run = rest[3], context.run_id
        issuer = context.membership._issuer
        asked = [(run, number), (run, number - 1), (f"{run}.alone", number)]
        got[run.partition(".")[2], number] = [await gets(context, issuer, *ticket) for ticket in asked]
        return await play(context, *rest)

    monkeypatch.setattr(rounds, "play", attacked)
    settings = cluster.settings(tmp_path / "run", rounds=2, local_run=tmp_path / "alone")
    await cluster.play(settings, cluster.nodes(range(4), range(4, 8), peers=False))
    # Round 0 is that of initial models, and lasts as long as its run.
    assert got["", 1] == [True, True, False]
    assert got["", 2] == [True, False, False]
    assert got["alone", 2][:2] == [True, False]
