"""The command `fedgsp-node`."""

from pathlib import Path
from typing import Annotated, Any

import typer

from fedgsp import commands, logs
from fedgsp.errors import ConfigError
from fedgsp.options import options
from fedgsp.processes import lifecycle
from fedgsp.settings.fields import at_absolute_paths
from fedgsp.settings.flags import given, settled, with_flags
from fedgsp.settings.run import NodeSettings
from fedgsp.tasks import TASKS
from fedgsp_node.check.command import check
from fedgsp_node.enrolment.command import enrol
from fedgsp_node.finished import commands as after_the_run
from fedgsp_node.policies.policy_file import dump, policy_of
from fedgsp_node.receipts_command import receipts

NAME = "fedgsp-node"
OUTPUT = "Output"

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
@with_flags(NodeSettings, {"task": TASKS})
def start(
    context: typer.Context,
    *,
    config_file: Annotated[
        Path | None, typer.Option("--config", metavar="FILE", help="settings in TOML; flags override them")
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="log to stdout, one JSON object per line", rich_help_panel=OUTPUT)
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="log more", rich_help_panel=OUTPUT)] = False,
    **_settings: Any,
) -> None:
    """Join a top server and work until its run is over."""
    # The module of a task may change the working directory.
    settings = at_absolute_paths(settled(NodeSettings, config_file, given(context, NodeSettings), {}))
    logs.configure(verbose, json_lines=json)
    from fedgsp_node import server  # imports torch, which takes seconds that --help and a wrong flag should not

    raise typer.Exit(lifecycle.run(server.run(settings)))


@app.command("policy")
def show_policy(
    file: Annotated[
        str | None, typer.Option("--policy", metavar="FILE", help="the policy to begin with; the default one without")
    ] = None,
    allow: Annotated[
        list[str] | None, typer.Option("--allow", metavar="KEY=VALUE", help="a key, to allow more; repeatable")
    ] = None,
) -> None:
    """Print the policy that `start` has with these flags, as a TOML file with an explanation of each key."""
    typer.echo(dump(policy_of(file, options("--allow", allow or []))), nl=False)


app.command()(check)
app.command()(enrol)
app.command()(after_the_run.export)
app.command()(after_the_run.evaluate)
app.command()(receipts)


def main() -> None:
    """Run the command and end the process with its exit code."""
    lifecycle.leave(commands.run(app, NAME))
