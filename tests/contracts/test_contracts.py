"""Every part of every table keeps the contract of its kind."""

from __future__ import annotations

import pytest

from fedgsp.tasks import TASKS
from tests.contracts.declarations import check_declaration, check_light
from tests.contracts.kinds import CHECKS
from top_server.choosing import TABLES
from top_server.cli import LISTED

#: Tasks whose data are not in every installation have tests of their own.
BUILT_IN = {**{kind: list(table.built_in) for kind, table in LISTED.items()}, "task": ["digits"]}
#: Questions that the scripted nodes of the check cannot answer without more than a start.
NEED_MORE = ("collect", "compare", "discriminate", "distance", "forget", "initialise")
UNCHECKED = {("program", name) for name in NEED_MORE}


@pytest.mark.parametrize(
    ("kind", "name"),
    [(kind, name) for kind, names in BUILT_IN.items() for name in names if (kind, name) not in UNCHECKED],
)
async def test_every_part_keeps_the_contract_of_its_kind(kind: str, name: str) -> None:
    await CHECKS[kind](name)


@pytest.mark.parametrize("name", NEED_MORE)
def test_every_question_is_declared(name: str) -> None:
    check_declaration(TABLES["program"], name)


@pytest.mark.parametrize("name", TASKS.built_in)
def test_every_task_is_declared(name: str) -> None:
    check_declaration(TASKS, name)


def test_what_is_declared_needs_no_torch() -> None:
    check_light({kind: names[0] for kind, names in BUILT_IN.items()})


@pytest.mark.parametrize("kind", TABLES)
def test_what_a_part_needs_is_there_to_be_chosen(kind: str) -> None:
    for part in TABLES[kind].built_in.values():
        for other, names in part.needs.items():
            assert set(names) <= set(TABLES[other])
