"""The command `top-server`."""

import dataclasses
import shlex
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from fedgsp import commands, logs
from fedgsp.errors import ConfigError, UserError
from fedgsp.identity import Role
from fedgsp.outgoing import OUTGOING
from fedgsp.owners import check_tree, tell_if_open
from fedgsp.parts import Part, Parts
from fedgsp.processes import lifecycle
from fedgsp.schedules import SCHEDULES
from fedgsp.security import tls
from fedgsp.settings.checks import flag
from fedgsp.settings.fields import Described, described
from fedgsp.settings.flags import combine, given, settled, with_flags
from fedgsp.settings.run import GroupingServiceSettings, RunConfig, may_change
from fedgsp.settings.web import WebSettings
from fedgsp.stdout import echo
from top_server import placing
from top_server.baseline import local_run
from top_server.choosing import NAMES, TABLES, choose
from top_server.ending import run_recorded
from top_server.federation import commands as commands_of_federation
from top_server.grouping.round_size import GROWTHS
from top_server.kubernetes import commands as commands_of_kubernetes
from top_server.placing import PLACES, certificates
from top_server.placing.slurm.command import slurm
from top_server.record.directory import RunDirectory, check_links, close_to_others, is_worth_keeping, prepare, remove
from top_server.record.journal import Journal
from top_server.tracking import TRACKERS, chosen
from top_server.tracking import commands as commands_of_trackers
from top_server.tracking.base import Tracker

NAME = "top-server"
OUTPUT = "Output"
#: Kind of part -> the parts of that kind.
LISTED: Mapping[str, Parts[Any]] = {
    **TABLES,
    SCHEDULES.kind: SCHEDULES,
    OUTGOING.kind: OUTGOING,
    TRACKERS.kind: TRACKERS,
    PLACES.kind: PLACES,
    GROWTHS.kind: GROWTHS,
}
#: Kind of part -> its flags in `top-server parts`, where they differ from those of the other kinds.
_FLAGS = {
    GROWTHS.kind: "--growth NAME",
    OUTGOING.kind: "--outgoing NAME, --outgoing-option NAME.KEY=VALUE",  # a run may have several steps
    TRACKERS.kind: "--track NAME, --track-option NAME.KEY=VALUE",
}

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.callback(invoke_without_command=True)
@with_flags(RunConfig, NAMES)
def run(
    context: typer.Context,
    *,
    config_file: Annotated[
        Path | None,
        typer.Option(
            "--config", metavar="FILE", help="settings in TOML, such as the config.toml of a run; flags override them"
        ),
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option("--resume", metavar="DIRECTORY", help="continue an interrupted run with its settings"),
    ] = None,
    extend: Annotated[
        Path | None,
        typer.Option(
            "--extend",
            metavar="DIRECTORY",
            help="continue a finished run; --rounds is the number of all its rounds",
        ),
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="print events to stdout, one JSON object per line", rich_help_panel=OUTPUT)
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="log more to stderr", rich_help_panel=OUTPUT)] = False,
    version: Annotated[
        bool,
        typer.Option("--version", callback=commands.version_of(NAME), is_eager=True, help="show the version and exit"),
    ] = False,
    **_settings: Any,
) -> None:
    """Lead a federated-learning run: wait for nodes, group their clients, train, record."""
    flags = given(context, RunConfig)
    again = {"--resume": resume, "--extend": extend}
    asked = [name for name, path in again.items() if path is not None]
    if context.invoked_subcommand is not None:
        if flags or config_file or asked:
            wrong = "--config" if config_file else asked[0] if asked else flag(next(iter(flags)))
            raise ConfigError(f"{wrong} is a flag of a run, not of {context.invoked_subcommand}", "leave it out")
        return
    if asked:
        _check_again(asked, flags, config_file)
        logs.configure(verbose)
        raise typer.Exit(_continue(resume or extend or Path(), flags, json, extends=extend is not None))
    settings = settled(RunConfig, config_file, flags, NAMES)
    logs.configure(verbose)
    raise typer.Exit(_run(settings, json))


def _check_again(asked: Sequence[str], flags: Mapping[str, Any], config_file: Path | None) -> None:
    """Raises ConfigError for flags that do not go with the settings that a run has."""
    if len(asked) > 1:
        raise ConfigError("--resume is for an interrupted run, and --extend for a finished one", "give one of them")
    extends = asked[0] == "--extend"
    fixed = [flag(name) for name in flags if name not in may_change() and not (extends and name == "rounds")]
    if fixed or config_file:
        wrong = "--config" if config_file else fixed[0]
        raise ConfigError(f"{wrong} cannot be given with {asked[0]}: the run has its settings", "drop it")
    if extends and "rounds" not in flags:
        raise ConfigError("--extend needs the number of all rounds of the run", "give --rounds")


