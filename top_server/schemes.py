"""The table of schemes: a row is a choice of profile, grouping, in-group program, local training and merge."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Scheme:
    """One row. Settings of the same name replace single choices, so that new combinations need no new row."""

    #: What clients reveal: "histograms" (class counts of the training part) or "none".
    profile: str
    grouping: str
    #: Whether every round is grouped anew, or the first round's groups stay.
    regroup: bool
    #: How many groups, by round; see `top_server.growth`.
    growth: str
    #: What the sampling rate is a share of: "groups" or "clients".
    sampling: str
    #: What members of a group do; see `group_manager.programs`.
    program: str
    #: Whether the relay order is drawn anew every round.
    shuffle: bool
    #: Local training algorithm; see `fedgsp_node.training`.
    training: str
    #: How the groups' models become one; see `top_server.merge`.
    merge: str


SCHEMES: dict[str, Scheme] = {
    # FedGSP: alike groups of unlike clients, relay inside, more groups as rounds go by (section 1)
    "fedgsp": Scheme("histograms", "icg", True, "log", "groups", "relay", True, "sgd", "mean"),
    # its ablations: a fixed number (beta) of static groups, order fixed too (section 1.5)
    "naive-gsp": Scheme("histograms", "random", False, "constant", "groups", "relay", False, "sgd", "mean"),
    "naive-gsp-icg": Scheme("histograms", "icg", False, "constant", "groups", "relay", False, "sgd", "mean"),
    # FedAvg: a share of the clients in parallel, sample-weighted mean
    "fedavg": Scheme("none", "single", True, "constant", "clients", "parallel", False, "sgd", "weighted-mean"),
}
