"""Clients about which the questions before a round found nothing: they do not train, and the run says why."""

from __future__ import annotations

import asyncio
import dataclasses
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from benchmarks.chaos.oracle import rounds_told, unnamed
from tests.support.cluster import Finished, nodes, play, settings
from tests.support.coming_and_going import away_between
from tests.support.managers_here import managers_here
from top_server import rounds
from top_server.groups.run import survey
from top_server.record.journal import Line

STAYS, GOES = [0, 2, 4, 6], [1, 3, 5, 7]


def trained(run: Finished) -> list[list[int]]:
    """The clients of each round."""
    return [sorted(chain(*event["teams"])) for event in run.of_kind("round_started")]


async def test_a_site_that_comes_back_while_the_others_are_asked_has_missed_the_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    managers_here(monkeypatch)
    leave, left, back, joined = (asyncio.Event() for _ in range(4))
    gather = rounds.gather

    async def gather_without_it(progress: Any, profile: Any, number: int) -> Any:
        if number == 2:
            leave.set()
            await left.wait()
        return await gather(progress, profile, number)

    async def ask_until_it_is_back(context: Any, progress: Any, number: int, *asked: Any, **more: Any) -> Any:
        if number == 2:
            back.set()
            await joined.wait()
        return await survey(context, progress, number, *asked, **more)

    def watch(event: Line) -> None:
        match event:
            case {"event": "node_left", "node": "n1"}:
                left.set()
            case {"event": "node_joined", "node": "n1"} if left.is_set():
                joined.set()

    monkeypatch.setattr(rounds, "gather", gather_without_it)
    monkeypatch.setattr("top_server.profiles.base.survey", ask_until_it_is_back)
    stays, goes = nodes(STAYS, GOES)
    config = settings(tmp_path / "run", scheme="fedfa", rounds=3, min_nodes=2)
    run = await play(config, [stays], [(goes, away_between(leave, back))], watch)
    assert trained(run) == [[*range(8)], STAYS, [*range(8)]]
    (away,) = run.of_kind("clients_away")
    assert away.items() >= {"round": 2, "node": "n1", "clients": GOES}.items()
    (missed,) = run.of_kind("clients_missed")
    assert missed.items() >= {"clients": GOES, "first": 2, "last": 2, "code": "AWAY"}.items()
    assert missed["reason"] == f"node n1 was away: {away['reason']}"
    assert missed["seconds"] == pytest.approx(away["seconds"], abs=0.1)
    assert unnamed(rounds_told(run.events), run.events) == []


async def test_a_site_that_refuses_the_question_misses_every_round_for_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    managers_here(monkeypatch)
    policy = tmp_path / "policy.toml"
    policy.write_text("most_evaluations = 1\n", encoding="utf-8")
    willing, refuses = nodes(STAYS, GOES)
    refuses = dataclasses.replace(refuses, policy=str(policy))
    run = await play(settings(tmp_path / "run", scheme="ifca"), [willing, refuses])
    assert trained(run) == [STAYS, STAYS]
    (missed,) = run.of_kind("clients_missed")
    assert missed.items() >= {"clients": GOES, "first": 1, "last": 2, "code": "POLICY"}.items()
    assert missed["reason"] in {event["reason"] for event in run.of_kind("client_skipped")}
    assert unnamed(rounds_told(run.events), run.events) == []
