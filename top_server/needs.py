"""Whether the task has what the parts of the scheme need: class counts, class labels, an accuracy, or one output."""

from collections.abc import Iterator, Mapping

from fedgsp.errors import ConfigError
from fedgsp.scoring import ACCURACY, CLASS_COUNTS, CLASS_LABELS, ONE_OUTPUT
from fedgsp.settings.checks import flag
from fedgsp.settings.run import RunConfig
from top_server.choosing import parts_of
from top_server.schemes import SCHEMES, Scheme

#: What the task lacks -> what would add it; None where nothing would.
_ADDED_BY = {
    CLASS_COUNTS: "override class_counts() in the task, with fedgsp.histogram() if its targets are no classes",
    CLASS_LABELS: None,
    ACCURACY: "override correct() in the task",
    ONE_OUTPUT: "give --training-option of=features",  # to fedmmd, which alone needs it
}


def check_task(config: RunConfig, scheme: Scheme, lacks: Mapping[str, str]) -> None:
    """Raises ConfigError if a part of the scheme needs what the task lacks; the remedy says how to do without.

    `lacks` has for each the error by which it is missing; empty if the task simply has none.
    """
    for kind, needed in _needs(scheme):
        if needed not in lacks:
            continue
        why = lacks[needed]
        remedies = ["correct this" if why else _ADDED_BY[needed], _done_without(config, scheme, kind, needed)]
        raise ConfigError(
            f"{parts_of(scheme)[kind]} of scheme {config.scheme} needs {needed}, and the task has none"
            + (f": {why}" if why else ""),
            ", or ".join(filter(None, remedies)),
        )


def _done_without(config: RunConfig, scheme: Scheme, kind: str, needed: str) -> str:
    """What to change in the settings: the choice, or the option, by which the scheme needs this; else the scheme."""
    if needed not in _of(SCHEMES[config.scheme]):
        if getattr(config, kind) is not None:
            return f"leave out {flag(kind)}"
        for name in (given := scheme.given(kind)):
            if needed not in _of_part(scheme, kind, {key: given[key] for key in given if key != name}):
                return f"leave out {flag(f'{kind}_option')} {name}"
    fitting = [name for name, row in SCHEMES.built_in.items() if needed not in _of(row) and name != config.scheme]
    return f"choose --scheme {', '.join(fitting[:-1])} or {fitting[-1]}"


def _of(scheme: Scheme) -> set[str]:
    return {needed for _, needed in _needs(scheme)}


def _needs(scheme: Scheme) -> Iterator[tuple[str, str]]:
    """The kinds of the parts of a scheme that need something of the task, with what they need."""
    for kind in parts_of(scheme):
        for needed in _of_part(scheme, kind, scheme.given(kind)):
            yield kind, needed


def _of_part(scheme: Scheme, kind: str, given: Mapping[str, str]) -> tuple[str, ...]:
    part = parts_of(scheme)[kind]
    return part.needs_of_task(part.read(given))
