"""Shows a run on stdout while it lasts, to a person or to a program; it only reads the journal's events."""

import contextlib
import io
import sys
import threading
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta

from rich.console import Console, ConsoleRenderable, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Column, Table
from rich.text import Text

from fedgsp.printing import Printer, printing
from fedgsp.scoring import LOSS
from fedgsp.visible import visible
from fedgsp.words import counted
from top_server.record.directory import RunDirectory, is_worth_keeping
from top_server.record.history import to_line
from top_server.record.journal import Journal, Line, Subscriber
from top_server.view.state import LAST_EVENTS, ViewState
from top_server.view.state import Group as GroupState

GROUP_WIDTH = 26
BAR_WIDTH = 10
HEAD_GAP = 2
SPARKLINE_WIDTH = 30
#: Lines that are not groups: three lines of numbers, "and more", the last events, and the line of the cursor.
OTHER_LINES = 5 + LAST_EVENTS
_STEPS = "▁▂▃▄▅▆▇█"
_ASCII_STEPS = "_.-=+*#@"
_STYLES = {"training": "cyan", "finished": "green", "failed": "red"}
_ORDER = list(_STYLES)


class _Live(Live):
    def stop(self) -> None:
        """Ends the view; its terminal may be closed, which must not hide how the run has ended."""
        with contextlib.suppress(OSError):
            super().stop()


