from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from fedgsp import lifecycle
from fedgsp.errors import PeerError, RunError
from fedgsp.lifecycle import ready_line, run, spawn, stop, tail

#: A process of ours that says that it is ready and lives until it is told to stop.
LIVES = """
import asyncio, sys
from fedgsp.lifecycle import run
async def main():
    print("ready", flush=True)
    await asyncio.Event().wait()
sys.exit(run(main()))
"""
#: Spawns the process above as its child, with a pipe that stays open as long as either lives.
SPAWNS = f"""
import asyncio, sys
from fedgsp.lifecycle import ready_line, run, spawn
async def main():
    child = await spawn([sys.executable, "-c", {LIVES!r}], None)
    print(await ready_line(child, "child", None), flush=True)
    await asyncio.Event().wait()
sys.exit(run(main()))
"""
#: Computes in a thread, for longer than anybody waits, and cleans up when it is asked to stop.
COMPUTES = """
import asyncio, sys, threading
from fedgsp import lifecycle
lifecycle.STOP_GRACE_S = 0.1
def compute():
    print("computing", flush=True)
    threading.Event().wait()
async def main():
    try:
        await asyncio.to_thread(compute)
    finally:
        await asyncio.sleep(0)
        print("cleaned up", flush=True)
lifecycle.leave(lifecycle.run(main()))
"""
#: Forks a pool of processes, as a task may, leaves it while one of them works, and lives on.
FORKS = """
import asyncio, multiprocessing, os, sys, threading
from fedgsp.lifecycle import run
seen, begun = os.pipe()
def work():
    os.write(begun, b"!")
    threading.Event().wait()
def compute():
    with multiprocessing.get_context("fork").Pool(2) as pool:  # whose end sends SIGTERM to its processes
        pool.apply_async(work)
        os.read(seen, 1)
async def main():
    await asyncio.to_thread(compute)
    print("computed", flush=True)
    await asyncio.Event().wait()
sys.exit(run(main()))
"""
#: Forks a child that is told to end before it runs a line; tells how it ended.
FORKS_THE_DOOMED = """
import asyncio, os, signal, sys
os.register_at_fork(after_in_child=lambda: os.kill(os.getpid(), signal.NAME))
from fedgsp.lifecycle import run
async def main():
    child = os.fork() or os._exit(0)
    _, status = await asyncio.to_thread(os.waitpid, child, 0)
    print(os.waitstatus_to_exitcode(status), flush=True)
    await asyncio.Event().wait()
sys.exit(run(main()))
"""


def python(script: str) -> list[str]:
    return [sys.executable, "-c", script]


def shell(script: str) -> list[str]:
    return ["sh", "-c", script]


@asynccontextmanager
async def child(command: list[str], log: Path | None = None) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await spawn(command, log)
    try:
        yield process
    finally:
        await stop(process, 0)


# --- a process of ours


def test_a_process_that_ends_by_itself_leaves_with_0() -> None:
    async def main() -> None:
        await asyncio.sleep(0)

    assert run(main()) == 0


def test_what_a_process_raises_reaches_its_command_line() -> None:
    async def main() -> None:
        raise RunError("it broke", "mend it")

    with pytest.raises(RunError, match="it broke; mend it"):
        run(main())


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_process_that_is_asked_to_stop_cleans_up_and_leaves_with_the_code_of_the_signal(
    number: int, code: int
) -> None:
    seen: list[str] = []

    async def main() -> None:
        try:
            os.kill(os.getpid(), number)
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            seen.append("cleaned up")

    assert run(main()) == code
    assert seen == ["cleaned up"]


@pytest.mark.parametrize("last", ["", "sys.stdout = None"], ids=["", "without a stdout"])
async def test_a_thread_that_still_computes_does_not_keep_a_process_from_ending(last: str) -> None:
    script = COMPUTES.replace("lifecycle.leave(lifecycle.run(main()))", f"code = lifecycle.run(main())\n{last}\n")
    async with child(python(f"{script}lifecycle.leave(code)")) as process:
        assert await ready_line(process, "child", None) == "computing"
        process.terminate()
        assert process.stdout is not None
        assert await asyncio.wait_for(process.stdout.read(), 30) == b"cleaned up\n"
        assert await process.wait() == 143


async def test_a_pool_of_processes_ends_without_the_process_that_forked_it() -> None:
    async with child(python(FORKS)) as process:
        assert await ready_line(process, "child", None) == "computed"
        assert process.returncode is None
        assert await stop(process) == 143  # a signal of its own it still hears


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
async def test_a_signal_to_a_forked_child_ends_that_child_alone_however_early_it_comes(name: str) -> None:
    async with child(python(FORKS_THE_DOOMED.replace("NAME", name))) as process:
        assert await ready_line(process, "child", None) == str(-signal.Signals[name])
        assert process.returncode is None
        assert await stop(process) == 143


def test_a_child_forked_when_the_loop_has_ended_keeps_the_handlers_of_its_parent() -> None:
    assert run(asyncio.sleep(0)) == 0
    before = signal.getsignal(signal.SIGINT)
    if not (forked := os.fork()):
        os._exit(0 if signal.getsignal(signal.SIGINT) is before else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(forked, 0)[1]) == 0


