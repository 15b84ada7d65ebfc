"""Hooks of MkDocs for the site of docs/: they replace links to source files, and refuse content from other hosts.

Pages of docs/ link to files of the repository. GitHub can show these files, but the site cannot. In the site, such a
link is replaced by its text. A link to a file that does not exist stops the build.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError

#: A Markdown link, but not a picture, whose path begins with `../`.
LEAVING = re.compile(r"(?<!!)\[([^\]]+)\]\(((?:\.\./)+[^)#\s]*)(#[^)\s]*)?\)")
#: Addresses on other hosts that a browser loads by itself for a page or a style sheet.
LOADED = re.compile(
    r"""<(?:script|img|iframe|source)\b[^>]*\bsrc=["']?(?:https?:)?//|"""
    r"""<link\b[^>]*\bhref=["']?(?:https?:)?//|(?:@import\s+|url\()["']?(?:https?:)?//"""
)


def on_page_markdown(markdown: str, *, page: Any, config: Any, **_: Any) -> str:
    """The page's text, with links to files outside docs/ replaced by their text; PluginError for a missing file."""
    folder, docs = Path(page.file.abs_src_path).parent, Path(config["docs_dir"]).resolve()

    def replaced(link: re.Match[str]) -> str:
        target = (folder / link[2]).resolve()
        if target.is_relative_to(docs):
            return link[0]
        if not target.exists():
            raise PluginError(f"{page.file.src_uri} links to {link[2]}, which does not exist")
        return link[1]

    return LEAVING.sub(replaced, markdown)


def on_post_build(*, config: Any, **_: Any) -> None:
    """Raises PluginError if a page or a style sheet of the site loads something from another host."""
    for path in Path(config["site_dir"]).rglob("*"):
        if path.suffix in (".html", ".css") and (found := LOADED.search(path.read_text(encoding="utf-8"))):
            raise PluginError(f"{path.name} loads content from another host: {found[0]}")
