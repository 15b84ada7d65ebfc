from __future__ import annotations

import asyncio
import os
import signal
import sys

import pytest

from fedgsp.errors import RunError
from fedgsp.processes.children import Template, ready_line, stop
from fedgsp.processes.lifecycle import LIFELINE_VARIABLE, beside, run
from tests.support.execute import child, python
from tests.support.fuzzing import until

#: For tests that share a template, which lives in one event loop.
shared = pytest.mark.asyncio(loop_scope="module")

#: Computes in a thread, for longer than anybody waits, and cleans up when it is asked to stop.
COMPUTES = """
import asyncio, sys, threading
from fedgsp.processes import lifecycle
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
from fedgsp.processes.lifecycle import run
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
from fedgsp.processes.lifecycle import run
async def main():
    child = os.fork() or os._exit(0)
    _, status = await asyncio.to_thread(os.waitpid, child, 0)
    print(os.waitstatus_to_exitcode(status), flush=True)
    await asyncio.Event().wait()
sys.exit(run(main()))
"""


# --- a process of ours


def test_a_process_that_ends_by_itself_leaves_with_0() -> None:
    async def main() -> None:
        await asyncio.sleep(0)

    assert run(main()) == 0


async def test_a_task_beside_that_fails_is_logged_at_once_and_does_not_fail_the_body(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def work() -> None:
        raise KeyError("a bug")

    async with beside(work(), "renew the certificate"):
        await until(lambda: "goes on without a task that has failed: renew the certificate" in caplog.text)
    assert "KeyError: 'a bug'" in caplog.text


def test_what_a_process_raises_reaches_its_command_line() -> None:
    async def main() -> None:
        raise RunError("it broke", "mend it")

    with pytest.raises(RunError, match="it broke; mend it"):
        run(main())


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129)])
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


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_the_same_signal_again_does_not_cut_off_what_the_first_one_began(number: int, code: int) -> None:
    seen: list[str] = []

    async def main() -> None:
        try:
            os.kill(os.getpid(), number)
            await asyncio.Event().wait()
        finally:
            os.kill(os.getpid(), number)
            await asyncio.sleep(0.01)  # the handler runs here
            seen.append("cleaned up")

    assert run(main()) == code
    assert seen == ["cleaned up"]


def test_a_hangup_that_nohup_has_ignored_stays_ignored() -> None:
    async def main() -> None:
        os.kill(os.getpid(), signal.SIGHUP)
        await asyncio.sleep(0)

    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert run(main()) == 0
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("last", ["", "sys.stdout = None"], ids=["", "without a stdout"])
@shared
async def test_a_thread_that_still_computes_does_not_keep_a_process_from_ending(template: Template, last: str) -> None:
    script = COMPUTES.replace("lifecycle.leave(lifecycle.run(main()))", f"code = lifecycle.run(main())\n{last}\n")
    async with child(template, python(f"{script}lifecycle.leave(code)")) as process:
        assert await ready_line(process, "child", None) == "computing"
        process.send(signal.SIGTERM)
        assert await asyncio.wait_for(process.stdout.read(), 30) == b"cleaned up\n"
        assert await process.wait() == 143


@shared
async def test_a_pool_of_processes_ends_without_the_process_that_forked_it(template: Template) -> None:
    async with child(template, python(FORKS)) as process:
        assert await ready_line(process, "child", None) == "computed"
        assert process.returncode is None
        assert await stop(process) == 143  # a signal of its own it still hears


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
@shared
async def test_a_signal_to_a_forked_child_ends_that_child_alone_however_early_it_comes(
    template: Template, name: str
) -> None:
    async with child(template, python(FORKS_THE_DOOMED.replace("NAME", name))) as process:
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


async def test_what_is_written_into_the_lifeline_ends_nothing_and_its_end_does() -> None:
    script = "import asyncio, sys; from fedgsp.processes.lifecycle import run; sys.exit(run(asyncio.sleep(3600)))"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, stdin=asyncio.subprocess.PIPE, env={**os.environ, LIFELINE_VARIABLE: "stdin"}
    )
    assert process.stdin is not None
    process.stdin.write(b"hello\n")
    await process.stdin.drain()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(process.wait(), 0.5)
    process.stdin.close()
    assert await process.wait() == 143
