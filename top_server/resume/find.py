"""Reads the directory of a run that was cut off, or is finished: its state, and how far its last round had come."""

import dataclasses
import os
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedgsp.connections.addresses import check_address
from fedgsp.errors import ConfigError, DataError, RunError, reason_of, remedy_of
from fedgsp.files import in_place, open_file, parse_json, parse_toml, whole_lines
from fedgsp.messages import Failure, FailureCode, FinishedHop, Member, MemberSkipped, ModelRef
from fedgsp.programs import PROGRAMS
from fedgsp.run_ids import is_run
from fedgsp.settings.checks import flag
from fedgsp.settings.files import dump
from fedgsp.settings.recorded import load_recorded
from fedgsp.settings.run import RunConfig, may_change
from top_server.groups.moved import Moved
from top_server.groups.run import first_attempt
from top_server.groups.task import Interrupted, Trace
from top_server.groups.watch import OFFENCES, hops_without
from top_server.placing import PLACES
from top_server.record.damage import MALFORMED
from top_server.record.directory import RunDirectory, lock
from top_server.record.events import read
from top_server.record.events.base import Event
from top_server.record.events.rounds import ClientSkipped, HopFinished, RoundFinished, RoundResumed, RoundStarted
from top_server.record.history import lines_of
from top_server.recorded import BEGINS, ENDS, is_finished
from top_server.resume import state
from top_server.turns import Turns


@dataclass(slots=True)
class _GroupSoFar:
    """What the events say of one group: its finished hops and its skipped members.

    `settled` are the members that were skipped before the last finished hop; they are not tried again.
    """

    hops: list[FinishedHop] = field(default_factory=list)
    skipped: dict[int, MemberSkipped] = field(default_factory=dict)
    settled: dict[int, MemberSkipped] = field(default_factory=dict)
    moved: Moved = field(default_factory=Moved)


@dataclass(frozen=True, slots=True)
class Resumed:
    """A run that is resumed or extended: its settings, and what it had done."""

    run_id: str
    address: str
    #: The working directory of the run, from which relative paths in its settings begin.
    directory: Path
    #: Number of rejected models per client.
    offences: Mapping[int, int]
    #: How often the run was resumed, this time included.
    times: int
    saved: state.Saved | None
    interrupted: Interrupted | None
    #: The numbers of rounds after which it was finished: more than none if it is, or was, extended.
    ends: tuple[int, ...] = ()
    #: The number of rounds that it was to have, by the record.
    rounds: int = 0
    #: Whether it is finished, and rounds are added to it.
    extends: bool = False
    #: How long the clients took for their turns.
    turns: Turns = field(default_factory=Turns)

    @property
    def round(self) -> int:
        """The last finished round; 0 if none is."""
        return self.saved.round if self.saved is not None else 0

    @property
    def flag(self) -> str:
        """The flag with which the user gave the directory."""
        return _flag(self.extends)


def find(directory: RunDirectory, extends: bool = False) -> Resumed:
    """Reads a run's directory; raises ConfigError if the run cannot be resumed, DataError if it is damaged.

    With `extends`, the run must be finished, and otherwise it must not be.
    """
    asked = f"{_flag(extends)} {directory.path}"
    if not directory.events.exists():
        raise ConfigError(f"{asked} holds no run", "give the directory of a run (its --run-dir)")
    try:
        return _read(directory, asked, extends)
    except MALFORMED as error:
        raise DataError(
            f"{asked}: its record is damaged ({type(error).__name__}: {error})",
            "restore it, or start the run again",
        ) from None


def _flag(extends: bool) -> str:
    return "--extend" if extends else "--resume"


def settings_of(resumed: Resumed, directory: RunDirectory) -> RunConfig:
    """The settings in config.toml of the run; raises UserError if they cannot be read.

    For a run that is extended, `rounds` is the number of rounds that it had, by its record: an earlier extension may
    have been cut off after it wrote its own number into config.toml.
    """
    settings = dataclasses.replace(load_recorded(directory.config), run_dir=directory.path)
    return dataclasses.replace(settings, rounds=resumed.rounds) if resumed.extends else settings