def _run(settings: RunConfig, json: bool) -> int:
    from top_server import initial_file, server  # here and not above: --help and a bad flag need no gRPC

    choose(settings)  # refuses what cannot work together before a directory is taken
    credentials = server.credentials(settings)
    if settings.initial_model is not None:
        initial_file.check_readable(settings.initial_model)
    local_run.check(settings)
    _trackers(settings)
    _check_place(settings)
    existed = settings.run_dir is not None and settings.run_dir.exists()
    directory = prepare(settings)
    tell_if_open("--run-dir", directory.path, "without that, this run cannot be resumed")
    settings = dataclasses.replace(settings, run_dir=directory.path)
    return _play(settings, directory, json, lambda journal: server.run(settings, journal, credentials), existed)


def _continue(path: Path, flags: Mapping[str, Any], json: bool, extends: bool) -> int:
    """Continues an interrupted run, or with `extends` a finished one."""
    from top_server import server
    from top_server.resume import extend
    from top_server.resume import find as resuming

    directory = RunDirectory(path.absolute())
    check_tree("--extend" if extends else "--resume", directory.path)
    check_links(directory, "--extend" if extends else "--resume")
    resumed = resuming.find(directory, extends)
    had = resuming.settings_of(resumed, directory)
    resuming.work_there(resumed, had)
    close_to_others(directory, resumed.flag)
    if extends:
        resuming.check_settings(resumed, had)
        extend.check(had, choose(had), resumed.round, flags["rounds"])
    settings = combine(had, flags, NAMES)
    choose(settings)
    if not extends:
        resuming.check_settings(resumed, settings)
    credentials = server.credentials(settings)
    _trackers(settings)
    _check_place(settings)

    def rest(journal: Journal) -> Coroutine[Any, Any, None]:
        resumed = resuming.find(directory, extends)  # again: only from now on no other process records there
        resuming.mend(directory, resumed.round)
        return server.run(settings, journal, credentials, resumed)

    return _play(settings, directory, json, rest)


def _check_place(settings: RunConfig) -> None:
    """Raises UserError for a place that cannot be used, before a directory is taken."""
    found = placing.chosen(settings)
    if found is not None and found[0].remote:
        certificates.check(settings)


def _trackers(settings: RunConfig) -> list[tuple[Tracker, Any]]:
    """The trackers of a run with their options; raises ConfigError for what cannot be used."""
    return chosen("--track", settings.track, settings.track_option)


def _play(
    settings: RunConfig,
    directory: RunDirectory,
    json: bool,
    main: Callable[[Journal], Coroutine[Any, Any, None]],
    existed: bool = True,
) -> int:
    """Plays a run to its end and returns the exit code; `existed`: whether the directory was there before.

    The last line of a run that was interrupted says how to resume it. A start at which nothing happened leaves no
    files.
    """
    from top_server.resume import state
    from top_server.tracking.following import tracked
    from top_server.view.watching import watching
    from top_server.web import beside

    code = 1
    with Journal(directory) as journal:
        try:
            with (
                beside.shown(settings, directory),
                watching(journal, directory, json),
                tracked(journal, directory, _trackers(settings)),
            ):
                code = run_recorded(main(journal), journal)
        except UserError as error:
            code = logs.report(error)
        finally:
            if not is_worth_keeping(directory):
                remove(directory, folder_too=not existed)
            elif code and state.is_in(directory):
                logs.say(f"to continue this run: {NAME} --resume {shlex.quote(str(directory.path))}")
    return code


@app.command()
def picture(
    run_dir: Annotated[Path, typer.Argument(help="the directory of a run, finished or not")],
    out: Annotated[Path | None, typer.Option(help="the file to write; RUN_DIR/run.png by default")] = None,
) -> None:
    """Draw a run: score, loss and metrics by round, who trained with whom, distances between data, gains."""
    from top_server.pictures import run as drawing

    target = out or run_dir / "run.png"
    drawing.draw(run_dir, target)
    echo(target)


@app.command()
def report(
    run_dirs: Annotated[list[Path], typer.Argument(help="directories of runs, finished or not")],
    out: Annotated[
        Path | None,
        typer.Option(
            help="the file to write; by default report.html in RUN_DIR, or for several runs in the working directory"
        ),
    ] = None,
    pictures: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="also write each chart as a file into this folder")
    ] = None,
) -> None:
    """Write a report of one run, or a comparison of several runs, as one HTML file that needs no network."""
    from top_server.report import page

    target = out or (run_dirs[0] / "report.html" if len(run_dirs) == 1 else Path("report.html"))
    page.write(run_dirs, target, pictures)
    echo(target)


