"""The notebooks of the examples, executed as a person would execute them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = ROOT / "examples" / "notebooks"
#: A loaded machine may take long to import torch in several processes at once.
DEADLINE_S = 150

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(2 * DEADLINE_S)]


def executed(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The outputs of all cells, each as MIME type -> content; a cell that raises an exception fails the test."""
    for variable in ("JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR", "IPYTHONDIR", "MPLCONFIGDIR"):
        monkeypatch.setenv(variable, str(folder / variable))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    book = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
    NotebookClient(book, timeout=DEADLINE_S, resources={"metadata": {"path": str(folder)}}).execute()
    return [
        output.get("data", {"text/plain": output.get("text", "")})
        for cell in book.cells
        if cell.cell_type == "code"
        for output in cell.outputs
    ]


def text_of(outputs: list[dict[str, Any]]) -> str:
    return "\n".join(str(output.get("text/plain", "")) for output in outputs)


@pytest.mark.parametrize("path", sorted(NOTEBOOKS.glob("*.ipynb")), ids=lambda path: path.stem)
def test_no_outputs_are_stored_that_could_be_old(path: Path) -> None:
    cells = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    assert cells
    assert all(not cell.outputs and cell.execution_count is None for cell in cells)
    assert "Its outputs are not stored" in path.read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_first_steps_can_be_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outputs = executed("first_steps", tmp_path, monkeypatch)
    told = text_of(outputs)
    assert "6 of 6 rounds, score 0.9" in told
    assert any("<table" in str(output.get("text/html")) for output in outputs)
    assert any("image/png" in output for output in outputs)
    assert "of its test samples are classified correctly" in told
    assert (tmp_path / "first-steps" / "history.jsonl").is_file()


@pytest.mark.slow
def test_schemes_can_be_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outputs = executed("comparing_schemes", tmp_path, monkeypatch)
    told = text_of(outputs)
    assert all(name in told for name in ("alone", "fedavg", "fedgsp"))
    assert any("image/png" in output for output in outputs)
    assert (tmp_path / "compared.html").is_file()
