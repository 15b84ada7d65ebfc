"""A machine that lacks what a process needs: the reason is told, and what runs goes on."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from contextlib import aclosing
from typing import Any, NoReturn

import pytest

from fedgsp.errors import PeerError, not_started
from fedgsp.processes.children import Template, ready_line
from tests.support.execute import child

WAITS = ["tests.support.waiting"]
#: Number of an error -> a part of what to do.
REMEDIES = {errno.EAGAIN: "ulimit -u", errno.ENOMEM: "free memory", errno.EMFILE: "ulimit -n", errno.EIO: "machine"}


def lacking(number: int) -> Any:
    def fail(*_: object, **__: object) -> NoReturn:
        raise OSError(number, os.strerror(number))

    return fail


@pytest.mark.parametrize("number", REMEDIES)
async def test_a_template_that_cannot_start_tells_the_reason(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    async with aclosing(Template([])) as own:
        with monkeypatch.context() as patch:
            patch.setattr(asyncio, "create_subprocess_exec", lacking(number))
            with pytest.raises(PeerError, match=os.strerror(number)) as caught:
                await own.start()
        assert REMEDIES[number] in caught.value.remedy
        async with child(own, WAITS) as process:  # later there is room
            assert await ready_line(process, "child", None) == "[]"


@pytest.mark.parametrize(("module", "name"), [(socket, "socketpair"), (asyncio, "open_unix_connection"), (os, "open")])
async def test_a_child_without_a_descriptor_is_told(
    module: Any, name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    async with aclosing(Template([])) as own:
        await own.start()
        with monkeypatch.context() as patch:
            patch.setattr(module, name, lacking(errno.EMFILE))
            with pytest.raises(PeerError, match="Too many open files") as caught:
                await own.spawn(WAITS, tmp_path / "log")
        assert "ulimit -n" in caught.value.remedy
        async with child(own, WAITS) as process:
            assert await ready_line(process, "child", None) == "[]"


async def test_a_request_that_cannot_be_sent_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async with aclosing(Template([])) as own:
        await own.start()
        monkeypatch.setattr(socket, "send_fds", lacking(errno.ETOOMANYREFS))
        with pytest.raises(PeerError, match="cannot be started"):
            await asyncio.wait_for(own.spawn(WAITS, None), 30)


async def test_a_fork_that_fails_ends_neither_the_template_nor_its_children() -> None:
    async with (
        aclosing(Template(["tests.support.fork_fails_once"])) as own,
        child(own, WAITS) as first,
    ):
        assert await ready_line(first, "child", None) == "[]"
        with pytest.raises(PeerError, match="cannot be started: Resource temporarily unavailable") as caught:
            await own.spawn(WAITS, None)
        assert "ulimit -u" in caught.value.remedy
        async with child(own, WAITS) as third:
            assert await ready_line(third, "child", None) == "[]"
        assert first.returncode is None


def test_another_reason_has_the_remedy_of_the_caller() -> None:
    error = not_started("srun", FileNotFoundError(errno.ENOENT, "No such file"), "see if Slurm is installed")
    assert str(error) == "srun cannot be started: No such file; see if Slurm is installed"
