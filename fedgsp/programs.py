"""In-group programs: what the members of a group do together, and what each program needs.

The table is shared by the top server, which orders a program, and by group managers, which run it. A manager has the
implementation of each row in `group_manager.programs`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """One program. A flag that is False says that the program does not do so, or does not need it."""

    #: One sentence for `--help`, without a full stop.
    help: str
    #: A scheme, or `--program`, may name it. The others are questions that the top server asks between trainings.
    for_schemes: bool = False
    #: Members train.
    trains: bool = False
    #: Each member starts from the result of the member before it.
    chained: bool = False
    #: The result is one model of the whole group.
    makes_model: bool = False
    #: The members' models are combined by the aggregation of the scheme.
    aggregates: bool = False
    #: Members start from a model.
    needs_start: bool = False
    #: Every member may start from a model of its own in place of the group's.
    takes_own_starts: bool = False
    #: Every member must name a model that its node holds.
    needs_own_models: bool = False
    #: The request must hold training settings.
    needs_training: bool = False
    #: Members answer for their samples, so that an answer for no samples has no mean and is left out.
    counts_samples: bool = True
    #: Every pair of members is compared, which bounds their number.
    pairs: bool = False


PROGRAMS: dict[str, Program] = {
    "relay": Program(
        help="in turn: each client continues training the model of the client before it",
        for_schemes=True,
        trains=True,
        chained=True,
        makes_model=True,
        needs_start=True,
        takes_own_starts=True,
        needs_training=True,
    ),
    "parallel": Program(
        help="at once: all clients train from the same model, and the results are averaged",
        for_schemes=True,
        trains=True,
        makes_model=True,
        aggregates=True,
        needs_start=True,
        takes_own_starts=True,
        needs_training=True,
    ),
    "alone": Program(
        help="each client trains on its own, and nothing is averaged",
        trains=True,
        needs_start=True,
        takes_own_starts=True,
        needs_training=True,
    ),
    "collect": Program(help="clients send models that their nodes hold", needs_own_models=True),
    "compare": Program(
        help="clients tell the training loss of a model and its distance from a model that they hold",
        needs_start=True,
    ),
    "describe": Program(help="clients tell the class histogram of their training data"),
    "discriminate": Program(help="clients train networks that tell their data apart", pairs=True),
    "distance": Program(
        help="clients tell the distance of a model from a model that they hold",
        needs_start=True,
        counts_samples=False,
    ),
    "evaluate": Program(help="clients evaluate a model on their test data", needs_start=True, takes_own_starts=True),
    "evaluate-training": Program(
        help="clients evaluate a model on their training data", needs_start=True, takes_own_starts=True
    ),
    "forget": Program(help="nodes forget models that they hold for their clients"),
    "initialise": Program(help="a client's node makes fresh weights", makes_model=True, needs_training=True),
}
