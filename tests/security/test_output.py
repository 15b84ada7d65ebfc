"""Text from strangers in what people read: it gives no command to a terminal, forges no line and hides nothing."""

from __future__ import annotations

import io
import json
import logging
import re
import unicodedata
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from fedgsp import logs
from fedgsp.errors import ConfigError, DataError
from fedgsp.messages import MAX_DETAIL, Failure, FailureCode, Hello
from fedgsp.settings.files import dump
from fedgsp.settings.run import RunConfig
from fedgsp.stdout import echo
from fedgsp.visible import visible
from fedgsp_node.finished.commands import _tell
from fedgsp_runs import Run
from tests.support.callers import ANYBODY
from tests.support.fuzzing import fuzzed
from tests.support.hellos import hello, membership
from tests.support.sources import files_with
from top_server.nodes.refusals import MOST_RECORDED, PERIOD_S, Refusals
from top_server.record.directory import RunDirectory
from top_server.record.events.processes import NodeLeft
from top_server.record.journal import Journal
from top_server.view.lines import describe
from top_server.view.state import ViewState
from top_server.view.watching import draw

#: A command that clears the screen, a forged line, writing from right to left, separators, blanks, half a pair.
COMMAND, FORGED = "\x1b[2J\x1b]0;x\x07", "\n2026-11-23T16:00:00.000Z INFO top_server.server: run finished"
EVIL = f"n0{COMMAND}{FORGED}\r\t\x9b31m\u202eabc\u2066\u2028\u2029\u200b\ufeff\u3164\u00ad\x7f\ud800\U000e0041"
#: What no text that is shown may hold, by Unicode's own categories.
HARMFUL = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    root, ours = logging.getLogger(), logging.getLogger("fedgsp")
    before = root.handlers[:], root.level, ours.level
    yield
    root.handlers[:], root.level, ours.level = before


def harmless(text: str) -> bool:
    return not any(unicodedata.category(one) in HARMFUL for one in text)


@fuzzed(300)
@given(st.text(st.characters(), max_size=40) | st.text("\x1b\n\r\u202e\u0301\u200bab", max_size=40))
def test_no_text_keeps_a_character_that_a_terminal_obeys_or_nobody_sees(text: str) -> None:
    shown = visible(text)
    assert harmless(shown)
    assert visible(shown) == shown


@pytest.mark.parametrize(
    "text", ["hospital-a", "Krankenhaus Süd", "東京 病院", "Νοσοκομείο", "مستشفى", "a\u0301 é", "🏥"]
)
def test_honest_text_stays_as_it_is(text: str) -> None:
    assert visible(text) == text


def test_a_pile_of_marks_covers_no_other_lines() -> None:
    assert visible("a" + "\u0301" * 200) == "a" + r"\u0301" * 200


def test_a_log_line_stays_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure()
    logging.getLogger("fedgsp.x").warning("node=%s left", EVIL.encode(errors="replace").decode())
    written = capsys.readouterr().err
    assert written.count("\n") == 1
    assert harmless(written[:-1])
    assert r"\x1b[2J" in written


