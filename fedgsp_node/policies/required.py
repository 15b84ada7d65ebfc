"""Whether a training order has the outgoing steps that a policy requires, directly one after another."""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from fedgsp.errors import ConfigError
from fedgsp.messages import OutgoingStep, Reveal, Train
from fedgsp.optimizers import RELAYED
from fedgsp.options import same
from fedgsp.outgoing import HEAD, OUTGOING
from fedgsp.settings.fields import values_of

STATE_LEAVES = (
    "the state of the optimiser would leave beside the trained model, as the training has left it"
    " (--optimizer-state kept or fresh of the top server avoids that)"
)


class Wanted(NamedTuple):
    """A step that is required, with the texts of the options that it must have."""

    name: str
    options: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        return ",".join(f"{self.name}.{key}={value}" for key, value in self.options) or self.name


def wanted_steps(require: Iterable[str]) -> tuple[Wanted, ...]:
    """The steps that entries STEP and STEP.KEY=VALUE name; entries of one step that follow each other are one step."""
    steps: list[Wanted] = []
    for entry in require:
        name, _, option = entry.partition(".")
        key, _, value = option.partition("=")
        given = ((key, value),) if key else ()
        last = steps[-1] if steps else None
        if last is None or last.name != name or key in dict(last.options):
            steps.append(Wanted(name, given))
        else:
            steps[-1] = Wanted(name, last.options + given)
    return tuple(steps)


def lacking(work: Train, require: Iterable[str]) -> Iterator[str]:
    """What a training order lacks of the required steps; nothing if its result leaves the node only through them."""
    wanted = wanted_steps(require)
    if not wanted:
        return
    # Steps after the reveal are taken last, wherever the order has them.
    taken = sorted(work.outgoing, key=_after_reveal)
    for one in wanted:
        if not any(_meets(step, one) for step in taken):
            yield f"the trained model would leave without step {one}"
    if not any(_begin(taken[place:], wanted) for place in range(len(taken))):
        yield f"the trained model would not pass {', '.join(map(str, wanted))} directly one after another"
    if work.reveal is not None:
        for one in wanted:
            if not _covers_reveal(one.name, work.reveal):
                yield f"what it asks a client to reveal would leave without step {one}"
    optimizer = work.settings.optimizer if work.settings is not None else None
    if optimizer is not None and optimizer.state == RELAYED:
        yield STATE_LEAVES


def _after_reveal(step: OutgoingStep) -> bool:
    return step.name in OUTGOING and OUTGOING[step.name].after_reveal


def _begin(steps: Sequence[OutgoingStep], wanted: Sequence[Wanted]) -> bool:
    """Whether a list begins with the wanted steps."""
    return len(steps) >= len(wanted) and all(map(_meets, steps, wanted))


def _meets(step: OutgoingStep, wanted: Wanted) -> bool:
    """Whether a step is the wanted one, with all its options; an option that is not given has its default."""
    if step.name != wanted.name or not wanted.options:
        return step.name == wanted.name
    try:
        options = values_of(OUTGOING[step.name].read(step.options))
    except ConfigError:
        return False  # the order fails later, by name
    return all(key in options and same(str(options[key]), value) for key, value in wanted.options)


def _covers_reveal(name: str, reveal: Reveal) -> bool:
    """Whether a step also covers what a client reveals of its update."""
    if name == HEAD:
        return reveal.without_head
    return name not in OUTGOING or not (OUTGOING[name].selects or OUTGOING[name].after_reveal)
