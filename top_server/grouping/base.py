"""The protocol of groupings: who trains with whom."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from fedgsp.errors import RunError
from fedgsp.parts import Part
from top_server.grouping.request import GroupingRequest, Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Grouping(Part):
    """The declaration of a grouping; its `code` is a pure function of a `GroupingRequest` and its options to a `Plan`.

    The function is called once in each round in which clients are grouped. It runs in a thread, so that it may take
    long, and several runs may call it at the same time. The same request must give the same plan, bit for bit, in
    every process; random numbers come from `fedgsp.seeds.stream(request.seed, NAME, request.round)`. The function
    keeps nothing between rounds: what it needs of the round before is in the request (`settled`, `newcomers`), also
    after `--resume`. It raises ConfigError if evidence that it needs is missing or cannot be used. Every client of the
    request must be in exactly one group, or idle.
    """

    #: Whether the grouping makes as many groups as the request asks for.
    counted: bool = False
    #: Whether the grouping continues the groups of the round before.
    continues: bool = False
    #: Whether the grouping gives the same clients the same groups in every round.
    static: bool = False
    #: Whether the grouping deals the clients so that groups take equally long, if the request has `seconds`.
    balances: bool = False
    #: Clients in the values of the options. Clients in names of options, such as alpha.3, are found without it.
    names: Callable[[Any], Collection[int]] = lambda _: ()

    def __call__(self, request: GroupingRequest) -> Plan:
        """The groups; raises ConfigError for a wrong option or missing evidence, RunError for a fault of the part."""
        options, group = self.read(request.options), self.load()
        with self.guard():
            plan: Plan = group(request, options)
        try:
            plan.check(request)
        except (ValueError, AttributeError) as error:
            if not self.package:
                raise
            raise RunError(f"{self} gave a wrong plan: {error}", "update or correct that package") from error
        return plan
