"""Group managers that cannot be started, because the machine lacks something."""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path
from typing import Any, NoReturn

import pytest

from fedgsp.connections.channels import Channels
from fedgsp.errors import PeerError
from tests.support.callers import ISSUER
from tests.support.recorder import Recorder
from top_server.managers import here
from top_server.managers.pool import manager_pool


def lacking(*_: Any, **__: Any) -> NoReturn:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


async def test_the_record_has_the_reason_and_another_manager_takes_the_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = Recorder()
    async with (
        Channels() as channels,
        here.launching_here("127.0.0.1", None, tmp_path, ["--insecure"], ISSUER.run_key) as launcher,
        manager_pool(launcher, channels, recorder, ISSUER) as pool,
    ):
        first, second = await pool.ensure(2)
        monkeypatch.setattr(asyncio, "open_unix_connection", lacking)
        assert await pool.replace(first) is second
        (told,) = recorder.of_kind("manager_not_started")
        assert told["manager"] == "m2"
        assert "Too many open files" in told["reason"]
        with pytest.raises(PeerError, match="Too many open files"):
            await pool.replace(second)
        monkeypatch.undo()
        (third,) = await pool.ensure(1)
        assert not third.process.over
