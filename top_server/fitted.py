"""Chooses the settings that nobody gave, for the number of clients with which a run begins.

The values of the papers are for hundreds of clients. With few clients they give groups of one, rounds in which most
clients wait, and models that nobody trains. What a person gives is never changed, and the chosen values become
settings of the run, so that its record repeats it.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from fedgsp.settings.checks import flag
from fedgsp.settings.run import RunConfig
from top_server.choosing import counts_groups
from top_server.schemes import Scheme
from top_server.sizes import PAPER

#: Up to so many clients all train in every round; with more, about so many do, or the paper's share if that is more.
FEW = 20
#: From so many clients on, all settings have the values of the FedGSP paper, which has 368.
MANY = 361
#: From so many clients on, up to `MANY`, chains have so many members at first, and at least so many later. Found with
#: 46 and 92 clients and 300 rounds, and held against others (docs/results/femnist-growth.md).
CHAINS_FROM = 36
FIRST_CHAIN, LAST_CHAIN = 12, 4
#: With fewer clients, a group has at least so many.
PAIR = 2
#: Most clients -> speed of growth. In 300 rounds the number of groups then comes to a third or a quarter of theirs.
_SPEEDS = {CHAINS_FROM - 1: 1.0, 120: 0.5, 240: 1.0}
#: A cluster with a model has at least so many clients, on average.
CLUSTER = 3
#: The most clusters with a model: what IFCA, FLSC, FeSEM and k-means have in the comparisons of FedCollab's paper.
MOST_CLUSTERS = 4


def first_groups(clients: int) -> int:
    """Groups in the first round: of few clients half of their square root, so that groups and members grow alike."""
    wanted = clients / FIRST_CHAIN if clients >= CHAINS_FROM else clients**0.5 / 2
    return max(1, min(int(PAPER["beta"]), int(wanted + 0.5)))


def speed(clients: int) -> float:
    """The speed of growth: few clients keep long relays for longer."""
    return next((speed for most, speed in _SPEEDS.items() if clients <= most), float(PAPER["alpha"]))


def smallest_group(clients: int) -> int:
    """Fewest clients in a group."""
    if clients >= MANY:
        return int(PAPER["smallest_group"])
    return LAST_CHAIN if clients >= CHAINS_FROM else PAIR


def share(clients: int) -> float:
    """The sampling rate."""
    return max(float(PAPER["sampling_rate"]), min(1.0, round(FEW / clients, 2)))


def clusters(clients: int) -> int:
    """The number of clusters with a model each."""
    return max(1, min(MOST_CLUSTERS, clients // CLUSTER))


@dataclass(frozen=True, slots=True)
class Fitted:
    """The settings of a run after the choice."""

    config: RunConfig
    #: The chosen settings as a person would write them, such as "--beta 2", by the reason for them in words.
    chosen: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rule:
    """How one open setting, or one option of a part, is chosen."""

    #: The setting, or the kind of part.
    setting: str
    #: The option of the part; empty for a setting.
    option: str = ""
    #: The parts that have this option.
    parts: tuple[str, ...] = ()
    #: Whether a scheme reads it.
    read: Callable[[Scheme], bool]
    #: The value by the number of clients.
    value: Callable[[int], Any]
    #: The value in a run of many clients, which needs no words.
    usual: Any
    #: Whether it has the usual value if the user gives beta, and so decides how many groups there are.
    with_beta: bool = False
    #: The reason in words, by the number of clients.
    why: Callable[[int], str]


def _everybody(clients: int) -> str:
    return f"so that {'every client trains' if clients <= FEW else f'about {FEW} clients train'} in a round"


def _relays(_: int) -> str:
    return "so that groups are large at first and never single clients"


def _nobody_left(_: int) -> str:
    return "so that no client is left out of a round"


def _enough(_: int) -> str:
    return f"so that a model is trained by {CLUSTER} clients or more on average"


_RULES = (
    _Rule(
        setting="sampling_rate",
        read=lambda scheme: scheme.sampling != "none",
        value=share,
        usual=PAPER["sampling_rate"],
        why=_everybody,
    ),
    _Rule(
        setting="beta",
        read=counts_groups,
        value=first_groups,
        usual=PAPER["beta"],
        why=_relays,
    ),
    _Rule(
        setting="alpha",
        read=lambda scheme: counts_groups(scheme) and scheme.growth != "constant",
        value=speed,
        usual=PAPER["alpha"],
        with_beta=True,
        why=_relays,
    ),
    _Rule(
        setting="smallest_group",
        read=counts_groups,
        value=smallest_group,
        usual=PAPER["smallest_group"],
        with_beta=True,
        why=_relays,
    ),
    _Rule(
        setting="grouping",
        option="mode",
        parts=("icg", "random"),
        read=lambda scheme: not scheme.service,
        value=lambda clients: "all" if clients <= FEW else "exact",
        usual="exact",
        with_beta=True,
        why=_nobody_left,
    ),
    _Rule(
        setting="profile",
        option="models",
        parts=("losses", "model-distances"),
        read=lambda _: True,
        value=clusters,
        usual=MOST_CLUSTERS,
        why=_enough,
    ),
    _Rule(
        setting="grouping",
        option="clusters",
        parts=("kmeans",),
        read=lambda _: True,
        value=clusters,
        usual=MOST_CLUSTERS,
        why=_enough,
    ),
    _Rule(
        setting="merge",
        option="soft",
        parts=("soft-clusters",),
        # With all models for each client, all models would become the same.
        read=lambda scheme: "models" not in scheme.given("profile"),
        value=lambda clients: max(1, min(2, clusters(clients) - 1)),
        usual=2,
        why=_enough,
    ),
)


#: What a run chooses if nobody gives it: a setting, or a setting with options and the name of an option.
MAY_BE_CHOSEN = frozenset((f"{rule.setting}_option" if rule.option else rule.setting, rule.option) for rule in _RULES)


def fitted(config: RunConfig, scheme: Scheme, clients: int) -> Fitted:
    """The settings of a run that begins with `clients` clients (at least 1), of which `scheme` is the choice."""
    changes: dict[str, Any] = {}
    chosen: dict[str, list[str]] = {}
    for rule in _RULES:
        if not _is_open(rule, config, scheme):
            continue
        value = rule.usual if rule.with_beta and config.beta is not None else rule.value(clients)
        if not rule.option:
            changes[rule.setting] = value
        elif value != rule.usual:
            name = f"{rule.setting}_option"
            changes[name] = {**changes.get(name, getattr(config, name)), rule.option: str(value)}
        if value != rule.usual:
            chosen.setdefault(rule.why(clients), []).append(_written(rule, value))
    return Fitted(dataclasses.replace(config, **changes), {why: tuple(settings) for why, settings in chosen.items()})


def _is_open(rule: _Rule, config: RunConfig, scheme: Scheme) -> bool:
    """Whether the scheme reads the setting or option, and the user did not give it."""
    if not rule.read(scheme):
        return False
    if not rule.option:
        return getattr(config, rule.setting) is None
    return getattr(scheme, rule.setting) in rule.parts and rule.option not in scheme.given(rule.setting)


def _written(rule: _Rule, value: Any) -> str:
    if rule.option:
        return f"{flag(f'{rule.setting}_option')} {rule.option}={value}"
    return f"{flag(rule.setting)} {value:g}"


def in_words(chosen: Mapping[str, tuple[str, ...]]) -> Iterator[str]:
    """A phrase for each reason."""
    for why, settings in chosen.items():
        yield f"{', '.join(settings)}, {why}"
