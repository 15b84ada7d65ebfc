"""Results that can be recomputed: python -m benchmarks.results [--check], ... keep RUN_DIR, ... again SUMMARY

Without a command: makes all tables, values and pictures of docs/results from the summaries in docs/results/data. With
--check it changes no file, and the exit code is 1 if a page or a picture is not what the summaries say.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks.results import site
from benchmarks.results.again import again
from benchmarks.results.code import code_here
from benchmarks.results.store import MOST_BYTES, keep
from benchmarks.results.summary import began
from fedgsp.errors import UserError
from fedgsp.options import options


def main() -> None:
    arguments = parsed()
    try:
        if arguments.command == "keep":
            code = code_here(may_be_dirty=arguments.dirty, began=began(arguments.run))
            print(keep(arguments.run, arguments.experiment, arguments.variant, code, weights=arguments.weights))
        elif arguments.command == "again":
            given = {
                f"task_option.{key}": value for key, value in options("--task-option", arguments.task_option).items()
            }
            given |= {
                f"profile_option.{key}": value
                for key, value in options("--profile-option", arguments.profile_option).items()
            }
            equal, text = again(arguments.summary, arguments.out, given)
            print(text)
            sys.exit(0 if equal else 1)
        else:
            wrong = site.check() if arguments.check else site.make()
            for problem in wrong:
                print(problem)
            if wrong:
                sys.exit(
                    "docs/results differs from its summaries" + (": run `make results`" if arguments.check else "")
                )
    except UserError as error:
        sys.exit(f"results: {error}")


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change no file, and say what is out of date")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    kept = commands.add_parser("keep", help="write the summary of a finished run")
    kept.add_argument("run", type=Path, metavar="RUN_DIR")
    kept.add_argument("--experiment", required=True, metavar="NAME")
    kept.add_argument("--variant", required=True, metavar="NAME")
    kept.add_argument("--dirty", action="store_true", help="also if the code is not committed; the summary says so")
    kept.add_argument("--weights", action="store_true", help=f"also keep the final models, up to {MOST_BYTES} bytes")
    played = commands.add_parser("again", help="play a kept run once more, and compare the bits of its models")
    played.add_argument("summary", type=Path, metavar="FILE.json")
    played.add_argument("--out", type=Path, required=True, metavar="DIR", help="directory of the new run")
    for name in ("--task-option", "--profile-option"):
        played.add_argument(name, action="append", default=[], metavar="KEY=FILE", help="where a file of the run is")
    return parser.parse_args()


if __name__ == "__main__":
    main()