def test_an_exception_of_a_users_code_forges_no_log_line(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure()
    try:
        raise ValueError(f"bad{FORGED}{COMMAND}")
    except ValueError:
        logging.getLogger("fedgsp.x").exception("round=%d", 1)
    first, *rest = capsys.readouterr().err.splitlines()
    assert "round=1" in first
    assert any("run finished" in line for line in rest)
    assert all(line.startswith("  ") and harmless(line) for line in rest)


def test_the_error_of_a_process_gives_the_terminal_no_command(capsys: pytest.CaptureFixture[str]) -> None:
    logs.report(DataError(f"the server says {COMMAND}{FORGED}\u202e", "call it"))
    written = capsys.readouterr().err
    assert written.count("\n") == 1
    assert harmless(written[:-1])


def test_a_failure_is_harmless_wherever_it_goes_and_has_its_length() -> None:
    detail = Failure(FailureCode.TASK_RAISED, EVIL * 1000).detail
    assert harmless(detail)
    assert len(detail) <= MAX_DETAIL + 3
    assert Failure(FailureCode.TASK_RAISED, detail).detail == detail


def test_a_line_of_the_view_gives_the_terminal_no_command() -> None:
    line = describe({"event": "node_refused", "node": EVIL, "reason": COMMAND})
    assert line is not None
    assert harmless(line)


def test_the_live_view_gives_the_terminal_no_command() -> None:
    from datetime import UTC, datetime

    state, shown = ViewState(), io.StringIO()
    time = datetime.now(UTC).isoformat()
    state.apply({"time": time, "event": "node_refused", "node": "x[red]", "reason": f"{COMMAND}\u202e"})
    Console(file=shown, force_terminal=False, width=200).print(draw(state, datetime.now(UTC), 200, 40))
    assert "\x1b" not in shown.getvalue()
    assert "\u202e" not in shown.getvalue()


def test_the_record_holds_no_control_characters(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    with Journal(directory) as journal:
        journal.record(NodeLeft(node=EVIL, reason=COMMAND))
    written = directory.events.read_bytes()
    assert written.count(b"\n") == 1
    assert all(0x20 <= byte < 0x7F for byte in written[:-1])
    assert json.loads(written)["reason"] == COMMAND


@pytest.mark.parametrize(
    "said",
    [
        hello("n" * 3_000_000),
        hello(f"n0{COMMAND}"),
        hello(f"n0{FORGED}"),
        hello("../../etc"),
        hello(""),
        hello(task=COMMAND),
        hello(task_options={FORGED: "1"}),
        hello(task_options={"a": "x" * 3_000_000}),
        hello(task_options={"a": COMMAND}),
        hello(task_options={"a": FORGED}),
        hello(peer_address=f"a:1{'x' * 3_000_000}"),
    ],
    ids=range(11),
)
async def test_a_node_with_an_impossible_name_is_refused_and_hardly_recorded(said: Hello) -> None:
    members, recorder = membership()
    failure = await members.admit(said, ANYBODY)
    assert isinstance(failure, Failure)
    assert failure.code is FailureCode.WRONG_PROTOCOL
    (event,) = recorder.events
    assert sum(len(str(value)) for value in event.values()) < 600
    assert all(harmless(str(value)) for value in event.values())


async def test_the_reason_of_a_refusal_holds_no_control_characters_whoever_sent_them() -> None:
    """The options of the run are those of its user, and the reason may quote them, too."""
    members, recorder = membership(task_options={"a": EVIL})
    refused = await members.admit(hello(task_options={"a": "1"}), ANYBODY)
    assert isinstance(refused, Failure)
    members.note_refusal("n1", Failure(FailureCode.WRONG_TASK, EVIL), ANYBODY)
    reasons = [event["reason"] for event in recorder.of_kind("node_refused")]
    assert len(reasons) == 2
    assert all("n0" in reason and harmless(reason) for reason in reasons)


def test_thousands_of_refusals_are_recorded_as_a_few_and_a_number(tmp_path: Path) -> None:
    now = [0.0]
    directory = RunDirectory(tmp_path)
    with Journal(directory) as journal:
        refusals = Refusals(journal, lambda: now[0])
        for second in range(3):
            now[0] = second * PERIOD_S
            for _ in range(5_000):
                refusals.note(EVIL * 1000, Failure(FailureCode.WRONG_TASK, "x" * 10_000), ANYBODY)
        refusals.close()
    lines = [json.loads(line) for line in directory.events.read_text().splitlines()]
    kinds = [line["event"] for line in lines]
    assert kinds.count("node_refused") == 3 * MOST_RECORDED
    assert sum(line["refusals"] for line in lines if line["event"] == "nodes_refused") == 3 * (5_000 - MOST_RECORDED)
    assert directory.events.stat().st_size < 100_000


def test_an_error_that_python_shows_gives_the_terminal_no_command() -> None:
    for error in (DataError(f"{EVIL} is wrong", f"mend {EVIL}"), ConfigError(COMMAND)):
        assert harmless(str(error).replace("\n", ""))
    assert str(ConfigError("one\ntwo", "three")) == "one\ntwo; three"


def test_what_commands_print_gives_the_terminal_no_command(capsys: pytest.CaptureFixture[str]) -> None:
    echo(f"client {EVIL}")
    _tell(f"these tensors are outside the model: {EVIL}")
    written = capsys.readouterr()
    assert r"\x1b[2J" in written.out
    assert r"\x1b[2J" in written.err
    assert harmless((written.out + written.err).replace("\n", ""))


def test_a_run_whose_settings_hold_a_command_is_shown_in_python_without_it(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    directory.config.write_text(dump(RunConfig(scheme=EVIL.encode(errors="replace").decode())))
    directory.history.write_text("")
    assert harmless(repr(Run(tmp_path)))


#: Calls that print as they are -> why nobody else has a word in that text.
PRINTS = re.compile(r"typer\.echo\(|\bprint\(|secho\(")
AS_IT_IS = {
    "fedgsp/commands.py": "the version",
    "fedgsp/stdout.py": "the way to print",
    "fedgsp_node/cli.py": "TOML, which escapes",
    "top_server/placing/slurm/command.py": "a script of the settings of the user",
}


def test_no_other_file_of_the_source_prints_text_as_it_is() -> None:
    assert files_with(PRINTS) == set(AS_IT_IS)
