"""Events, display and history number and count the groups of a round alike, also where clients train alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.cluster import nodes, play, settings
from tests.support.managers_here import managers_here
from top_server.view.state import ViewState


async def test_clients_that_train_alone_are_groups_with_numbers_like_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    managers_here(monkeypatch)
    config = settings(tmp_path, scheme="independent", grouping="fixed", grouping_option={"groups": "4/1,2/0,5"})
    run = await play(config, nodes((0, 1), (2, 3, 4, 5, 6)))
    teams = [[4], [1, 2], [0, 5], [3], [6]]
    for row, started in zip(run.rows, run.of_kind("round_started"), strict=True):
        number = row["round"]
        assert started["teams"] == teams
        assert started["sampled_groups"] == row["sampled_groups"] == len(teams)
        hops = [event for event in run.of_kind("hop_finished") if event["round"] == number]
        assert {hop["client"]: teams[hop["group"]] for hop in hops} == {c: team for team in teams for c in team}
        assert all(hop["members"] == len(teams[hop["group"]]) > hop["position"] for hop in hops)
        ended = [event["group"] for event in run.of_kind("group_finished") if event["round"] == number]
        assert sorted(ended) == list(range(len(teams)))


async def test_the_display_ends_with_every_group_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    managers_here(monkeypatch)
    run = await play(settings(tmp_path, scheme="independent", rounds=1), nodes((0, 1, 2)))
    state = ViewState()
    for event in run.events:
        state.apply(event)
    assert [(group.number, group.hops, group.members, group.state) for group in state.groups.values()] == [
        (number, 1, 1, "finished") for number in range(3)
    ]
