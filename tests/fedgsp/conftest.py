from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from fedgsp import children


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def template() -> AsyncIterator[children.Template]:
    """A template that has imported nothing, for tests that start many children."""
    async with children.template() as made:
        await made.start()
        yield made