def _named_code(resumed: Resumed, config: RunConfig) -> Iterator[tuple[str, str]]:
    """What settings of a run can make this user execute, in words, and what has to be trusted for it."""
    if config.placed is not None and ":" in config.task:
        yield f"imports {config.task} from {resumed.directory}", "the code there"
    place = None if config.placed is None else PLACES.get(config.placed)
    for name in () if place is None else place.runs:
        if name in config.place_option:
            value = config.place_option[name]
            yield f"has {value!r} as option {name} of place {config.placed}, which can name what is run", "that"


def work_there(resumed: Resumed, config: RunConfig) -> None:
    """Changes to the working directory of the run; raises ConfigError if it is gone.

    Nodes that the run starts import a task of the form module:factory from there. A record alone must not decide which
    code runs: somebody may have given the run directory to the user. So the user must then be in that directory. The
    same holds for options of a place that can name a command or another cluster, such as flags of srun.
    """
    for what, thing in _named_code(resumed, config):
        if resumed.directory.resolve() != Path.cwd():
            remedy = f"if you trust {thing}, run: cd {shlex.quote(str(resumed.directory))}"
            raise ConfigError(f"{resumed.flag}: this run {what}, according to its record", remedy)
    try:
        os.chdir(resumed.directory)
    except (OSError, ValueError) as error:  # ValueError: a NUL byte
        raise ConfigError(
            f"the run was started in {resumed.directory}, which cannot be entered: {reason_of(error)}",
            "its settings may have paths that begin there: restore it, or make an empty one",
        ) from None


def check_settings(resumed: Resumed, settings: RunConfig) -> None:
    """Raises ConfigError if the settings in the directory are not those that the run had.

    A run that was extended may have more rounds than its state says, so that its record counts.
    """
    if resumed.saved is None:
        return
    try:
        had = parse_toml(resumed.saved.document["config"])
    except ValueError as error:
        raise DataError(
            f"{resumed.flag}: config in {resumed.saved.folder} is not TOML: {error}", "restore it"
        ) from None
    if resumed.ends:
        had["rounds"] = resumed.rounds
    have = parse_toml(dump(dataclasses.replace(settings, run_dir=None)))
    compared = (had.keys() | have.keys()).difference(may_change())
    if changed := sorted(name for name in compared if had.get(name) != have.get(name)):
        raise ConfigError(
            f"{resumed.flag}: {', '.join(map(flag, changed))} in config.toml is not what the run had",
            "restore that file: a run that is continued has the settings that it began with",
        )


def _read(directory: RunDirectory, asked: str, extends: bool) -> Resumed:
    saved = state.latest(directory)
    done, turns = saved.round if saved is not None else 0, Turns()
    events, of_round = list[dict[str, Any]](), list[dict[str, Any]]()
    for event in lines_of(directory.events):  # they may be millions
        turns.note(event)
        if event["event"] in (*BEGINS, ENDS, "listening"):
            events.append(event)
        elif event.get("round") == done + 1:
            of_round.append(event)
    begun = [event for event in events if event["event"] in BEGINS]
    listening = [event for event in events if event["event"] == "listening"]
    if not begun or not listening:
        with directory.events.open("rb") as file:
            lock(file, directory)  # refused if that run's top server still waits for nodes
        raise ConfigError(
            f"{asked}: that run was cut off before its first round",
            f"start it again: top-server --config {directory.config} --run-dir {directory.path}",
        )
    finished = is_finished(events)
    if finished and not extends:
        more = "; to add rounds, use --extend with --rounds" if saved is not None else ""
        raise ConfigError(f"{asked}: that run is finished", f"its models are in models/{more}")
    if extends and not finished:
        raise ConfigError(
            f"{asked}: that run is not finished",
            f"continue it first: top-server --resume {shlex.quote(str(directory.path))}",
        )
    if extends and saved is None:
        raise ConfigError(
            f"{asked}: state/ has nothing from which the run could continue",
            f"start a longer run: top-server --config {shlex.quote(str(directory.config))} --rounds ...",
        )
    times = 1 + sum(event["event"] == "run_resumed" for event in events)
    interrupted = _interrupted(map(read, of_round), done + 1, first_attempt(times))
    offences = Counter(saved.offences if saved is not None else {})
    # A client that was skipped after the last finished hop is tried again.
    for trace in interrupted.traces if interrupted else ():
        offences.update(one.client for one in trace.skipped if one.failure and one.failure.code in OFFENCES)
    rounds = [row["round"] for row in lines_of(directory.history)] if directory.history.exists() else []
    if saved is None and rounds:
        raise DataError(f"{asked}: state/ is gone", "restore it, or start the run again")
    if len(rounds) < done or rounds[:done] != list(range(1, done + 1)):
        raise DataError(
            f"{asked}: history.jsonl lacks rounds of the {done} that are done",
            "restore it, or start the run again",
        )
    if not is_run(begun[0]["run"]):
        raise ValueError("the id of the run is none")
    check_address("listening", listening[-1]["address"])
    return Resumed(
        run_id=begun[0]["run"],
        address=listening[-1]["address"],
        directory=Path(begun[0]["directory"]),
        offences=offences,
        times=times,
        saved=saved,
        interrupted=interrupted,
        ends=tuple(int(event["rounds"]) for event in events if event["event"] == ENDS),
        rounds=int(begun[-1].get("rounds") or 0),
        extends=extends,
        turns=turns,
    )


