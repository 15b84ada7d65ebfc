"""Pipes: who can open which, how many there are, and what both ends notice."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from fedgsp.transfers import pipes
from fedgsp.transfers.piped import until_readable
from fedgsp.transfers.pipes import PIPE_BYTES, Outlet
from tests.support.handed_over import an_outlet, pipes_open, put, taken

pytestmark = pytest.mark.skipif(not pipes.machine(), reason="no pipes of this kind on this system")


@pytest.fixture
def outlet() -> Iterator[Outlet]:
    with contextlib.closing(an_outlet()) as outlet:
        yield outlet


async def test_what_is_put_is_taken_however_large_it_is(outlet: Outlet) -> None:
    content = np.random.default_rng(0).integers(0, 256, 3 * PIPE_BYTES + 12_345, dtype=np.uint8)
    with contextlib.closing(pipes.opened(outlet.name)) as inlet:
        outlet.was_opened()
        _, came = await asyncio.gather(put(outlet, content), taken(inlet, content.nbytes))
    assert came == content.tobytes()


async def test_a_part_of_a_buffer_is_put_from_where_it_begins(outlet: Outlet) -> None:
    content = np.arange(256, dtype=np.uint8)
    with contextlib.closing(pipes.opened(outlet.name)) as inlet:
        await put(outlet, content[3:10])
        assert await taken(inlet, 7) == bytes(range(3, 10))
        assert inlet.take(memoryview(bytearray(1))) is None


async def test_an_empty_part_puts_nothing(outlet: Outlet) -> None:
    with contextlib.closing(pipes.opened(outlet.name)) as inlet:
        await put(outlet, np.zeros(0, np.uint8))
        assert inlet.take(memoryview(bytearray(1))) is None


async def test_a_receiver_notices_that_its_sender_has_gone() -> None:
    outlet = an_outlet()
    with contextlib.closing(pipes.opened(outlet.name)) as inlet:
        await put(outlet, np.ones(3, np.uint8))
        waiting = asyncio.create_task(until_readable(inlet.descriptor))
        outlet.close()
        await waiting
        assert await taken(inlet, 3) == b"\1\1\1"
        assert inlet.take(memoryview(bytearray(1))) == 0


async def test_a_sender_notices_that_its_receiver_has_gone(outlet: Outlet) -> None:
    inlet = pipes.opened(outlet.name)
    outlet.was_opened()
    putting = asyncio.create_task(put(outlet, np.ones(2 * PIPE_BYTES, np.uint8)))
    while not putting.done() and len(await taken(inlet, 1)) == 0:
        pass
    inlet.close()
    with pytest.raises(BrokenPipeError):
        await putting


async def test_a_wait_that_is_cancelled_leaves_nothing_in_the_loop(outlet: Outlet) -> None:
    with contextlib.closing(pipes.opened(outlet.name)) as inlet:
        waits = [
            asyncio.create_task(until_readable(inlet.descriptor)),
            asyncio.create_task(put(outlet, np.ones(2 * PIPE_BYTES, np.uint8))),
        ]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)  # bytes came; the pipe is full
        waits[1].cancel()
        await asyncio.gather(*waits, return_exceptions=True)
    loop = asyncio.get_running_loop()
    assert not loop.remove_reader(inlet.descriptor)
    assert not loop.remove_writer(outlet.descriptor)


def test_an_end_that_was_closed_takes_and_puts_nothing(outlet: Outlet) -> None:
    """Its number may be another file now."""
    inlet = pipes.opened(outlet.name)
    outlet.was_opened()
    assert outlet.put(np.ones(3, np.uint8)) == 3
    inlet.close()
    outlet.close()
    into = memoryview(bytearray(3))
    assert inlet.take(into) == 0
    assert bytes(into) == bytes(3)
    with pytest.raises(BrokenPipeError):
        outlet.put(np.ones(3, np.uint8))


async def test_an_end_is_not_closed_while_a_thread_uses_it(outlet: Outlet, monkeypatch: pytest.MonkeyPatch) -> None:
    inlet, loop = pipes.opened(outlet.name), asyncio.get_running_loop()
    outlet.was_opened()
    reads, go_on, readv = asyncio.Event(), threading.Event(), os.readv

    def slow(descriptor: int, into: list[memoryview]) -> int:
        loop.call_soon_threadsafe(reads.set)
        assert go_on.wait(10)
        return readv(descriptor, into)

    monkeypatch.setattr(os, "readv", slow)
    outlet.put(np.ones(3, np.uint8))
    into = memoryview(bytearray(3))
    taking = asyncio.create_task(asyncio.to_thread(inlet.take, into))
    await reads.wait()
    closing = asyncio.create_task(asyncio.to_thread(inlet.close))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.shield(closing), 0.1)
    os.fstat(inlet.descriptor)
    go_on.set()
    assert await taking == 3
    await closing
    assert bytes(into) == b"\1\1\1"


def test_there_are_not_many_at_once() -> None:
    before = pipes_open()
    with contextlib.ExitStack() as stack:
        names = {stack.enter_context(contextlib.closing(an_outlet())).name for _ in range(pipes.MOST)}
        assert len(names) == pipes.MOST
        assert pipes.offer() is None
    assert pipes_open() == before
    an_outlet().close()


@pytest.mark.parametrize("lacks", ["pipe2", "memfd_create"])
def test_a_pipe_that_cannot_be_made_leaves_no_descriptor(lacks: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: Any) -> int:
        raise OSError(24, "too many open files")

    before = pipes_open()
    monkeypatch.setattr(os, lacks, none)
    for _ in range(pipes.MOST + 1):
        assert pipes.offer() is None
    assert pipes_open() == before


def test_nothing_is_opened_where_only_the_network_is_allowed(outlet: Outlet) -> None:
    pipes.choose("network")
    try:
        with pytest.raises(OSError, match="of this machine"):
            pipes.opened(outlet.name)
    finally:
        pipes.choose("auto")


@pytest.mark.parametrize(
    "name", ["", "1", "1/2", "../../etc/passwd", "1/2/" + "0" * 31, "0/1/" + "0" * 32, "x" * 10_000]
)
def test_a_name_that_is_none_opens_nothing(name: str) -> None:
    with pytest.raises(OSError, match="names no pipe of this machine"):
        pipes.opened(name)


def test_only_a_pipe_of_that_token_is_opened(outlet: Outlet, tmp_path: Any) -> None:
    """Otherwise a peer could make this process take bytes from any pipe of its user."""
    token = "0" * 32
    other = tmp_path / f"memfd:fedgsp-{token}"
    other.write_bytes(b"1 2")
    reading, writing = os.pipe()
    process, number, _ = outlet.name.split("/")
    with other.open("rb") as file:
        for descriptor in (int(number), file.fileno(), reading):
            with pytest.raises(OSError, match=r"is not /memfd:fedgsp-0{32}"):
                pipes.opened(f"{process}/{descriptor}/{token}")
    os.close(reading)
    os.close(writing)
    with pytest.raises(FileNotFoundError):
        pipes.opened(f"{process}/{1 << 20}/{token}")


@pytest.mark.parametrize("told", [b"", b"pipe", b"1", b"-1 5", b"1 2 3", b"9" * 64])
def test_a_file_that_does_not_tell_of_a_pipe_opens_nothing(told: bytes) -> None:
    token = "a" * 32
    card = os.memfd_create(f"fedgsp-{token}")
    os.write(card, told)
    try:
        with pytest.raises(OSError, match="does not tell of a pipe"):
            pipes.opened(f"{os.getpid()}/{card}/{token}")
    finally:
        os.close(card)


def test_another_pipe_with_the_same_number_is_not_opened() -> None:
    """The one of that number may be closed, and another one have its number."""
    token = "a" * 32
    reading, writing = os.pipe()
    card = os.memfd_create(f"fedgsp-{token}")
    os.write(card, b"%d %d" % (reading, os.fstat(reading).st_ino + 1))
    try:
        with pytest.raises(OSError, match=r"is not pipe:"):
            pipes.opened(f"{os.getpid()}/{card}/{token}")
    finally:
        for descriptor in (reading, writing, card):
            os.close(descriptor)


def test_nobody_else_opens_a_pipe_that_was_opened(outlet: Outlet) -> None:
    pipes.opened(outlet.name).close()
    outlet.was_opened()
    with pytest.raises(FileNotFoundError):
        pipes.opened(outlet.name)


def test_a_pipe_with_a_name_in_the_file_system_is_not_opened(tmp_path: Any) -> None:
    """Root could open a pipe of somebody else, which its peer may not read."""
    token, path = "a" * 32, tmp_path / "pipe"
    os.mkfifo(path)
    named, card = os.open(path, os.O_RDWR | os.O_NONBLOCK), os.memfd_create(f"fedgsp-{token}")
    os.write(card, b"%d %d" % (named, os.fstat(named).st_ino))
    try:
        with pytest.raises(OSError, match=r"is not pipe:"):
            pipes.opened(f"{os.getpid()}/{card}/{token}")
    finally:
        os.close(named)
        os.close(card)


def test_a_pipe_of_another_user_is_not_opened(outlet: Outlet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(OSError, match="of this user"):
        pipes.opened(outlet.name)


def test_a_child_that_is_forked_keeps_no_end_open(outlet: Outlet, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise nobody would notice that this process has gone while its child lives."""
    inlet = pipes.opened(outlet.name)
    reads, go_on = threading.Event(), threading.Event()

    def slow(*_: object) -> int:
        reads.set()
        assert go_on.wait(10)
        return 0

    monkeypatch.setattr(os, "readv", slow)
    taking = threading.Thread(target=inlet.take, args=(memoryview(bytearray(1)),))
    taking.start()
    assert reads.wait(10)
    child = os.fork()
    if not child:
        closed = 0
        for descriptor in (outlet.descriptor, inlet.descriptor):
            try:
                os.fstat(descriptor)
            except OSError:
                closed += 1
        os._exit(closed)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 2
    os.fstat(outlet.descriptor)
    go_on.set()
    taking.join()
    inlet.close()


