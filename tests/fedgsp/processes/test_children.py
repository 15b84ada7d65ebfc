"""Real processes, forked from a template."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import aclosing
from pathlib import Path

import psutil
import pytest

from fedgsp.errors import PeerError
from fedgsp.processes import children
from fedgsp.processes.children import UNKNOWN_EXIT_CODE, Template, ready_line, stop, tail
from tests.support.execute import child, python, shell
from tests.support.processes import assert_gone, running
from tests.support.scripted import let_others_run

#: For tests that share a template, which lives in one event loop.
shared = pytest.mark.asyncio(loop_scope="module")

#: A process of ours that says that it is ready and lives until it is told to stop.
LIVES = """
import asyncio, sys
from fedgsp.processes.lifecycle import run
async def main():
    print("ready", flush=True)
    await asyncio.Event().wait()
sys.exit(run(main()))
"""
#: Spawns the process above as its child.
SPAWNS = f"""
import asyncio, sys
from contextlib import aclosing
from fedgsp.processes.children import Template, ready_line
from fedgsp.processes.lifecycle import run
async def main():
    async with aclosing(Template([])) as made:
        child = await made.spawn(["tests.support.execute", sys.executable, "-c", {LIVES!r}], None)
        print(await ready_line(child, "child", None), flush=True)
        await asyncio.Event().wait()