def mend(directory: RunDirectory, done: int) -> None:
    """Removes half-written lines from both files, and rows of rounds that are played again; raises RunError."""
    try:
        _keep(directory.events, lambda _: True)
        _keep(directory.history, lambda row: row["round"] <= done)
    except OSError as error:
        raise RunError(f"{directory.path} cannot be repaired: {reason_of(error)}", remedy_of(error)) from error


def _keep(path: Path, wanted: Callable[[Mapping[str, Any]], bool]) -> None:
    """Cuts a file of JSON lines off before the first unwanted line."""
    kept = 0
    with open_file(path) as lines:
        for line in whole_lines(lines):
            if not wanted(parse_json(line)):
                break
            kept += len(line)
    with open(path, "r+b", opener=in_place) as file:
        file.truncate(kept)


def _interrupted(events: Iterable[Event | None], number: int, attempt: int) -> Interrupted | None:
    """The work of a round before the cut; None if the round was not begun, or was finished but not saved."""
    teams: tuple[tuple[int, ...], ...] | None = None
    groups: list[_GroupSoFar] = []
    resumed = False
    for event in events:
        if getattr(event, "round", None) != number:
            continue
        match event:
            case RoundResumed():
                resumed = True
            case RoundStarted():
                if not resumed:
                    teams = tuple(tuple(team) for team in event.teams)
                    groups = [_GroupSoFar() for _ in teams]
                resumed = False
            case HopFinished() | ClientSkipped() if teams is not None and event.group < len(groups):
                _note(groups[event.group], event)
            case RoundFinished():
                teams = None
    if teams is None:
        return None
    return Interrupted(
        number,
        teams,
        tuple(Trace(attempt, tuple(group.hops), tuple(group.settled.values()), group.moved) for group in groups),
    )


def _note(group: _GroupSoFar, event: HopFinished | ClientSkipped) -> None:
    program = PROGRAMS.get(event.program)
    if program is None or not program.chained:  # only a relay is continued
        return
    if isinstance(event, ClientSkipped):
        code = FailureCode[event.code] if event.code is not None else FailureCode.UNSPECIFIED
        group.skipped[event.client] = MemberSkipped(event.client, Failure(code, event.reason))
        group.hops = hops_without(event.client, group.hops)
        return
    hop = FinishedHop(
        Member(event.client, event.node or "", "", event.samples), ModelRef(event.model or ""), event.update_length
    )
    group.hops[event.position :] = [hop]
    direct = event.bytes if event.via == "node" else 0
    group.moved += Moved(direct, event.bytes - direct, event.travelled or 0)
    group.skipped.pop(event.client, None)
    # A member skipped before this hop would now train out of its turn; a member skipped later has not missed its turn.
    group.settled = dict(group.skipped)
