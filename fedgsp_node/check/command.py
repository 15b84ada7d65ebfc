"""The command `fedgsp-node check`."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from fedgsp import logs, stdout
from fedgsp.processes import lifecycle
from fedgsp.report import Report
from fedgsp.settings.fields import at_absolute_paths
from fedgsp.settings.flags import given, settled, with_flags
from fedgsp.settings.node_check import CheckSettings
from fedgsp.tasks import TASKS

#: Exit code if a line is not good.
NOT_GOOD = 7


@with_flags(CheckSettings, {"task": TASKS})
def check(
    context: typer.Context,
    *,
    config_file: Annotated[
        Path | None, typer.Option("--config", metavar="FILE", help="settings in TOML; flags override them")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="print the report as one JSON object", rich_help_panel="Output")
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="log more", rich_help_panel="Output")] = False,
    **_settings: Any,
) -> None:
    """Check before the first round whether `start` with the same flags would work; joins no run.

    It has the flags of `start` too. The exit code is 0 only if every line of the report is good.
    """
    settings = at_absolute_paths(settled(CheckSettings, config_file, given(context, CheckSettings), {}))
    logs.configure(verbose)
    raise typer.Exit(lifecycle.run(_check(settings, as_json)))


async def _check(settings: CheckSettings, as_json: bool) -> None:
    from fedgsp_node.check.looking import look  # here: --help needs neither gRPC nor cryptography
    from fedgsp_node.check.table import lines

    echo = stdout.taken()  # data() may go on after --data-timeout
    begin = time.monotonic()
    report = Report(lines(await look(settings)))
    seconds = time.monotonic() - begin
    echo(json.dumps(report.as_dict() | {"seconds": round(seconds, 1)}) if as_json else f"{report}, {seconds:.1f} s")
    if not report.good:
        raise typer.Exit(NOT_GOOD)