@contextlib.contextmanager
def watching(journal: Journal, directory: RunDirectory, json: bool) -> Iterator[None]:
    """Show the run on stdout: as JSON lines, or as a live view on a terminal, or else as lines of text."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # names may have letters that stdout cannot encode
    with printing() as printer:
        if json:
            with _subscribed(journal, lambda event: printer.put(to_line(event))):
                yield
            return
        console = Console()
        try:
            with _display(journal, console) if console.is_interactive else _subscribed(journal, _lines(printer)):
                yield
        finally:
            if is_worth_keeping(directory):
                printer.put(f"recorded in {directory.path}\n")


@contextlib.contextmanager
def _subscribed(journal: Journal, subscriber: Subscriber) -> Iterator[None]:
    unsubscribe = journal.subscribe(subscriber)
    try:
        yield
    finally:
        unsubscribe()


@contextlib.contextmanager
def _display(journal: Journal, console: Console) -> Iterator[None]:
    state, lock = ViewState(), threading.Lock()

    def apply(event: Line) -> None:
        with lock:
            state.apply(event)

    def frame() -> ConsoleRenderable:
        with lock:  # `Live` draws in its own thread while events arrive
            return draw(state, datetime.now(UTC), console.width, console.height, ascii_only=console.options.ascii_only)

    with (
        _subscribed(journal, apply),
        # Log lines that go to the same terminal appear above the live view; a redirected log is left as it is.
        _Live(console=console, get_renderable=frame, redirect_stderr=sys.stderr.isatty()),
    ):
        yield


def _lines(printer: Printer) -> Subscriber:
    state = ViewState()

    def tell(event: Line) -> None:
        if line := state.apply(event):
            printer.put(f"{event['time'][11:19]} {line}\n")

    return tell


def draw(state: ViewState, now: datetime, width: int, height: int, ascii_only: bool = False) -> ConsoleRenderable:
    """The live view, no larger than a terminal of `width` columns and `height` lines."""
    if not state.started:
        where = f"waiting for nodes at {state.address}" if state.address else "starting"
        return _fitted(state, [Text(f"{where}: {state.present}", "bold")])
    numbers = Text(state.present)
    if found := state.discriminators:
        numbers.append(f"   {found.exchanges} exchanges, {found.left} of {found.networks} networks left", "bold")
    if state.managers_ready < state.managers_starting:
        numbers.append(
            f"   starting {counted(state.managers_starting, 'group manager')}: {state.managers_ready} ready", "bold"
        )
    if state.ratings:
        numbers.append(f"   {visible(state.rated_by)} {state.ratings[-1]:.4f} ", "bold")
        numbers.append(sparkline(state.ratings, SPARKLINE_WIDTH, ascii_only), "green")
    for name, value in state.metrics.items():
        numbers.append(f"   {visible(name)} {value:.4f}")
    if state.loss is not None and state.rated_by != LOSS:
        numbers.append(f"   loss {state.loss:.4f}")
    return _fitted(state, [_head(state, now, width), numbers, *_groups(state, width, max(height - OTHER_LINES, 1))])


def sparkline(values: Sequence[float], width: int, ascii_only: bool = False) -> str:
    """The last `width` values as bars between their lowest and their highest."""
    steps = _ASCII_STEPS if ascii_only else _STEPS
    shown = [value / 2 for value in values[-width:]]  # so that the difference of two of them is a finite number
    low, high = min(shown), max(shown)
    scale = (len(steps) - 1) / (high - low) if high > low else 0.0
    return "".join(steps[round((value - low) * scale)] for value in shown)


def duration(seconds: float) -> str:
    """Hours, minutes and seconds."""
    return str(timedelta(seconds=round(max(seconds, 0.0))))


def _head(state: ViewState, now: datetime, width: int) -> Table:
    assert state.started is not None
    total: int | None
    if found := state.discriminators:
        # The number of further exchanges is unknown: no time is shown, and the bar pulses until a pair has stopped.
        title, left = "measuring distances", None
        done, total = found.networks - found.left, found.networks if found.left < found.networks else None
    else:
        title = f"round {state.round} of {state.rounds}" if state.round else f"before round 1 of {state.rounds}"
        done, total, left = state.finished_rounds, max(state.rounds, 1), state.seconds_left
    shown = Text(f"{state.scheme}  {title}", "bold")
    elapsed = Text(f"{duration((now - state.started).total_seconds())} elapsed")
    to_go = Text("" if left is None else f"about {duration(left)} left")
    room = width - sum(text.cell_len + HEAD_GAP for text in (shown, elapsed, to_go))
    row = Table.grid(*(Column(no_wrap=True) for _ in range(4)), padding=(0, HEAD_GAP))
    bar = ProgressBar(total=total, completed=done, width=min(max(room, BAR_WIDTH), 2 * BAR_WIDTH))
    row.add_row(shown, bar, elapsed, to_go)
    return row


def _groups(state: ViewState, width: int, most_lines: int) -> list[ConsoleRenderable]:
    if not state.sampled_groups or state.discriminators:
        return []
    states = [group.state for group in state.groups.values()]
    counts = ", ".join(f"{states.count(name)} {name}" for name in _ORDER if name in states)
    title = Text(f"{counted(state.sampled_groups, 'group')}{': ' if counts else ''}{counts}")
    columns = max(width // GROUP_WIDTH, 1)
    # Groups that still train come first; the others no longer change.
    ordered = sorted(state.groups.values(), key=lambda group: (_ORDER.index(group.state), group.number))
    shown = ordered[: columns * most_lines]
    table = Table.grid(padding=(0, 1))
    for first in range(0, len(shown), columns):
        table.add_row(*(_group(group) for group in shown[first : first + columns]))
    more = len(ordered) - len(shown)
    return [title, table, *([Text(f"... and {more} more", "dim")] if more else [])]


def _group(group: GroupState) -> Table:
    cell = Table.grid(*(Column(width=wide, no_wrap=True) for wide in (4, BAR_WIDTH, 8)), padding=(0, 1))
    style = _STYLES[group.state]
    bar = ProgressBar(
        total=max(group.members, 1), completed=group.hops, width=BAR_WIDTH, complete_style=style, finished_style=style
    )
    skipped = f" -{group.skipped}" if group.skipped else ""
    cell.add_row(Text(f"{group.number:>4}"), bar, Text(f"{group.hops}/{group.members}{skipped}", style))
    return cell


def _fitted(state: ViewState, lines: Sequence[ConsoleRenderable]) -> Group:
    """The lines, and below them the last events; what is longer than a line is cut."""
    shown = [*lines, *(Text(line, "dim") for line in state.last_events)]
    for line in shown:
        if isinstance(line, Text):
            line.no_wrap, line.overflow = True, "ellipsis"
    return Group(*shown)
