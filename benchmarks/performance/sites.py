"""Measures a round of FedAvg between sites, each behind a thin link of its own: needs Linux and root.

Sites are network namespaces with one node each. The server's link is as fast as the links of all sites together. A
training takes no time, so a round is the way of the model to the sites and of their models back. The floor is the time
of these bytes on the link of one site, because all sites can receive and send at the same time.
"""

from __future__ import annotations

import sys

from benchmarks.performance.rows import Row, main
from benchmarks.scale.network import why_not
from benchmarks.scale.runs import Case, play

SITES, MBIT = 8, 20.0
#: A model of 4 MB.
PARAMETERS = 1_000_000


def measure(repeats: int) -> list[Row]:
    """One row: seconds of a round, without the first, beside the floor."""
    if reason := why_not():
        sys.stderr.write(f"sites: {reason}\n")
        return []
    case = Case(
        *(SITES, "parallel", False, SITES, 1, repeats + 1),
        nodes_per_machine=1,
        mbit=MBIT,
        hub_mbit=SITES * MBIT,
        parameters=PARAMETERS,
        training_s=0.0,
    )
    floor = 2 * 4 * PARAMETERS * 8 / (MBIT * 1e6)
    what = f"FedAvg round, {SITES} sites behind {MBIT:g} Mbit/s each, {4 * PARAMETERS / 1e6:g} MB"
    return [Row(what, "s", tuple(play(case).rounds), 1.15, "bytes / rate of one link", (floor,))]


if __name__ == "__main__":
    main(measure, __doc__ or "")
