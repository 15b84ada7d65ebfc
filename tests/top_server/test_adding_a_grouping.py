"""A grouping with evidence of its own is added as CONTRIBUTING says: a profile, a grouping, a scheme, a line each."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, replace

import numpy as np
import pytest

from fedgsp.errors import ConfigError
from fedgsp.parts import NoOptions, Part
from fedgsp.settings.checks import check
from fedgsp.settings.fields import setting
from fedgsp.settings.run import RunConfig
from tests.support.staged import stage
from top_server.choosing import NAMES, choose
from top_server.evidence import Evidence
from top_server.grouping import GROUPINGS, Grouping, GroupingRequest, Plan
from top_server.groups.planning import round_tasks
from top_server.profiles import PROFILES
from top_server.profiles.base import Profile
from top_server.rounds import form_teams
from top_server.schemes import SCHEMES, Scheme

#: What clients 0 to 3 find of each other.
TASTES = np.array([[0.0, 9, 1, 9], [9, 0, 9, 1], [1, 9, 0, 9], [9, 1, 9, 0]])


class Tastes(Profile[NoOptions]):
    async def gather(self, round_number: int) -> Evidence:
        clients = tuple(self.context.membership.clients)
        moods = {"mood": np.array([[10.0 + client] for client in clients])}
        return Evidence((0, 1, 2, 3), figures=moods, pairwise={"tastes": TASTES}).of(clients)


@dataclass(frozen=True, slots=True)
class TasteOptions:
    apart: float = setting(5.0, "distance from which on tastes differ", least=0)


def by_taste(request: GroupingRequest, options: TasteOptions) -> Plan:
    near = request.matrices["tastes"] < options.apart
    return Plan.from_rows({tuple(np.flatnonzero(row).tolist()) for row in near}, request)


@pytest.fixture(autouse=True)
def _added(monkeypatch: pytest.MonkeyPatch) -> None:
    row = Scheme(profile="tastes", grouping="by-taste", sampling="clients", merge="none")
    grouping = Grouping(
        help="by taste",
        code=by_taste,
        options=TasteOptions,
        needs={"profile": ("tastes",)},
        continues=True,
        kind="grouping",
        name="by-taste",
    )
    monkeypatch.setitem(PROFILES.built_in, "tastes", Part(help="tastes", code=Tastes))
    monkeypatch.setitem(GROUPINGS.built_in, "by-taste", grouping)
    monkeypatch.setitem(SCHEMES.built_in, "by-taste", row)


def test_a_grouping_is_chosen_by_its_scheme_and_can_be_replaced() -> None:
    config = RunConfig(scheme="by-taste", grouping_option={"apart": "2"})
    check(config, NAMES)
    assert choose(config) == replace(SCHEMES["by-taste"], options={"grouping": {"apart": "2"}})
    assert choose(RunConfig(scheme="by-taste", grouping="random")).continues is False


def test_wrong_options_and_a_missing_profile_are_refused_when_parts_are_chosen() -> None:
    with pytest.raises(ConfigError, match="grouping by-taste: option apart is 'much'"):
        choose(RunConfig(scheme="by-taste", grouping_option={"apart": "much"}))
    with pytest.raises(ConfigError, match="grouping by-taste needs profile tastes, and scheme hcct has ") as caught:
        choose(RunConfig(scheme="hcct", grouping="by-taste"))
    assert caught.value.remedy == "use scheme by-taste"


async def test_a_grouping_is_asked_about_present_clients_and_absent_clients_keep_their_groups() -> None:
    asked: list[GroupingRequest] = []

    async def answer(request: GroupingRequest) -> Plan:
        asked.append(request)
        return GROUPINGS["by-taste"](request)

    async with stage("none", scheme="by-taste", sampling_rate=0.5) as s:
        s.context = dataclasses.replace(s.context, assign=answer)
        evidence = await s.profile("tastes").gather(1)
        for number in range(1, 6):
            teams = await form_teams(s.context, s.progress, number, evidence)
            holdings = s.context.holdings({})
            round_tasks(s.context.scheme, s.merging, holdings, teams, evidence)
        for request in asked:
            rows = list(request.clients)
            assert request.matrices["tastes"].tolist() == TASTES[np.ix_(rows, rows)].tolist()
        ever = {client for request in asked for client in request.clients}
        assert len(ever) > len(asked[-1].clients), "else nobody was away"
        assert {client for group in teams.plan.groups for client in group} == ever
    columns = evidence.columns([3, 1])
    assert {name: column.tolist() for name, column in columns.items()} == {"mood": [13, 11]}