@app.command()
@with_flags(WebSettings, {})
def web(
    context: typer.Context,
    runs_dir: Annotated[Path, typer.Argument(help="a folder with directories of runs, or the directory of one run")],
    *,
    verbose: Annotated[bool, typer.Option("--verbose", help="log more to stderr")] = False,
    **_settings: Any,
) -> None:
    """Show recorded runs, and runs that are being played, on a web page. The page changes nothing."""
    settings = settled(WebSettings, None, given(context, WebSettings), {})
    logs.configure(verbose)
    from top_server.federation.opening import certify  # here: --help needs no gRPC

    certify(settings)
    credentials = tls.load(settings.tls_files)
    if credentials:
        credentials.check_is(Role.TOP_SERVER, Role.OPERATOR)
    from top_server.web.runs import Runs
    from top_server.web.serving import serve

    raise typer.Exit(lifecycle.run(serve(Runs(runs_dir), settings, credentials, echo)))


@app.command()
def audit(
    run_dir: Annotated[Path, typer.Argument(help="the directory of a run, finished or not")],
    tls_ca: Annotated[
        Path | None, typer.Option(help="the CA that issued the certificates; without it, their fingerprints are shown")
    ] = None,
) -> None:
    """Verify the audit log of a run: who took part, and that every training is signed by the node that made it."""
    from top_server.audit import check

    for line in check(run_dir, tls_ca):
        echo(line)


@app.command()
def parts(
    kind: Annotated[
        str, typer.Argument(help="a kind of part: grouping, profile, program, ...; all kinds by default")
    ] = "",
) -> None:
    """List the parts of each kind with their options, also those of installed packages."""
    for line in listed(kind):
        echo(line)


def listed(kind: str = "") -> Iterator[str]:
    """Lines about the parts of one kind, or of all kinds. A part of a broken package has the reason as its help.

    Raises ConfigError for an unknown kind.
    """
    if kind and kind not in LISTED:
        raise ConfigError(
            f"there is no kind of part {kind!r}", f"known: {', '.join(LISTED)}; --help lists schemes and tasks"
        )
    for name in [kind] if kind else sorted(LISTED):
        yield from _table(LISTED[name])


def _table(table: Parts[Part]) -> Iterator[str]:
    flags = _FLAGS.get(table.kind, f"--{table.kind} NAME, --{table.kind}-option KEY=VALUE")
    yield f"{table.kind} ({flags})"
    packages = table.packages()
    for name in table:
        whose = f" [{packages[name]}]" if name in packages else ""
        try:
            part = table[name]
        except ConfigError as error:
            yield f"  {name}{whose}: {error}"
        else:
            yield f"  {name}{whose}: {part.help}"
            yield from (f"      {_option(one)}" for one in described(part.options).values())


def _option(one: Described) -> str:
    value = getattr(one.default, "common", one.default)
    default = "" if value in (None, "", ()) else f"={str(value).lower()}"
    return f"{one.name}{default}: {one.help} ({one.wanted})"


@app.command()
@with_flags(GroupingServiceSettings, {})
def grouping_service(
    context: typer.Context,
    *,
    config_file: Annotated[
        Path | None, typer.Option("--config", metavar="FILE", help="settings in TOML; flags override them")
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", help="log more to stderr")] = False,
    **_settings: Any,
) -> None:
    """Serve groupings to top servers that were started with --grouping grpc://HOST:PORT."""
    settings = settled(GroupingServiceSettings, config_file, given(context, GroupingServiceSettings), {})
    logs.configure(verbose)
    credentials = tls.load(settings.tls_files)
    if credentials:
        credentials.check_is(Role.GROUPING_SERVICE, Role.TOP_SERVER)
    from top_server.grouping_service import serve

    raise typer.Exit(lifecycle.run(serve(settings.listen, credentials, settings.insecure)))


_OF_FEDERATION = (
    commands_of_federation.invite,
    commands_of_federation.assign,
    commands_of_federation.operator,
    commands_of_federation.revoke,
)
for command in (*_OF_FEDERATION, commands_of_kubernetes.kubernetes, slurm, commands_of_trackers.export):
    app.command()(command)


def main() -> None:
    """Run the command and end the process with its exit code."""
    lifecycle.leave(commands.run(app, NAME))