def test_signals_are_given_back() -> None:
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)

    async def main() -> None:
        assert signal.getsignal(signal.SIGTERM) != before[0]

    assert run(main()) == 0
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


def test_a_cancellation_that_nobody_asked_for_is_not_swallowed() -> None:
    async def main() -> None:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        run(main())


# --- children


async def test_a_child_leaves_when_its_lifeline_ends() -> None:
    async with child(python(LIVES)) as process:
        assert await ready_line(process, "child", None) == "ready"
        assert process.stdin is not None
        process.stdin.close()
        assert await process.wait() == 143


async def test_what_is_written_into_the_lifeline_ends_nothing() -> None:
    async with child(python(LIVES)) as process:
        await ready_line(process, "child", None)
        assert process.stdin is not None
        process.stdin.write(b"hello\n")
        await process.stdin.drain()
        assert await stop(process) == 143  # by the signal, and with its own cleaning up


async def test_a_child_leaves_when_its_parent_is_killed() -> None:
    # Both hold the write end of stderr: the read end ends when both have gone.
    parent = await asyncio.create_subprocess_exec(
        *python(SPAWNS), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    assert parent.stdout is not None
    assert parent.stderr is not None
    assert await parent.stdout.readline() == b"ready\n"
    parent.kill()
    await parent.stderr.read()
    assert await parent.wait() == -signal.SIGKILL


async def test_the_line_of_a_child_that_is_ready_is_told() -> None:
    async with child(shell("echo ' 127.0.0.1:7000'; echo more; exec cat")) as process:
        assert await ready_line(process, "child", None) == "127.0.0.1:7000"
        assert process.returncode is None


async def test_a_child_that_ends_before_it_is_ready_is_told_with_its_own_exit_code_and_log(tmp_path: Path) -> None:
    log = tmp_path / "child.log"
    script = "import os, sys; sys.stderr.write('one\\ntwo\\n'); sys.stderr.flush(); os.close(1); sys.exit(3)"
    process = await spawn(python(script), log)
    with pytest.raises(PeerError, match=r"group manager m0 did not start \(exit code 3\)") as caught:
        await ready_line(process, "group manager m0", log)
    assert caught.value.remedy == "its log ends: one | two"


async def test_half_a_line_is_not_a_ready_line() -> None:
    process = await spawn(shell("printf 127.0.0.1:70; exit 4"), None)
    with pytest.raises(PeerError, match="exit code 4"):
        await ready_line(process, "child", None)


async def test_a_child_that_closes_its_output_and_stays_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifecycle, "STOP_GRACE_S", 0.05)
    process = await spawn(shell("exec sleep 60 >&-"), None)
    with pytest.raises(PeerError, match="did not start"):
        await ready_line(process, "child", None)
    assert process.returncode == -signal.SIGTERM


async def test_a_child_that_is_never_ready_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifecycle, "READY_TIMEOUT_S", 0.05)
    process = await spawn(shell("exec sleep 60"), None)
    with pytest.raises(PeerError, match="was not ready after"):
        await ready_line(process, "child", None)
    assert process.returncode == -signal.SIGTERM


async def test_a_child_that_cannot_be_started_is_told() -> None:
    with pytest.raises(FileNotFoundError):
        await spawn(["/no/such/program"], None)


async def test_a_deaf_child_is_killed() -> None:
    async with child(shell("trap '' TERM; echo ready; while :; do sleep 60; done")) as process:
        await ready_line(process, "child", None)
        assert await stop(process, 0.05) == -signal.SIGKILL


async def test_what_a_killed_child_started_is_killed_with_it() -> None:
    """It would hold the child's pipes open, and whoever waits for the child would wait for it."""
    async with child(shell("trap '' TERM; echo ready; sleep 60 & sleep 60; sleep 60")) as process:
        await ready_line(process, "child", None)
        assert process.stdout is not None
        assert await stop(process, 0.05) == -signal.SIGKILL
        assert await process.stdout.read() == b""  # its last writer has gone


async def test_whoever_cannot_wait_for_a_child_kills_it() -> None:
    async with child(shell("trap '' TERM; echo ready; while :; do sleep 60; done")) as process:
        await ready_line(process, "child", None)
        stopping = asyncio.create_task(stop(process, 60))
        await asyncio.sleep(0)
        stopping.cancel()
        with pytest.raises(asyncio.CancelledError):
            await stopping
        assert process.returncode == -signal.SIGKILL


async def test_a_child_that_has_ended_is_stopped_once_more_without_harm() -> None:
    process = await spawn(shell("exit 5"), None)
    await process.wait()
    assert await stop(process) == 5
    assert await stop(process) == 5


async def test_a_child_writes_its_log_after_what_is_there(tmp_path: Path) -> None:
    log = tmp_path / "child.log"
    log.write_text("before\n")
    async with child(shell("echo said >&2"), log) as process:
        await process.wait()
    assert log.read_text() == "before\nsaid\n"


def test_the_end_of_a_log_is_one_line(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert tail(None) == tail(log) == "(no log)"
    log.write_bytes(b"")
    assert tail(log) == "(empty)"
    log.write_bytes(b"1\n2\n3\xff\n")
    assert tail(log, 2) == "2 | 3�"