sys.exit(run(main()))
"""


@shared
async def test_a_child_leaves_when_its_lifeline_ends(template: Template) -> None:
    async with child(template, python(LIVES)) as process:
        assert await ready_line(process, "child", None) == "ready"
        process.close()
        assert await process.wait() == 143


async def test_a_child_and_its_template_leave_when_their_parent_is_killed(tmp_path: Path) -> None:
    async with running([sys.executable, "-c", SPAWNS], tmp_path / "parent.log") as parent:
        await parent.line("ready")
        family = parent.family()
        assert len(family) == 3  # the parent, its template, and the child
        parent.send(signal.SIGKILL)
        await assert_gone(family)


@pytest.mark.skipif(not Path("/proc/self/autogroup").exists(), reason="sessions share processors by nice values alone")
async def test_the_priority_of_a_child_counts_beside_other_sessions(tmp_path: Path) -> None:
    nice = min(19, os.nice(0) + 7)
    async with running(["nice", "-n", "7", sys.executable, "-c", SPAWNS], tmp_path / "parent.log") as parent:
        await parent.line("ready")
        _, _, started = parent.family()
        assert started.nice() == nice
        told = await asyncio.to_thread(Path(f"/proc/{started.pid}/autogroup").read_text)
        assert told.rstrip().endswith(f"nice {nice}")


@shared
async def test_the_line_of_a_child_that_is_ready_is_told(template: Template) -> None:
    async with child(template, shell("echo ' 127.0.0.1:7000'; echo more; exec cat")) as process:
        assert await ready_line(process, "child", None) == "127.0.0.1:7000"
        assert process.returncode is None


@shared
async def test_a_child_that_ends_before_it_is_ready_is_told_with_its_own_exit_code_and_log(
    template: Template, tmp_path: Path
) -> None:
    log = tmp_path / "child.log"
    script = "import os, sys; sys.stderr.write('one\\ntwo\\n'); sys.stderr.flush(); os.close(1); sys.exit(3)"
    process = await template.spawn(python(script), log)
    with pytest.raises(PeerError, match=r"group manager m0 did not start \(exit code 3\)") as caught:
        await ready_line(process, "group manager m0", log)
    assert caught.value.remedy == "its log ends: one | two"


@shared
async def test_half_a_line_is_not_a_ready_line(template: Template) -> None:
    process = await template.spawn(shell("printf 127.0.0.1:70; exit 4"), None)
    with pytest.raises(PeerError, match="exit code 4"):
        await ready_line(process, "child", None)


@shared
async def test_a_child_that_is_never_ready_is_stopped(template: Template, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(children, "READY_TIMEOUT_S", 0.05)
    process = await template.spawn(shell("exec sleep 60"), None)
    with pytest.raises(PeerError, match="was not ready after"):
        await ready_line(process, "child", None)
    assert process.returncode == -signal.SIGTERM


@shared
async def test_a_deaf_child_is_killed(template: Template) -> None:
    async with child(template, shell("trap '' TERM; echo ready; while :; do sleep 60; done")) as process:
        await ready_line(process, "child", None)
        assert await stop(process, 0.05) == -signal.SIGKILL


@shared
async def test_what_a_killed_child_started_is_killed_with_it(template: Template) -> None:
    async with child(template, shell("trap '' TERM; sleep 60 & echo $!; sleep 60; sleep 60")) as process:
        started = psutil.Process(int(await ready_line(process, "child", None)))
        assert await stop(process, 0.05) == -signal.SIGKILL
        await assert_gone([started])


@shared
async def test_whoever_cannot_wait_for_a_child_kills_it(template: Template) -> None:
    async with child(template, shell("trap '' TERM; echo ready; while :; do sleep 60; done")) as process:
        await ready_line(process, "child", None)
        stopping = asyncio.create_task(stop(process, 60))
        await asyncio.sleep(0)
        stopping.cancel()
        with pytest.raises(asyncio.CancelledError):
            await stopping
        assert process.returncode == -signal.SIGKILL


@shared
async def test_a_child_that_has_ended_is_stopped_once_more_without_harm(template: Template) -> None:
    process = await template.spawn(shell("exit 5"), None)
    await process.wait()
    assert await stop(process) == 5
    assert await stop(process) == 5


@shared
async def test_a_child_writes_its_log_after_what_is_there(template: Template, tmp_path: Path) -> None:
    log = tmp_path / "child.log"
    log.write_text("before\n")
    async with child(template, shell("echo said >&2"), log) as process:
        await process.wait()
    assert log.read_text() == "before\nsaid\n"


# --- the template


@shared
async def test_children_have_the_name_arguments_and_exit_code_that_were_asked_for(template: Template) -> None:
    async with child(template, shell("exit 7")) as process:
        assert await process.wait() == 7
    async with child(template, ["tests.support.waiting", "--name", "m0"]) as process:
        assert await ready_line(process, "child", None) == "['--name', 'm0']"
        assert " ".join(psutil.Process(process.pid).cmdline()).strip() == "tests.support.waiting --name m0"
        assert process.pid == os.getsid(process.pid)


@shared
async def test_a_child_has_arguments_whose_bytes_are_not_utf_8(template: Template) -> None:
    folder = os.fsdecode(b"/caf\xe9")
    async with child(template, ["tests.support.waiting", folder]) as process:
        assert await ready_line(process, "child", None) == repr([folder])
        assert r"/caf\udce9" in " ".join(psutil.Process(process.pid).cmdline())


@shared
async def test_children_draw_other_numbers(template: Template) -> None:
    drawn = set()
    for _ in range(3):
        async with child(template, ["tests.support.waiting"]) as process:
            await ready_line(process, "child", None)
            drawn.add(await process.stdout.readline())
    assert len(drawn) == 3


async def test_a_template_that_is_killed_ends_its_children_and_starts_again() -> None:
    async with aclosing(Template([])) as own:
        process = await own.spawn(["tests.support.waiting"], None)
        (template,) = [each for each in psutil.Process().children() if psutil.Process(process.pid) in each.children()]
        started = psutil.Process(process.pid)
        template.kill()
        assert await process.wait() == UNKNOWN_EXIT_CODE
        await assert_gone([started])
        async with child(own, ["tests.support.waiting"]) as process:
            assert await ready_line(process, "child", None) == "[]"


async def test_a_template_that_cannot_import_is_told_with_its_last_lines() -> None:
    async with aclosing(Template(["no.such.module"])) as own:
        with pytest.raises(PeerError, match=r"the template of no\.such\.module ended") as caught:
            await own.spawn(["tests.support.waiting"], None)
    assert "No module named 'no'" in caught.value.remedy


async def test_so_is_one_that_ended_before_it_was_asked() -> None:
    before = set(psutil.Process().children())
    async with aclosing(Template(["no.such.module"])) as own:
        await own.start()
        psutil.wait_procs(set(psutil.Process().children()) - before, timeout=30)  # the event loop hears nothing of it
        with pytest.raises(PeerError) as caught:
            await own.spawn(["tests.support.waiting"], None)
    assert "No module named 'no'" in caught.value.remedy


async def test_a_template_whose_end_is_cancelled_has_ended_all_the_same() -> None:
    own, before = Template(["numpy"]), set(psutil.Process().children())
    await own.start()
    (process,) = set(psutil.Process().children()) - before
    closing = asyncio.create_task(own.aclose())
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert not process.is_running()
    await own.aclose()  # once more, without harm


@shared
async def test_a_child_that_nobody_waits_for_any_more_is_killed(template: Template) -> None:
    before = set(psutil.Process().children(recursive=True))
    for turns in range(5):  # of the loop: before and after it has asked the template
        starting = asyncio.create_task(template.spawn(["tests.support.waiting"], None))
        for _ in range(turns):
            await asyncio.sleep(0)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
    async with child(template, shell("exit 0")) as process:  # after all of them
        assert await process.wait() == 0
    await assert_gone(set(psutil.Process().children(recursive=True)) - before)


def test_the_end_of_a_log_is_one_line(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert tail(None) == tail(log) == "(no log)"
    log.write_bytes(b"")
    assert tail(log) == "(empty)"
    log.write_bytes(b"1\n2\n3\xff\n")
    assert tail(log, 2) == "2 | 3�"


async def test_a_template_that_is_stopped_does_not_hold_up_its_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    async with aclosing(Template([])) as made:
        process = await made.spawn(python(LIVES), None)
        assert await ready_line(process, "child", None) == "ready"
        assert made._process is not None
        made._process.send_signal(signal.SIGSTOP)
        monkeypatch.setattr(children, "FORK_TIMEOUT_S", 0.1)
        with pytest.raises(PeerError, match="started no process in 0 s"):
            await made.spawn(python(LIVES), None)
        monkeypatch.setattr(children, "STOP_GRACE_S", 0.1)
        assert await stop(process, grace_s=0.1) == UNKNOWN_EXIT_CODE
        await assert_gone([psutil.Process(process.pid)] if psutil.pid_exists(process.pid) else [])


async def test_more_children_than_a_full_socket_takes_all_start(tmp_path: Path) -> None:
    async with aclosing(Template([])) as made:
        await made.start()
        assert made._process is not None
        made._process.send_signal(signal.SIGSTOP)
        made._process.send_signal(signal.SIGSTOP)
        scripts = [shell(f"echo {number}; : {'x' * 20_000}; exec cat") for number in range(14)]
        asked = [asyncio.create_task(made.spawn(script, None)) for script in scripts]
        await let_others_run()
        assert 0 < len(made._asked) < len(asked)  # the socket is full
        made._process.send_signal(signal.SIGCONT)
        started = await asyncio.gather(*asked)
        assert [await ready_line(one, "child", None) for one in started] == [str(number) for number in range(14)]
        assert len({one.pid for one in started}) == 14
        for one in started:
            await stop(one, 0)


async def test_a_template_that_says_nonsense_is_ended(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with aclosing(Template([])) as made:
        process = await made.spawn(python(LIVES), None)
        monkeypatch.setattr("fedgsp.processes.children.json.loads", lambda _: 7)
        process.send(signal.SIGKILL)
        assert await process.wait() == UNKNOWN_EXIT_CODE
        assert "no template says" in caplog.text
