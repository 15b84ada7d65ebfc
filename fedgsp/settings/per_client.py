"""Options with a value for all clients and other values for single clients: `alpha=1`, `alpha.3=10` for client 3."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from fedgsp.settings.fields import Described


class PerClient(NamedTuple):
    """A number for every client: the number in `own` if the client is named there, else `common`."""

    common: float
    own: Mapping[int, float] = {}

    def of(self, clients: Sequence[int]) -> NDArray[np.float64]:
        """The numbers of these clients, shape (N,), in their order."""
        return np.array([self.own.get(client, self.common) for client in clients], np.float64)

    @classmethod
    def parse_all(cls, option: Described, texts: Mapping[str, str]) -> Self:
        """The numbers from texts by client ("" is every client); raises OptionError for a wrong one."""
        numbers = {client: _number(option, client, text) for client, text in texts.items()}
        common = numbers.pop("", option.default.common)
        return cls(common, {int(client): number for client, number in numbers.items()})


def _number(option: Described, client: str, text: str) -> float:
    return float(replace(option, name=f"{option.name}.{client}" if client else option.name, type=float).parse(text))
