"""`fedgsp-node receipts` verifies all parts of what a node has kept."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedgsp.errors import DataError
from fedgsp.security.chained_parts import ChainedParts, part_of, parts_of
from fedgsp_node.cli import app


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "receipts.jsonl"
    with ChainedParts(found, 1000) as file:
        for number in range(40):
            file.append({"answered": "trained"} if number % 2 else {"failed": "POLICY"})
    return found


def test_all_parts_are_counted(path: Path) -> None:
    result = CliRunner().invoke(app, ["receipts", str(path.parent)])
    assert result.exit_code == 0, result.output
    assert f"40 lines in {len(parts_of(path)) + 1} files, and the chain holds" in result.output
    assert "failed: 20" in result.output
    assert "trained: 20" in result.output


def test_a_missing_part_is_named(path: Path) -> None:
    first, part = parts_of(path)[1]
    part.unlink()
    result = CliRunner().invoke(app, ["receipts", str(path.parent)])
    assert isinstance(result.exception, DataError)
    assert f"line {first}: it is missing" in str(result.exception)


def test_a_last_line_that_is_being_written_is_no_damage(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b'{"line": 41, ')
    result = CliRunner().invoke(app, ["receipts", str(path.parent)])
    assert result.exit_code == 0
    assert "the last line is not whole" in result.output


def test_a_folder_without_receipts_is_an_error(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "nowhere"):
        result = CliRunner().invoke(app, ["receipts", str(folder)])
        assert isinstance(result.exception, DataError)
    assert not part_of(tmp_path / "receipts.jsonl", 1).exists()
