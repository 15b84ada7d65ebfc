"""The programs that this manager can run are those of the table that it shares with the top server."""

from __future__ import annotations

from fedgsp import programs
from group_manager.programs import PROGRAMS


def test_every_program_of_the_table_has_an_implementation_and_no_other_has() -> None:
    assert set(PROGRAMS) == set(programs.PROGRAMS)
