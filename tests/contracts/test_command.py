"""The command that checks parts: one line for each fault, and no traceback."""

from __future__ import annotations

import pytest

from tests.contracts import __main__ as command


async def check_wrong(name: str) -> None:
    assert name == "right", "it is\nwrong"


async def check_raising(name: str) -> None:
    raise KeyError(name)


async def check_two(name: str) -> None:
    raise ExceptionGroup("both", [AssertionError("first"), AssertionError("second")])


async def check_expected(name: str) -> None:
    with pytest.raises(ValueError, match=name):
        pass


async def check_silent(name: str) -> None:
    assert name == "right"


@pytest.mark.parametrize(
    ("part", "told"),
    [
        ("wrong=it", ["wrong it: it is wrong"]),
        ("wrong=right", ["wrong right keeps its contract"]),
        ("two=it", ["two it: first", "two it: second"]),
        ("raising=it", ["raising it: KeyError: 'it' (test_command.py:"]),
        ("silent=it", ["silent it: "]),
        ("expected=it", ["expected it: Failed: DID NOT RAISE ValueError with pytest.raises(ValueError"]),
        ("colour=red", ["colour=red: write KIND=NAME, with a KIND of wrong, "]),
        ("grouping", ["grouping: write KIND=NAME"]),
    ],
)
def test_a_fault_is_one_line(
    part: str, told: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    checks = (check_wrong, check_raising, check_two, check_silent, check_expected)
    monkeypatch.setattr(command, "CHECKS", {check.__name__.removeprefix("check_"): check for check in checks})
    code = command.main(part)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(told)
    assert all(line.startswith(what) for line, what in zip(lines, told, strict=True))
    assert code == (0 if "keeps" in told[0] else 1)
