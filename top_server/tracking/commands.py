"""The command of `top-server` for trackers."""

from pathlib import Path
from typing import Annotated

import typer

from fedgsp.options import options
from top_server.tracking import chosen


def export(
    run_dir: Annotated[Path, typer.Argument(help="the directory of a run, finished or not")],
    to: Annotated[str, typer.Option(metavar="NAME[=VALUE]", help="a tracker, as for --track")],
    option: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="an option of the tracker; repeatable")
    ] = None,
) -> None:
    """Send the figures of a recorded run to a tracker; what the tracker has of the run already is not sent again."""
    from top_server.tracking.following import exported

    given = {f"{to.partition('=')[0]}.{key}": text for key, text in options("--option", option or ()).items()}
    ((tracker, settings),) = chosen("--to", [to], given)
    exported(tracker, settings, run_dir)
