"""The site of docs/: that its build refuses what it should, and lets no page load anything from elsewhere."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from mkdocs.commands import build as mkdocs_build
from mkdocs.config import load_config
from mkdocs.exceptions import Abort

ROOT = Path(__file__).resolve().parents[1]
NAV = "nav:\n  - Home: index.md\n  - Other: other.md\n"
PAGES = {"index.md": "# Home\n\n[there](other.md#there)\n", "other.md": "# Other\n\n## There\n"}


def build(folder: Path, pages: dict[str, str]) -> None:
    """Builds a site of these pages, with everything but the navigation as in mkdocs.yml; Abort for a fault."""
    settings = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("nav:\n  - Overview")[0]
    (folder / "mkdocs.yml").write_text(settings + NAV, encoding="utf-8")
    (folder / "scripts").mkdir()
    shutil.copy(ROOT / "scripts" / "site_hooks.py", folder / "scripts")
    (folder / "docs").mkdir()
    for name, text in pages.items():
        (folder / "docs" / name).write_text(text, encoding="utf-8")
    mkdocs_build.build(load_config(str(folder / "mkdocs.yml"), strict=True))


def test_pages_without_faults_are_built_and_links_to_source_files_become_text(tmp_path: Path) -> None:
    home = PAGES["index.md"] + "\n[`mkdocs.yml`](../mkdocs.yml)\n"
    build(tmp_path, {**PAGES, "index.md": home})
    page = (tmp_path / "build" / "site" / "index.html").read_text(encoding="utf-8")
    assert "<code>mkdocs.yml</code>" in page
    assert 'href="../mkdocs.yml"' not in page


@pytest.mark.parametrize(
    ("fault", "name", "said"),
    [
        ("[gone](gone.md)", "index.md", "gone.md"),
        ("[gone](other.md#gone)", "index.md", "#gone"),
        ("[gone](../gone.py)", "index.md", "gone.py"),
        ("![gone](gone.png)", "index.md", "gone.png"),
        ("# In no navigation", "orphan.md", "orphan.md"),
        ('<img src="https://example.org/picture.png">', "index.md", "another host"),
    ],
)
def test_a_fault_stops_the_build(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, fault: str, name: str, said: str
) -> None:
    with pytest.raises(Abort):
        build(tmp_path, {**PAGES, name: f"{PAGES.get(name, '')}\n{fault}\n"})
    assert said in caplog.text
