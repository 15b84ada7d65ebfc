"""Whether the task has what the parts of the scheme need: class counts, class labels, or an accuracy."""

from collections.abc import Collection

from fedgsp.errors import ConfigError
from fedgsp.parts import Part
from fedgsp.scoring import ACCURACY, CLASS_COUNTS, CLASS_LABELS
from fedgsp.settings.run import RunConfig
from top_server.choosing import parts_of
from top_server.schemes import SCHEMES, Scheme

#: What the task lacks -> what would add it; None where nothing would.
_ADDED_BY = {
    CLASS_COUNTS: "override class_counts() in the task, with fedgsp.histogram() if its targets are no classes",
    CLASS_LABELS: None,
    ACCURACY: "override correct() in the task",
}


def check_task(config: RunConfig, scheme: Scheme, lacks: Collection[str]) -> None:
    """Raises ConfigError if a part of the scheme needs what the task lacks; the remedy names schemes that do not."""
    for part, needed in _needs(scheme):
        if needed not in lacks:
            continue
        fitting = [name for name, row in SCHEMES.built_in.items() if all(need not in lacks for _, need in _needs(row))]
        remedies = [_ADDED_BY[needed], f"choose --scheme {', '.join(fitting[:-1])} or {fitting[-1]}"]
        raise ConfigError(
            f"{part} of scheme {config.scheme} needs {needed}, and the task has none",
            ", or ".join(filter(None, remedies)),
        )


def _needs(scheme: Scheme) -> list[tuple[Part, str]]:
    """The parts of a scheme that need something of the task, with what they need."""
    return [
        (part, needed)
        for kind, part in parts_of(scheme).items()
        for needed in part.needs_of_task(part.read(scheme.given(kind)))
    ]
