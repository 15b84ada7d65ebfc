"""Parts of other packages that run on nodes: those that a run needs, and those that a node has."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from fedgsp.messages import InstalledPart
from fedgsp.optimizers import OPTIMIZERS
from fedgsp.outgoing import OUTGOING
from fedgsp.parts import Parts
from fedgsp.schedules import SCHEDULES
from fedgsp.trainings import TRAININGS

#: The tables of the parts that nodes run. Tasks are compared by their own rules.
_TABLES: tuple[Parts[Any], ...] = (TRAININGS, OPTIMIZERS, SCHEDULES, OUTGOING)


def installed() -> tuple[InstalledPart, ...]:
    """The parts of other packages that this process could run."""
    return tuple(
        InstalledPart(table.kind, name, package) for table in _TABLES for name, package in table.packages().items()
    )


def needed(chosen: Mapping[str, Sequence[str]]) -> tuple[InstalledPart, ...]:
    """The parts of other packages that nodes need for these choices, names by kind."""
    return tuple(part for part in installed() if part.name in chosen[part.kind])


def lacking(parts: Collection[InstalledPart], has: Collection[InstalledPart]) -> str:
    """Why a node that has some parts cannot take part in a run that needs others; empty if it can."""
    for part in parts:
        if part not in has:
            own = [other.package for other in has if (other.kind, other.name) == (part.kind, part.name)]
            what = f"has {part.kind} {part.name} of package {own[0]}" if own else f"lacks {part.kind} {part.name}"
            return (
                f"it {what}, and the run needs that of package {part.package}:"
                f" run `pip install {part.package.replace(' ', '==')}` on its machine, and start it again"
            )
    return ""
