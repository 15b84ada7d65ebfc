"""The command `fedgsp-node`."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

import typer

from fedgsp import commands, lifecycle, logs, tls
from fedgsp.errors import ConfigError
from fedgsp.liveness import LEAST_LOST_AFTER_S, LOST_AFTER_S, MOST_LOST_AFTER_S
from fedgsp.options import options
from fedgsp.windows import HAND_OVERS
from fedgsp_node.settings import NodeSettings, parse_clients

NAME = "fedgsp-node"
REACHING = "Reaching others"
WORK = "Work"
REPORTING = "Reporting"

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.callback(invoke_without_command=True)
def node(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option("--version", callback=commands.version_of(NAME), is_eager=True, help="show the version and exit"),
    ] = False,
) -> None:
    """Host clients: hold their data, train, and pass weights on."""
    if context.invoked_subcommand is None:
        raise ConfigError("no command is given", "give `start`, or see --help")


@app.command()
def start(
    top_server: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="the top server to join", rich_help_panel=REACHING)
    ],
    task: Annotated[
        str, typer.Option(help="a built-in task, or your own as module:factory", rich_help_panel=WORK)
    ] = "digits",
    task_option: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="an option of the task; repeatable", rich_help_panel=WORK),
    ] = None,
    clients: Annotated[
        str | None,
        typer.Option(
            metavar="IDS", help="clients to host, such as 0-3,7; all of the task by default", rich_help_panel=WORK
        ),
    ] = None,
    peer_listen: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="where other nodes fetch weights from this one; without it they go through the group managers",
            rich_help_panel=REACHING,
        ),
    ] = None,
    advertise: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="the address that other nodes are told to dial, if not that of --peer-listen",
            rich_help_panel=REACHING,
        ),
    ] = None,
    tls_ca: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="PEM file of the CA that issued all peers' certificates; without it nothing is encrypted",
            rich_help_panel=REACHING,
        ),
    ] = None,
    tls_cert: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="PEM file of the certificate that this process shows to all peers",
            rich_help_panel=REACHING,
        ),
    ] = None,
    tls_key: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="PEM file of the private key of --tls-cert", rich_help_panel=REACHING),
    ] = None,
    state_dir: Annotated[
        Path | None,
        typer.Option(
            metavar="DIRECTORY",
            help="where clients' heads and models are kept for a restart of the node; in memory only by default",
            rich_help_panel=WORK,
        ),
    ] = None,
    threads: Annotated[
        int,
        typer.Option(
            min=1, max=1024, help="threads to train with; the bits of the models depend on it", rich_help_panel=WORK
        ),
    ] = 1,
    name: Annotated[
        str | None, typer.Option(help="name of this node in the run's records; HOST-PID by default")
    ] = None,
    connect_timeout: Annotated[
        float,
        typer.Option(
            metavar="SECONDS", help="exit after looking for a top server for this long", rich_help_panel=REACHING
        ),
    ] = 120.0,
    lost_after: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            min=LEAST_LOST_AFTER_S,
            max=MOST_LOST_AFTER_S,
            help="treat a peer as lost (dead, frozen or cut off) after this long without a sign of life",
            rich_help_panel=REACHING,
        ),
    ] = LOST_AFTER_S,
    hand_over: Annotated[
        str,
        typer.Option(
            metavar="|".join(HAND_OVERS),
            help="how models pass to processes of this machine: by shared memory (auto), or always over the network",
            rich_help_panel=REACHING,
        ),
    ] = HAND_OVERS[0],
    json: Annotated[
        bool, typer.Option("--json", help="log to stdout, one JSON object per line", rich_help_panel=REPORTING)
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="log more", rich_help_panel=REPORTING)] = False,
) -> None:
    """Join a top server and work until its run is over."""
    if not connect_timeout > 0:
        raise ConfigError(f"--connect-timeout is {connect_timeout:g}", "give a number of seconds above 0")
    if hand_over not in HAND_OVERS:
        raise ConfigError(f"--hand-over is {hand_over!r}", f"give one of {', '.join(HAND_OVERS)}")
    files = tls.tls_files(tls_ca, tls_cert, tls_key)
    settings = NodeSettings(
        top_server=top_server,
        task=task,
        task_options=options("--task-option", task_option or []),
        clients=None if clients is None else parse_clients(clients),
        peer_listen=peer_listen,
        advertise=advertise,
        state_dir=state_dir,
        threads=threads,
        name=name,
        connect_timeout=connect_timeout,
        lost_after=lost_after,
        hand_over=hand_over,
    )
    _check_addresses(settings)
    logs.configure(verbose, json_lines=json)
    settings = dataclasses.replace(settings, tls=_credentials(settings, files))
    from fedgsp_node import server  # brings in torch, which takes seconds that --help and a bad flag should not

    raise typer.Exit(lifecycle.run(server.run(settings)))


def _check_addresses(settings: NodeSettings) -> None:
    from fedgsp.channels import check_address  # brings in gRPC

    for flag, address in (
        ("--top-server", settings.top_server),
        ("--peer-listen", settings.peer_listen),
        ("--advertise", settings.advertise),
    ):
        if address is not None:
            check_address(flag, address)
    if settings.advertise and not settings.peer_listen:
        raise ConfigError("--advertise tells an address where nobody listens", "give --peer-listen too")


def _credentials(settings: NodeSettings, files: tls.TlsFiles | None) -> tls.Tls | None:
    from fedgsp.channels import is_wildcard, split_address

    found, told = tls.load(files), settings.advertise or settings.peer_listen
    if found and told and not is_wildcard(host := split_address(told)[0]):
        found.check_covers(host, "where other nodes dial this one")
    return found


def main() -> None:
    """Run the command and end the process with its exit code."""
    lifecycle.leave(commands.run(app, NAME))
