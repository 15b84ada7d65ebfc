"""A real Chromium, driven by Playwright, and a real server of the page for it."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from fedgsp.settings.web import WebSettings
from top_server.web.runs import Runs
from top_server.web.serving import serve

playwright = pytest.importorskip("playwright.async_api", reason="pip install playwright axe-playwright-python")


@pytest_asyncio.fixture
async def site(tmp_path: Path) -> AsyncIterator[str]:
    """The address of the page of the runs in tmp_path/runs."""
    (tmp_path / "runs").mkdir()
    ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    settings = WebSettings(listen="127.0.0.1:0")
    serving = asyncio.create_task(serve(Runs(tmp_path / "runs"), settings, None, ready.set_result))
    yield await ready
    serving.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await serving


@dataclass
class Tab:
    """A page that is open in the browser, and what it should not have done."""

    page: Any
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)


@pytest_asyncio.fixture
async def chromium() -> AsyncIterator[Any]:
    """The Chromium of the system."""
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if found is None:
        pytest.skip("no Chromium is installed: apt-get install chromium")
    async with playwright.async_playwright() as driver:
        # Its sandbox needs rights that a container does not give; it opens the pages of this test alone.
        browser = await driver.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield browser
        await browser.close()


async def opened(browser: Any, width: int = 1280, height: int = 900, scheme: str = "light") -> Tab:
    context = await browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
    tab = Tab(await context.new_page())
    tab.page.on(
        "console", lambda said: tab.complaints.append(said.text) if said.type in ("error", "warning") else None
    )
    tab.page.on("pageerror", lambda error: tab.complaints.append(str(error)))
    tab.page.on("requestfailed", lambda request: tab.complaints.append(f"{request.url}: {request.failure}"))
    tab.page.on("request", lambda request: tab.requests.append(request.url))
    return tab
