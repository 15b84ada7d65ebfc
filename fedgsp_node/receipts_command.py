"""The command `fedgsp-node receipts`."""

from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from fedgsp.errors import DataError, reason_of
from fedgsp.security.chained import BEGIN, BrokenError, TornError
from fedgsp.security.chained_parts import links_of_parts, parts_of
from fedgsp.stdout import echo
from fedgsp.words import counted


def receipts(
    folder: Annotated[Path, typer.Argument(help="the --state-dir of a node, or a folder with copies of its receipts")],
) -> None:
    """Verify what a node has kept of its orders: the chain of all lines, through all parts of receipts.jsonl."""
    path = folder / "receipts.jsonl"
    answers, number, head, torn = Counter[str](), 0, BEGIN, ""
    try:
        files = len(parts_of(path)) + path.exists()
        try:
            for link in links_of_parts(path):
                number, head = link.number, link.hash
                answers["failed" if "failed" in link.fields else str(link.fields.get("answered", "shortened"))] += 1
        except TornError:
            torn = "; the last line is not whole: the node was interrupted, or is writing it"
    except OSError as error:
        raise DataError(f"{path} cannot be read: {reason_of(error)}", "give the --state-dir of a node") from None
    except BrokenError as error:
        raise DataError(f"{path}: {error}", "compare with a copy: a part is missing, or somebody changed it") from None
    echo(f"{counted(number, 'line')} in {counted(files, 'file')}, and the chain holds{torn}")
    for answer, count in sorted(answers.items()):
        echo(f"  {answer}: {count:,}")
    echo(f"SHA-256 of the last line: {head}")
