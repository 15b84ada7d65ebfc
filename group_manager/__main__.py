"""Started by the top server: `python -m group_manager --name m0 --run 1f0c --listen 127.0.0.1:0`.

argparse and not typer: a manager has to be ready in a fraction of a second.
"""

import argparse
import sys

from fedgsp import logs
from fedgsp.errors import UserError
from fedgsp.processes.lifecycle import run as run_until_stopped
from fedgsp.processes.lifecycle import told
from fedgsp.security.tls import load
from fedgsp.settings.checks import check
from fedgsp.settings.flags import add_to
from fedgsp.settings.managers import ManagerSettings
from fedgsp.transfers import pipes
from group_manager.server import run


def main() -> int:
    """Parses the command line and serves; returns the exit code."""
    parser = argparse.ArgumentParser(prog="group_manager", description="Coordinates one group of clients at a time.")
    add_to(parser, ManagerSettings)
    settings = ManagerSettings(**vars(parser.parse_args()))
    logs.configure()
    pipes.choose(settings.hand_over)
    try:
        check(settings, {})
        run_key = bytes.fromhex(told())
        return run_until_stopped(run(settings, run_key, load(settings.tls_files)))
    except UserError as error:
        return logs.report(error)


if __name__ == "__main__":
    sys.exit(main())
