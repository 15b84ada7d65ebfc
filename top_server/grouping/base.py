"""What the table of groupings says of each."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from top_server.grouping.request import GroupingRequest, Plan


def _nobody(_: Mapping[str, str]) -> Collection[int]:
    return ()


@dataclass(frozen=True, slots=True)
class Grouping:
    """One row. Called, it groups."""

    #: Pure; ConfigError without the evidence that it needs.
    group: Callable[[GroupingRequest], Plan]
    #: What its options say, before anybody is there to be grouped; ConfigError for one that cannot be.
    read: Callable[[Mapping[str, str]], object]
    #: What it needs of a scheme, by column: the profile that tells its evidence, or a merge.
    needs: Mapping[str, str] = field(default_factory=dict)
    #: Whether it makes as many groups as are wanted.
    counted: bool = False
    #: Whether it goes on from the groups of the round before.
    continues: bool = False
    #: Whether it gives the same clients the same groups.
    static: bool = False
    #: The clients that its options name, beside those of options such as alpha.3.
    names: Callable[[Mapping[str, str]], Collection[int]] = _nobody

    def __call__(self, request: GroupingRequest) -> Plan:
        """Who trains with whom."""
        return self.group(request)
