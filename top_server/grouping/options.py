"""Options of a grouping: strings from flags or settings, read with a type and a default."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from fedgsp.errors import ConfigError
from fedgsp.options import suggestion, truth

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray


class PerClient(NamedTuple):
    """A number for every client, those named having their own."""

    common: float
    own: Mapping[int, float]

    def of(self, clients: Sequence[int]) -> NDArray[np.float64]:
        """Those of some clients, in their order."""
        return np.array([self.own.get(client, self.common) for client in clients], np.float64)


class Options:
    """The options given to one grouping; every refusal is a ConfigError naming the grouping and what it accepts.

    An accepted name that ends in `.ID` stands for one option per client: `alpha.ID` for alpha.0, alpha.1, ...
    """

    def __init__(self, name: str, given: Mapping[str, str], accepted: Sequence[str], kind: str = "grouping") -> None:
        self._whose = f"{kind} {name}"
        self._given = given
        for name in given:
            if _generic(name) not in accepted:
                remedy = suggestion(name, accepted, "it accepts")
                raise ConfigError(f"{self._whose} has no option {name!r}", remedy)

    def choice(self, name: str, choices: Sequence[str], default: str = "") -> str:
        """One of `choices`; without a `default` the first is it."""
        value = self._given.get(name, default or choices[0])
        if value not in choices:
            raise self._refusal(name, f"one of: {', '.join(choices)}")
        return value

    def text(self, name: str, default: str) -> str:
        """Any text."""
        return self._given.get(name, default)

    def flag(self, name: str, default: bool) -> bool:
        """A truth value."""
        if name not in self._given:
            return default
        try:
            return truth(self._given[name])
        except ValueError:
            raise self._refusal(name, "true or false") from None

    def integer(self, name: str, default: int, least: int = 1, most: int = 2**31 - 1) -> int:
        """An integer from `least` to `most`."""
        if name not in self._given:
            return default
        wanted = f"an integer of at least {least}" + (f" and at most {most}" if most < 2**31 - 1 else "")
        try:
            value = int(self._given[name])
        except ValueError:
            raise self._refusal(name, wanted) from None
        if not least <= value <= most:
            raise self._refusal(name, wanted)
        return value

    def number(self, name: str, default: float, least: float = 0.0, below: float = math.inf) -> float:
        """A finite number of at least `least` and below `below`."""
        if name not in self._given:
            return default
        try:
            value = float(self._given[name])
        except ValueError:
            value = math.nan
        if not (math.isfinite(value) and least <= value < below):
            raise self._refusal(
                name, f"a number of at least {least:g}" + (f" and below {below:g}" if below < math.inf else "")
            )
        return value

    def number_per_client(self, name: str, default: float, least: float = 0.0) -> PerClient:
        """A number for each client: option `name.ID` where given, else option `name`, else `default`."""
        common = self.number(name, default, least)
        own = {given: client_of(given) for given in self._given if given.startswith(f"{name}.")}
        return PerClient(
            common, {client: self.number(given, common, least) for given, client in own.items() if client is not None}
        )

    def _refusal(self, name: str, wanted: str) -> ConfigError:
        return ConfigError(f"{self._whose}: option {name} is {self._given[name]!r}", f"give {wanted}")


def no_options(name: str, given: Mapping[str, str]) -> None:
    """Refuses whatever is given to a grouping that has no options."""
    Options(name, given, ())


def _generic(name: str) -> str:
    """`alpha.ID` for `alpha.7`; a name without a client stays what it is, and `alpha.ID` itself is nobody's."""
    head, dot, _ = name.rpartition(".")
    if not dot:
        return name
    return f"{head}.ID" if client_of(name) is not None else ""


def client_of(name: str) -> int | None:
    """The client that an option such as `alpha.7` is for; None for one of all clients."""
    _, dot, client = name.rpartition(".")
    return int(client) if dot and client.isdecimal() and client == str(int(client)) else None