def test_a_program_that_is_started_inherits_no_end(outlet: Outlet) -> None:
    with contextlib.closing(pipes.opened(outlet.name)) as inlet:
        assert not os.get_inheritable(outlet.descriptor)
        assert not os.get_inheritable(inlet.descriptor)


def test_an_end_is_closed_once(outlet: Outlet) -> None:
    """Its number may be that of another file by then."""
    inlet = pipes.opened(outlet.name)
    for end in (inlet, outlet):
        end.close()
        number = os.open("/dev/null", os.O_RDONLY)
        os.dup2(number, end.descriptor)
        end.close()
        os.fstat(end.descriptor)
        for descriptor in {number, end.descriptor}:
            os.close(descriptor)


def test_a_lack_that_passes_is_not_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: Any) -> int:
        raise OSError(24, "too many open files")

    here = pipes.machine()
    pipes._machine.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(os, "pipe2", none)
        assert pipes.machine() == ""
    assert pipes.machine() == here


def test_another_network_is_another_machine() -> None:
    ours = pipes.machine()
    code = "from fedgsp.transfers import pipes; print(pipes.machine())"
    same = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert same.stdout.strip() == ours
    other = subprocess.run(
        ["unshare", "--net", sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    if other.returncode:
        pytest.skip(f"no networks of one's own here: {other.stderr.strip()}")
    assert other.stdout.strip() not in ("", ours)
