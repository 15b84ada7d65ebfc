"""What a report says of one run, read from its directory; nothing is drawn here."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedgsp.errors import DataError, reason_of
from fedgsp.files import MOST_OF_SETTINGS, read_text
from fedgsp.scoring import ACCURACY, LOSS, metric_of, rated
from fedgsp.settings.checks import flag
from fedgsp.settings.fields import described
from fedgsp.settings.recorded import load_recorded
from fedgsp.settings.run import RunConfig
from fedgsp.visible import visible
from fedgsp.words import counted, with_name
from top_server.pictures.kept import Rows
from top_server.record.damage import MALFORMED, damaged
from top_server.record.directory import RunDirectory
from top_server.record.journal import Line
from top_server.record.scores import score_of, scored_by, scores_of
from top_server.recorded import BEGINS
from top_server.report.story import Story, Trainings
from top_server.report.troubles import Trouble, is_trouble, troubles
from top_server.view.lines import describe, size

_AGAIN = "top-server --resume"
#: What is known of a top server that recorded no end.
_KILLED = (
    "it was killed, or its machine stopped or had no memory left, or its disk was full: its record has no end, and"
    " nobody writes it"
)
_AFTER_KILL = f"look into the log of the machine for the reason (journalctl -k), then continue with {_AGAIN}"
#: The event at which a top server begins, and waits for nodes. Nodes of the one before it are not there any more.
_WAITS = "listening"
#: Events at which a top server stops.
_ENDS = ("run_finished", "run_failed", "run_stopped")
#: Lines of troubles that a report shows, at most: the last ones.
MOST_LINES = 300
#: Troubles on the first screen of a run that did not finish.
LAST_TROUBLES = 5

#: What stands in the columns of two tables.
CLIENT_HEADS = ("client", "node", "training samples", "trainings", "skipped", "score at the end")
NODE_HEADS = (
    *("node", "clients", "device", "torch", "other nodes dial it at", "weights fetched", "of these travelled"),
    *("joined (UTC)", "left"),
)

Table = list[tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Ending:
    """How a run ended."""

    #: "finished", "failed", "stopped" or "open".
    kind: str
    title: str
    reason: str = ""
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Facts:
    """What a report says of one run."""

    name: str
    config: RunConfig
    #: The settings as config.toml has them.
    settings: str
    rows: Rows
    ending: Ending
    #: What people call clients.
    names: dict[int, str]
    #: Label and value.
    result: Table
    costs: Table
    #: Flag and value of every setting that is not the default.
    chosen: Table
    #: As NODE_HEADS says.
    nodes: Table
    #: As CLIENT_HEADS says.
    clients: Table
    troubles: Sequence[Trouble]
    #: Time and text of what went wrong, the last `MOST_LINES`.
    lines: Table
    #: How many such lines there are in all.
    all_lines: int
    #: What rates the models.
    rated_by: str


def facts(run_dir: Path) -> Facts:
    """Reads the record of a run; raises UserError if there is none, or if it is damaged."""
    return told(Story(RunDirectory(run_dir)))


def told(story: Story, lives: bool | None = None, count: bool = True) -> Facts:
    """As `facts`, of a story that may have been read before; reads what is new.

    `lives` says whether its top server runs, None if nobody knows; `count` as in `Story.read`.
    """
    directory = story.directory
    with restorable(story):
        story.read(count)
        return _facts(directory, story, lives)


@contextmanager
def restorable(*stories: Story) -> Iterator[None]:
    """Turns what damaged records raise into a DataError. They are then read anew: their files may be restored."""
    try:
        yield
    except MALFORMED as error:
        for story in stories:
            story.forget()
        raise damaged([story.directory.path for story in stories], error) from None


def _facts(directory: RunDirectory, story: Story, lives: bool | None) -> Facts:
    config = load_recorded(directory.config)
    try:
        text = read_text(directory.config, MOST_OF_SETTINGS)
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{directory.config} cannot be read: {reason_of(error)}", "restore the file") from None
    events, rows = story.events, story.rows
    names = story.names
    lines: Table = list(_lines(events, names))
    evaluated = [row for row in rows if row.get("loss") is not None or score_of(row) is not None]
    return Facts(
        name=visible(directory.path.resolve().name),
        config=config,
        settings=text,
        rows=rows,
        ending=ending(events, len(rows), lives),
        names=names,
        result=_result(rows, evaluated),
        costs=_costs(rows, story.trainings),
        chosen=_chosen(config),
        nodes=_nodes(events, story.trainings, lives),
        clients=_clients(story, evaluated, names),
        troubles=troubles(events, names),
        lines=lines[-MOST_LINES:],
        all_lines=len(lines),
        rated_by=metric_of(scored_by(evaluated[-1])) if evaluated else ACCURACY,
    )


def ending(events: Sequence[Line], rounds: int, lives: bool | None = None) -> Ending:
    """How the run ended after so many `rounds`, by its events.

    `lives` says whether its top server runs, None if nobody knows.
    """
    told = [event for event in events if event.get("event") in (_WAITS, *BEGINS, *_ENDS)]
    last: Mapping[str, Any] = told[-1] if told else {}
    begun = any(event.get("event") in BEGINS for event in told)
    waits = last.get("event") in (None, _WAITS)
    played = f"after {counted(rounds, 'round')}" if rounds else "before its first round was finished"
    match last.get("event"):
        case "run_finished":
            early = next((event for event in events if event.get("event") == "stopped_early"), None)
            why = f"; no validation score was better than that of round {early.get('best')}" if early else ""
            return Ending("finished", f"The run is finished, {played}{why}.")
        case "run_failed":
            reason, remedy = (visible(str(last.get(name) or "")) for name in ("reason", "remedy"))
            return Ending("failed", f"The run failed {played}.", reason, remedy)
        case "run_stopped":
            return Ending("stopped", f"The run was stopped {played}.", _stopped(last), f"{_AGAIN} continues it")
    so_far = "goes on as soon as its nodes are back" if begun else "has not begun: it waits for nodes"
    if lives:
        return Ending("open", f"The run {so_far}." if waits else "The run is playing.")
    if lives is False:
        return Ending("failed", f"The top server ended without a word, {played}.", _KILLED, _AFTER_KILL)
    if waits:
        return Ending("open", f"The run {so_far}, or its top server ended {played}.")
    return Ending(
        "open",
        f"The run has no end yet: it is playing, or its top server was killed {played}.",
        "",
        f"if it does not run any more, continue it with {_AGAIN}",
    )


def _stopped(event: Mapping[str, Any]) -> str:
    code = event.get("code")
    who = {130: "Ctrl-C (SIGINT)", 143: "SIGTERM, as an operator, systemd or the system sends it"}
    return f"it got {who.get(code, 'a signal')}; exit code {code}" if type(code) is int else ""


def _lines(events: Sequence[Line], names: Mapping[int, str]) -> Iterator[tuple[str, str]]:
    for event in filter(is_trouble, events):
        try:
            text = describe(event, names)
        except MALFORMED:
            text = f"{event['event']}: this line of events.jsonl cannot be read"
        if text is not None:
            yield visible(str(event.get("time", "")))[:19].replace("T", " "), text


def _result(rows: Rows, evaluated: Rows) -> Table:
    found: Table = [("rounds", f"{len(rows):,}")]
    if not evaluated:
        return found
    last = evaluated[-1]
    score = scored_by(last)
    told = {row["round"]: value for row in evaluated if (value := score_of(row)) is not None}
    if told:
        name, best = metric_of(score), max(told, key=lambda number: told[number])
        found.append((f"{name}, round {max(told)}", figure(name, rated(score, told[max(told)]))))
        found.append((f"best {name} on test data, round {best}", figure(name, rated(score, told[best]))))
    if last.get(LOSS) is not None and metric_of(score) != LOSS:
        found.append((f"loss, round {last['round']}", figure(LOSS, last[LOSS])))
    found += [(visible(name), figure(name, value)) for name, value in (last.get("metrics") or {}).items()]
    if each := list(scores_of(last).values()):
        name = metric_of(score)
        least, mean, most = (figure(name, rated(score, of(each))) for of in (min, statistics.fmean, max))
        found.append((f"{name} of {counted(len(each), 'client')}", f"from {least} to {most}, mean {mean}"))
    if last.get("ipr") is not None:
        found.append(("clients that are better off than alone (IPR)", f"{100 * last['ipr']:.1f} %"))
    return found


def _costs(rows: Rows, trainings: Trainings) -> Table:
    if not rows:
        return []
    seconds = [float(row.get("seconds") or 0) for row in rows]
    moved = {name: sum(row.get(name) or 0 for row in rows) for name in ("bytes_direct", "bytes_relayed")}
    trained, skipped = (sum(row.get(name) or 0 for row in rows) for name in ("clients_trained", "clients_skipped"))
    return [
        ("time of all rounds", duration(sum(seconds))),
        ("time of a round, median", duration(statistics.median(seconds))),
        ("trainings of clients", f"{trained:,}"),
        ("trainings that were skipped", f"{skipped:,}"),
        ("time of all trainings together", duration(trainings.seconds)),
        ("weights moved from node to node", size(moved["bytes_direct"])),
        ("weights moved through managers and the top server", size(moved["bytes_relayed"])),
    ]


def _chosen(config: RunConfig) -> Table:
    found: Table = []
    for name, one in described(RunConfig).items():
        value = getattr(config, name)
        if value in (one.default, None) or value == one.default:
            continue
        pairs = value.items() if isinstance(value, dict) else [(None, value)]
        found += [(flag(name), visible(str(v) if key is None else f"{key}={v}")) for key, v in pairs]
    return found


def nodes_there(events: Sequence[Line]) -> dict[str, int]:
    """The nodes that are there, each with its number of clients, if the top server of the last events still runs."""
    there: dict[str, int] = {}
    for event in events:
        match event.get("event"):
            case "node_joined":
                there[str(event.get("node"))] = int(event.get("clients") or 0)
            case "node_left":
                there.pop(str(event.get("node")), None)
            case found if found == _WAITS:
                there.clear()
    return there


def _nodes(events: Sequence[Line], trainings: Trainings, lives: bool | None) -> Table:
    found: dict[str, tuple[str, ...]] = {}
    for event in events:
        name = visible(str(event.get("node")))
        if event.get("event") == "node_joined":
            came = visible(str(event.get("time", "")))[:19].replace("T", " ")
            known = [visible(str(event.get(field) or "")) for field in ("clients", "device", "torch", "address")]
            moved = [size(one[str(event.get("node"))]) for one in (trainings.fetched, trainings.travelled)]
            found[name] = (name, *known, *moved, came, "")
        elif event.get("event") == "node_left" and name in found:
            found[name] = (*found[name][:-1], visible(str(event.get("reason") or "")))
        elif event.get("event") == _WAITS:
            found = _left_alone(found)
    return list((_left_alone(found) if lives is False else found).values())


def _left_alone(nodes: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    """The rows of nodes after their top server has ended, perhaps without a word."""
    return {name: row if row[-1] else (*row[:-1], "the top server ended") for name, row in nodes.items()}


def _clients(story: Story, evaluated: Rows, names: Mapping[int, str]) -> Table:
    trainings = story.trainings
    where = {client: visible(node) for client, node in trainings.nodes.items()}
    samples, trained = trainings.samples, trainings.times
    skipped = Counter(event.get("client") for event in story.events if event.get("event") == "client_skipped")
    last = next((row for row in reversed(evaluated) if scores_of(row)), {})
    scores, score = scores_of(last), scored_by(last)
    known = sorted({*trained, *names, *scores, *(one for one in skipped if type(one) is int)})
    return [
        (
            with_name(client, names),
            where.get(client, ""),
            "" if samples.get(client) is None else f"{samples[client]:,}",
            str(trained[client]),
            str(skipped[client] or ""),
            figure(metric_of(score), rated(score, scores[client])) if client in scores else "",
        )
        for client in known
    ]


def figure(name: str, value: Any) -> str:
    """A figure for people; accuracy in percent."""
    if type(value) not in (int, float):
        return "no number"
    return f"{100 * value:.2f} %" if name == ACCURACY else f"{value:.4g}"


def duration(seconds: float) -> str:
    """A duration in the unit that keeps it short."""
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
