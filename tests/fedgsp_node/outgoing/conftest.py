from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.outgoing_steps import forget, install


@pytest.fixture(autouse=True)
def _steps_of_a_package(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    folder: Path = tmp_path_factory.mktemp("packages")
    install(folder, monkeypatch)
    yield
    monkeypatch.undo()
    forget()
