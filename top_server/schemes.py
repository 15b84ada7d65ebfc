"""The table of schemes: a row is a choice of profile, grouping, in-group program, local training and merge."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Scheme:
    """One row. Settings of the same name replace single choices, so that new combinations need no new row."""

    #: What clients reveal before each round; see `top_server.profiles`.
    profile: str
    grouping: str
    #: Whether every round is grouped anew, or the first round's groups stay.
    regroup: bool
    #: How many groups, by round; see `top_server.growth`.
    growth: str
    #: What the sampling rate is a share of: "groups", "clients", or "none" where everybody trains in every round.
    sampling: str
    #: What members of a group do; see `group_manager.programs`.
    program: str
    #: Whether the relay order is drawn anew every round.
    shuffle: bool
    #: Local training algorithm; see `fedgsp_node.training`.
    training: str
    #: Which models groups start from and what their results become; see `top_server.merging`.
    merge: str
    #: How members count in a group's mean; see `top_server.weighing`.
    weighing: str = "samples"
    #: Whether the classifier heads stay with the clients.
    personal: bool = False
    #: What --grouping-option would say unless given.
    options: Mapping[str, str] = field(default_factory=dict)


def _every_round(profile: str, grouping: str, merge: str, **others: object) -> Scheme:
    """A row of section 3 or 4: all clients train in every round, in parallel within groups made anew."""
    return Scheme(profile, grouping, True, "constant", "none", "parallel", False, "sgd", merge, **others)  # type: ignore[arg-type]


SCHEMES: dict[str, Scheme] = {
    # FedGSP: alike groups of unlike clients, relay inside, more groups as rounds go by (section 1)
    "fedgsp": Scheme("histograms", "icg", True, "log", "groups", "relay", True, "sgd", "mean"),
    # its ablations: a fixed number (beta) of static groups, order fixed too (section 1.5)
    "naive-gsp": Scheme("histograms", "random", False, "constant", "groups", "relay", False, "sgd", "mean"),
    "naive-gsp-icg": Scheme("histograms", "icg", False, "constant", "groups", "relay", False, "sgd", "mean"),
    # FedAvg: a share of the clients in parallel, sample-weighted mean
    "fedavg": Scheme("none", "single", True, "constant", "clients", "parallel", False, "sgd", "weighted-mean"),
    # HCCT: groups of clients whose updates are alike, a model per group (section 3)
    "hcct": _every_round("updates", "hcct", "none"),
    "hcct-e": _every_round("updates", "hcct", "none", options={"similarity": "layer"}),
    "hcct-p": _every_round("updates", "hcct", "none", personal=True, options={"similarity_of": "shared"}),
    # what it is compared with (section 4): nobody together, everybody together,
    "independent": _every_round("none", "singletons", "none"),
    "global": _every_round("none", "single", "weighted-mean"),
    # those together who gain by it: as in its paper, and as HCCT's authors ran it,
    "maxfl": _every_round("prior-losses", "single", "weighted-mean", weighing="maxfl"),
    "maxfl-hcct": _every_round("prior-distances", "maxfl-hcct", "none"),
    # those who are served badly count more,
    "fedfa": _every_round("training-accuracy", "single", "weighted-mean", weighing="fedfa"),
    # clusters that clients choose by loss, one each or several
    "ifca": _every_round("losses", "ifca", "clusters"),
    "flsc": _every_round("losses", "singletons", "soft-clusters"),
}
