"""The table of schemes: a row is a choice of profile, grouping, in-group program, local training and merge."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fedgsp.parts import Parts
from top_server.grouping import GROUPINGS


@dataclass(frozen=True, slots=True)
class Scheme:
    """One row. Settings of the same name replace single choices, so that new combinations need no new row."""

    #: What clients reveal before each round; see `top_server.profiles`.
    profile: str
    #: Who trains with whom; see `top_server.grouping`.
    grouping: str
    #: When clients are grouped anew: "always", in every round; "arrivals", when some are in no group; or "never": the
    #: first round's groups stay, and who comes later joins the smallest.
    regroup: str
    #: How many groups, by round; see `top_server.grouping.growth`.
    growth: str
    #: What the sampling rate is a share of: "groups", "clients", or "none" where nobody is drawn.
    sampling: str
    #: What members of a group do; see `fedgsp.programs`.
    program: str
    #: Whether the relay order is drawn anew every round.
    shuffle: bool
    #: Local training algorithm; see `fedgsp.trainings`.
    training: str
    #: Which models groups start from and what their results become; see `top_server.merging`.
    merge: str
    #: How members count in a group's mean; see `top_server.merging.weighing`.
    weighing: str = "samples"
    #: What becomes of models trained in parallel; see `fedgsp.aggregations`.
    aggregation: str = "mean"
    #: Who trains once clients have joined late: "all", or those in groups that somebody "joined" (section 5.4).
    after_arrivals: str = "all"
    #: Whether the classifier heads stay with the clients.
    without_head: bool = False
    #: Address of the process that is asked in place of this one, and may group as it likes; empty: none is.
    service: str = ""
    #: Options of its parts by kind, such as {"profile": {"similarity": "layer"}}. Those of a part that a setting
    #: replaces do not count.
    options: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def given(self, kind: str) -> Mapping[str, str]:
        """The options of the part of this kind, as text; all others have their defaults."""
        return self.options.get(kind, {})

    @property
    def continues(self) -> bool:
        """Whether each round begins with the groups of the round before.

        If so, a client whose node is not connected stays a member of its group, and trains there when it is back.
        """
        return self.regroup == "arrivals" or GROUPINGS[self.grouping].continues

    @property
    def lasts(self) -> bool:
        """Whether a group stays the same group, so that who comes, or comes back, takes over what it has learned."""
        stays = self.continues or self.regroup == "never" or GROUPINGS[self.grouping].static
        return stays and self.sampling != "clients"  # of which every round draws others


def _all(
    profile: str, grouping: str, merge: str, *, regroup: str = "always", training: str = "sgd", **others: object
) -> Scheme:
    """A row of sections 3 to 6: all clients train in every round, in parallel within their groups."""
    return Scheme(profile, grouping, regroup, "constant", "none", "parallel", False, training, merge, **others)  # type: ignore[arg-type]


def _sampled(training: str, merge: str = "weighted-mean") -> Scheme:
    """A row of section 2: a share of the clients, drawn anew in every round, trains the global model in parallel."""
    return Scheme("none", "single", "always", "constant", "clients", "parallel", False, training, merge)


_BUILT_IN = {
    # FedGSP: alike groups of unlike clients, relay inside, more groups as rounds go by (section 1)
    "fedgsp": Scheme("histograms", "icg", "always", "log", "groups", "relay", True, "sgd", "mean"),
    # its ablations: a fixed number (beta) of static groups, which nobody is left out of, order fixed too (section 1.5)
    "naive-gsp": Scheme(
        "histograms",
        "random",
        "never",
        "constant",
        "groups",
        "relay",
        False,
        "sgd",
        "mean",
        options={"grouping": {"mode": "all"}},
    ),
    "naive-gsp-icg": Scheme(
        "histograms",
        "icg",
        "never",
        "constant",
        "groups",
        "relay",
        False,
        "sgd",
        "mean",
        options={"grouping": {"mode": "all"}},
    ),
    # FedAvg: a share of the clients in parallel, sample-weighted mean
    "fedavg": _sampled("sgd"),
    # what FedGSP is compared with: FedAvg with another local training
    "fedmmd": _sampled("fedmmd"),
    "fedfusion": _sampled("fedfusion", "smoothed-mean"),
    # HCCT: groups of clients whose updates are alike, a model per group (section 3)
    "hcct": _all("updates", "hcct", "none"),
    "hcct-e": _all("updates", "hcct", "none", options={"profile": {"similarity": "layer"}}),
    "hcct-p": _all("updates", "hcct", "none", without_head=True, options={"profile": {"similarity_of": "shared"}}),
    # what it is compared with (section 4): nobody together, everybody together,
    "independent": _all("none", "singletons", "none"),
    "global": _all("none", "single", "weighted-mean"),
    # those together who gain by it: as in its paper, and as HCCT's authors ran it,
    "maxfl": _all("prior-losses", "single", "weighted-mean", weighing="maxfl"),
    "maxfl-hcct": _all("prior-distances", "maxfl-hcct", "none"),
    # those who are served badly count more,
    "fedfa": _all("training-accuracy", "single", "weighted-mean", weighing="fedfa"),
    # clusters that clients choose by loss, one each or several
    "ifca": _all("losses", "ifca", "clusters"),
    "flsc": _all("losses", "singletons", "soft-clusters"),
    # FedCollab: coalitions that lower a bound on the members' errors, from how far their data are apart (section 5),
    "fedcollab": _all("distances", "fedcollab", "none", regroup="arrivals"),
    # and what it is compared with (section 6): one model, trained and personalised in several ways,
    "fedprox": _all("none", "single", "weighted-mean", training="fedprox"),
    "fednova": _all("none", "single", "weighted-mean", aggregation="fednova"),
    "finetune": _all("none", "single", "weighted-mean", training="finetune"),
    "per-fedavg": _all("none", "single", "weighted-mean", training="per-fedavg"),
    "pfedme": _all("none", "single", "weighted-mean", training="pfedme"),
    "ditto": _all("none", "single", "weighted-mean", training="ditto"),
    # clusters split when their members' updates disagree, by nearest model, or once by what clients learn alone
    "fedcluster": _all("updates", "fedcluster", "none", weighing="uniform"),
    "fesem": _all("model-distances", "fesem", "centres", weighing="uniform"),
    "kmeans": _all("prior-models", "kmeans", "none", regroup="arrivals"),
}

SCHEMES: Parts[Scheme] = Parts("scheme", _BUILT_IN, Scheme)
