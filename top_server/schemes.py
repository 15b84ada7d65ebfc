"""The table of schemes: a row is a choice of profile, grouping, in-group program, local training and merge."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from fedgsp.parts import Parts
from top_server.grouping import GROUPINGS


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheme:
    """One row. Settings of the same name replace single choices, so that new combinations need no new row.

    With the defaults, all clients train one model in parallel, in every round.
    """

    #: What clients reveal before each round; see `top_server.profiles`.
    profile: str = "none"
    #: Who trains with whom; see `top_server.grouping`.
    grouping: str = "single"
    #: When clients are grouped anew: "always", in every round; "arrivals", when some are in no group; or "never": the
    #: first round's groups stay, and who comes later joins the smallest.
    regroup: str = "always"
    #: How many groups, by round; see `top_server.grouping.round_size`.
    growth: str = "constant"
    #: What the sampling rate is a share of: "groups", "clients", or "none" where nobody is drawn.
    sampling: str = "none"
    #: What members of a group do; see `fedgsp.programs`.
    program: str = "parallel"
    #: Whether the relay order is drawn anew every round.
    shuffle: bool = False
    #: Local training algorithm; see `fedgsp.trainings`.
    training: str = "sgd"
    #: How clients turn gradients into steps; see `fedgsp.optimizers`.
    optimizer: str = "auto"
    #: Which models groups start from and what their results become; see `top_server.merging`.
    merge: str = "weighted-mean"
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


_BUILT_IN = {
    # FedGSP: alike groups of unlike clients, relay inside, more groups as rounds go by (section 1)
    "fedgsp": Scheme(
        profile="histograms",
        grouping="icg",
        growth="log",
        sampling="groups",
        program="relay",
        shuffle=True,
        merge="mean",
    ),
    # its ablations: a fixed number (beta) of static groups, which nobody is left out of, order fixed too (section 1.5)
    "naive-gsp": Scheme(
        profile="histograms",
        grouping="random",
        regroup="never",
        sampling="groups",
        program="relay",
        merge="mean",
        options={"grouping": {"mode": "all"}},
    ),
    "naive-gsp-icg": Scheme(
        profile="histograms",
        grouping="icg",
        regroup="never",
        sampling="groups",
        program="relay",
        merge="mean",
        options={"grouping": {"mode": "all"}},
    ),
    # What FedGSP is compared with (section 2): each round draws a share of the clients, which train in parallel,
    "fedavg": Scheme(sampling="clients"),
    # with another local training,
    "fedmmd": Scheme(sampling="clients", training="fedmmd"),
    "fedfusion": Scheme(sampling="clients", training="fedfusion", merge="smoothed-mean"),
    # with models that count less if they are far from the others,
    "ida": Scheme(sampling="clients", aggregation="ida"),
    # or with a server optimiser.
    "fedadagrad": Scheme(sampling="clients", merge="fedadagrad"),
    "fedadam": Scheme(sampling="clients", merge="fedadam"),
    "fedyogi": Scheme(sampling="clients", merge="fedyogi"),
    # HCCT: groups of clients whose updates are alike, a model per group (section 3)
    "hcct": Scheme(profile="updates", grouping="hcct", merge="none"),
    "hcct-e": Scheme(profile="updates", grouping="hcct", merge="none", options={"profile": {"similarity": "layer"}}),
    "hcct-p": Scheme(
        profile="updates",
        grouping="hcct",
        merge="none",
        without_head=True,
        options={"profile": {"similarity_of": "shared"}},
    ),
    # Comparisons of HCCT (section 4): every client alone; all clients together;
    "independent": Scheme(grouping="singletons", merge="none"),
    "global": Scheme(),
    # clients that gain by the global model count more: as in MaxFL's paper, and as HCCT's authors implemented it;
    "maxfl": Scheme(profile="prior-losses", weighing="maxfl"),
    "maxfl-hcct": Scheme(profile="prior-distances", grouping="maxfl-hcct", merge="none"),
    # clients with a low accuracy count more;
    "fedfa": Scheme(profile="training-accuracy", weighing="fedfa"),
    # clusters that clients choose by loss, one each or several
    "ifca": Scheme(profile="losses", grouping="ifca", merge="clusters"),
    "flsc": Scheme(profile="losses", grouping="singletons", merge="soft-clusters"),
    # FedCollab: coalitions that lower a bound on the members' errors, from how far their data are apart (section 5),
    "fedcollab": Scheme(profile="distances", grouping="fedcollab", regroup="arrivals", merge="none"),
    # and what it is compared with (section 6): one model, trained and personalised in several ways,
    "fedprox": Scheme(training="fedprox"),
    "fednova": Scheme(aggregation="fednova"),
    "finetune": Scheme(training="finetune"),
    "per-fedavg": Scheme(training="per-fedavg"),
    "pfedme": Scheme(training="pfedme"),
    "ditto": Scheme(training="ditto"),
    # clusters split when their members' updates disagree, by nearest model, or once by what clients learn alone
    "fedcluster": Scheme(profile="updates", grouping="fedcluster", merge="none", weighing="uniform"),
    "fesem": Scheme(profile="model-distances", grouping="fesem", merge="centres", weighing="uniform"),
    "kmeans": Scheme(profile="prior-models", grouping="kmeans", regroup="arrivals", merge="none"),
}

SCHEMES: Parts[Scheme] = Parts("scheme", _BUILT_IN, Scheme)
