"""Requests to the web page, in the test's own process, and what comes back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx

from top_server.web.app import Pages
from top_server.web.guard import Guard
from top_server.web.runs import Runs

KEY = "a-key-that-nobody-guesses"
BASE = "http://127.0.0.1:7080"


def client(folder: Path, key: str = KEY) -> httpx.AsyncClient:
    """A browser of the page of the runs in a folder, behind its door."""
    app = Guard(Pages(Runs(folder)).app(), {"127.0.0.1", "localhost", "[::1]"}, key)
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=f"{BASE}/{key}/")


def messages(text: str) -> list[dict[str, Any]]:
    """The messages in a stream of server-sent events: id, event and data of each."""
    found = []
    for block in text.split("\n\n")[:-1]:
        fields = dict(line.split(": ", 1) for line in block.split("\n") if not line.startswith(":"))
        if fields:
            found.append({**fields, "data": json.loads(fields["data"])})
    return found
