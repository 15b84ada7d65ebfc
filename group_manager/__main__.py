"""Started by the top server: `python -m group_manager --name m0 --run 1f0c --listen 127.0.0.1:0`.

No typer here: a manager has to be ready in a fraction of a second.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from fedgsp import logs, windows
from fedgsp.errors import UserError
from fedgsp.lifecycle import run as run_until_stopped
from fedgsp.liveness import LOST_AFTER_S
from fedgsp.tls import load, tls_files
from fedgsp.windows import HAND_OVERS
from group_manager.server import run


def main() -> int:
    """Parses the command line and serves; returns the exit code."""
    parser = argparse.ArgumentParser(prog="group_manager", description="Coordinates one group of clients at a time.")
    parser.add_argument("--name", required=True)
    parser.add_argument("--run", default="", metavar="ID")
    parser.add_argument("--listen", required=True, metavar="HOST:PORT")
    parser.add_argument("--lost-after", type=float, default=LOST_AFTER_S, metavar="SECONDS")
    parser.add_argument("--hand-over", choices=HAND_OVERS, default=HAND_OVERS[0])
    for flag in ("--tls-ca", "--tls-cert", "--tls-key"):
        parser.add_argument(flag, type=Path, metavar="FILE")
    arguments = parser.parse_args()
    logs.configure()
    windows.choose(arguments.hand_over)
    try:
        tls = load(tls_files(arguments.tls_ca, arguments.tls_cert, arguments.tls_key))
        return run_until_stopped(run(arguments.name, arguments.run, arguments.listen, tls, arguments.lost_after))
    except UserError as error:
        return logs.report(error)


if __name__ == "__main__":
    sys.exit(main())
