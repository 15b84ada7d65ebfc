from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest_asyncio

from fedgsp.processes.children import Template


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def template() -> AsyncIterator[Template]:
    """A template that has imported nothing, for tests that start many children."""
    async with aclosing(Template([])) as made:
        await made.start()
        yield made
