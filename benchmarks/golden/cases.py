"""The runs that are compared: settings as data, with each option under the part that reads it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields

Options = Mapping[str, str]

CLIENTS = "7"
#: Settings of every case, unless it has others.
COMMON: Options = {
    "seed": "0",
    "threads": "1",
    "local-nodes": "2",
    "clients": CLIENTS,
    "rounds": "3",
    "batch-size": "40",
    "learning-rate": "0.05",
    "learning-rate-decay": "0.9",
    "keep-models": "all",
    "listen": "127.0.0.1:0",
}
#: Clients with so unlike labels that some groups have one member and others several.
DIGITS: Options = {"clients": CLIENTS, "alpha": "0.2"}
#: Seven of many smaller clients, for the same reason.
SMALL: Options = {**DIGITS, "clients": "24"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One run: its settings, and the options of each part."""

    #: Name of a flag without the dashes -> value.
    settings: Options
    profile: Options = field(default_factory=dict)
    grouping: Options = field(default_factory=dict)
    merge: Options = field(default_factory=dict)
    aggregation: Options = field(default_factory=dict)
    training: Options = field(default_factory=dict)
    task: Options = field(default_factory=lambda: DIGITS)
    #: How many clients are skipped, over all rounds; a run with another number has failed.
    skipped: int = 0
    #: The round after which the top server is killed and then resumed; 0: it is not killed.
    killed_after: int = 0

    def options(self, part: str) -> Options:
        """The options of one part."""
        found: Options = getattr(self, part)
        return found


#: Parts with options, in the order of their flags.
PARTS = tuple(row.name for row in fields(Case) if row.name not in ("settings", "skipped", "killed_after"))


def own_task(**options: str) -> dict[str, str]:
    """Options of `benchmarks.golden.task`."""
    return {"clients": CLIENTS, **options}


RELAY: Options = {"scheme": "fedgsp", "beta": "2", "growth": "linear", "alpha": "0.5", "sampling-rate": "1"}
CONSTANT: Options = {**RELAY, "growth": "constant", "alpha": "2"}
HCCT: Options = {"scheme": "hcct"}
#: Large enough that clients with few digits of different labels form groups.
ALPHA: Options = {"alpha": "70"}
#: The same value for the task from outside FedGSP.
OWN_ALPHA: Options = {"alpha": "300"}
GLOBAL: Options = {"scheme": "global"}
OWN: Options = {"task": "golden_task:GoldenTask"}
RAISES = own_task(fault="raises")
#: A model of more than 1 MiB, which local processes hand over through a pipe, with a layer of factored gradients.
LARGE = own_task(width="4096")
JUMPS = own_task(fault="jumps")
FEDCOLLAB: Options = {"scheme": "fedcollab"}
COALITIONS: Options = {"c": "5", "restarts": "10"}
#: Few and short exchanges, with which discriminators still find unlike distances.
DISCRIMINATORS: Options = {
    "exchanges": "21",
    "judge_every": "5",
    "patience": "2",
    "discriminator_rate": "0.2",
    "discriminator_batch": "8",
}

#: Schemes with other settings than the common ones; every other scheme is played with its defaults.
OF_SCHEMES: dict[str, Case] = {
    # Several groups, of which each round trains a share; each round draws the order within them anew.
    "fedgsp": Case(settings={**RELAY, "rounds": "4", "sampling-rate": "0.6"}),
    "naive-gsp": Case(settings={"scheme": "naive-gsp", "beta": "2", "sampling-rate": "0.5"}),
    "naive-gsp-icg": Case(settings={"scheme": "naive-gsp-icg", "beta": "3", "sampling-rate": "0.7"}),
    "fedavg": Case(settings={"scheme": "fedavg", "sampling-rate": "0.6"}),
    "fedmmd": Case(settings={"scheme": "fedmmd", "sampling-rate": "0.6"}),
    "fedfusion": Case(settings={"scheme": "fedfusion", "sampling-rate": "0.6"}),
    "fedfusion, previous": Case(
        settings={"scheme": "fedfusion", "sampling-rate": "0.6"}, training={"evaluation": "previous"}
    ),
    "ida": Case(settings={"scheme": "ida", "sampling-rate": "0.6"}),
    "fedadagrad": Case(settings={"scheme": "fedadagrad", "sampling-rate": "0.6"}),
    "fedadam": Case(settings={"scheme": "fedadam", "sampling-rate": "0.6"}),
    "fedyogi": Case(settings={"scheme": "fedyogi", "sampling-rate": "0.6"}, merge={"eta": "0.03"}, killed_after=2),
    "hcct": Case(settings=HCCT, grouping=ALPHA),
    "hcct-e": Case(settings={"scheme": "hcct-e"}, grouping={"alpha": "50"}),
    "hcct-p": Case(settings={"scheme": "hcct-p"}, grouping=ALPHA),
    "maxfl": Case(settings={"scheme": "maxfl"}, profile={"prior_epochs": "4"}),
    "maxfl-hcct": Case(settings={"scheme": "maxfl-hcct"}, profile={"prior_epochs": "10"}),
    "ifca": Case(settings={"scheme": "ifca"}, profile={"models": "3"}),
    "flsc": Case(settings={"scheme": "flsc"}, profile={"models": "4"}, merge={"soft": "2"}),
    "fedcollab": Case(settings=FEDCOLLAB, profile=DISCRIMINATORS, grouping=COALITIONS, task=SMALL),
    "fedcluster": Case(
        settings={"scheme": "fedcluster"}, grouping={"eps1": "0.4", "eps2": "0.02", "min_round": "0"}, task=SMALL
    ),
    # At lower rates no client comes nearer to another model than to the model it started from.
    "fesem": Case(settings={"scheme": "fesem", "learning-rate": "1"}, profile={"models": "3"}, task=SMALL),
    "kmeans": Case(
        settings={"scheme": "kmeans"}, profile={"prior_epochs": "2"}, grouping={"clusters": "3"}, task=SMALL
    ),
}

#: Settings that no scheme uses by default.
OTHERS: dict[str, Case] = {
    # The ways of a model
    **{
        f"relay {mode}": Case(settings={**RELAY, "relay": mode, "rounds": "4"})
        for mode in ("auto", "direct", "manager")
    },
    **{
        f"hand-over {mode}, relay": Case(settings={**RELAY, **OWN, "hand-over": mode}, task=LARGE)
        for mode in ("auto", "network")
    },
    **{
        f"hand-over {mode}, parallel": Case(
            settings={**HCCT, **OWN, "hand-over": mode}, grouping=OWN_ALPHA, task=LARGE
        )
        for mode in ("auto", "network")
    },
    "relay manager, parallel": Case(settings={**HCCT, "relay": "manager"}, grouping=ALPHA),
    "large model, relay manager": Case(settings={**RELAY, **OWN, "relay": "manager"}, task=LARGE),
    "bfloat16, relay": Case(settings={**RELAY, "wire-dtype": "bfloat16"}),
    "bfloat16, large model": Case(settings={**RELAY, **OWN, "wire-dtype": "bfloat16"}, task=LARGE),
    "bfloat16, parallel": Case(settings={**HCCT, "wire-dtype": "bfloat16"}, grouping=ALPHA),
    # Groups
    "growth log": Case(settings={**RELAY, "growth": "log", "alpha": "2"}),
    "growth exp": Case(settings={**RELAY, "growth": "exp", "alpha": "1", "beta": "1"}),
    "icg refined": Case(
        settings=CONSTANT,
        grouping={"mode": "all", "start": "k-means++", "normalise": "true", "refine": "true"},
    ),
    "random groups": Case(settings={**CONSTANT, "grouping": "random"}, grouping={"mode": "all"}),
    "fixed groups": Case(
        settings={"scheme": "independent", "grouping": "fixed"}, grouping={"groups": "0,1/2,3,4/5,6"}
    ),
    "hcct relay": Case(settings={**HCCT, "program": "relay"}, grouping=ALPHA),
    "hcct sketch": Case(settings=HCCT, profile={"similarity": "sketch", "sketch_bytes": "32"}, grouping=ALPHA),
    "hcct layer, magnitude": Case(
        settings=HCCT, profile={"similarity": "layer", "layer_score": "magnitude"}, grouping={"alpha": "50"}
    ),
    "hcct first epoch all": Case(settings=HCCT, grouping={**ALPHA, "first_epoch": "all"}),
    "hcct three groups": Case(settings=HCCT, grouping={**ALPHA, "groups": "3"}),
    "hcct-p heads shown": Case(settings={"scheme": "hcct-p"}, profile={"similarity_of": "all"}, grouping=ALPHA),
    "fedcollab shared": Case(
        settings=FEDCOLLAB,
        profile={**DISCRIMINATORS, "distance": "shared", "feature_scale": "1", "local_steps": "2"},
        grouping=COALITIONS,
        task=SMALL,
    ),
    "fedcollab relay": Case(
        settings={**FEDCOLLAB, "program": "relay"}, profile=DISCRIMINATORS, grouping=COALITIONS, task=SMALL
    ),
    # Means
    "aggregation median": Case(settings={**GLOBAL, "aggregation": "median"}),
    "aggregation ida, intrac": Case(
        settings={**GLOBAL, "aggregation": "ida"}, aggregation={"times": "intrac", "norm": "l2"}
    ),
    "merge ida": Case(settings={**CONSTANT, "beta": "3", "merge": "ida"}, merge={"times": "samples"}),
    "aggregation trimmed-mean": Case(settings={**GLOBAL, "aggregation": "trimmed-mean"}, aggregation={"trim": "0.3"}),
    "merge none": Case(settings={**RELAY, "merge": "none"}),
    "merge median": Case(settings={**CONSTANT, "beta": "3", "merge": "median"}),
    "merge fedyogi": Case(settings={**CONSTANT, "merge": "fedyogi"}, merge={"weighted": "true"}),
    "merge trimmed-mean": Case(settings={**CONSTANT, "beta": "5", "merge": "trimmed-mean"}, merge={"trim": "0.25"}),
    # Local training
    "training own-head": Case(settings={**GLOBAL, "training": "own-head"}),
    "training fedprox, relay": Case(settings={**RELAY, "training": "fedprox"}, training={"mu": "0.5"}),
    "training fedmmd, relay": Case(
        settings={**RELAY, "training": "fedmmd"}, training={"lambda": "0.5", "of": "features"}
    ),
    "training fedfusion, relay": Case(
        settings={**RELAY, "training": "fedfusion", "merge": "smoothed-mean"}, training={"operator": "multi"}
    ),
    "training finetune": Case(settings={**HCCT, "training": "finetune"}, grouping=ALPHA, training={"steps": "3"}),
    "training per-fedavg": Case(settings={**GLOBAL, "training": "per-fedavg"}, training={"steps": "2"}),
    "training pfedme": Case(
        settings={**GLOBAL, "training": "pfedme"},
        training={"lambda": "2", "personal_steps": "2", "personal_rate": "0.2"},
    ),
    "training ditto, relay": Case(settings={**RELAY, "training": "ditto"}, training={"lambda": "0.5"}),
    "epochs and evaluations": Case(
        settings={**RELAY, "local-epochs": "2", "evaluate-every": "2", "seed": "3", "rounds": "4"}
    ),
    "local run": Case(settings={**HCCT, "local-run": "alone"}, grouping=ALPHA),
    # Faults: a task that raises, an update that is too long, a top server that is killed
    "task from outside, hcct-p": Case(
        settings={"scheme": "hcct-p", **OWN}, grouping={"alpha": "100"}, task=own_task()
    ),
    "task raises, relay": Case(settings={**RELAY, **OWN}, task=RAISES, skipped=1),
    "task raises, parallel": Case(settings={**GLOBAL, **OWN}, task=RAISES, skipped=1),
    "task raises, hcct": Case(settings={**HCCT, **OWN}, grouping=OWN_ALPHA, task=RAISES, skipped=1),
    "update norm limit, relay": Case(settings={**CONSTANT, **OWN, "update-norm-limit": "4"}, task=JUMPS, skipped=1),
    "update norm limit, parallel": Case(settings={**GLOBAL, **OWN, "update-norm-limit": "4"}, task=JUMPS, skipped=1),
    "resumed, relay": Case(settings=RELAY, killed_after=1),
    "resumed, hcct": Case(settings=HCCT, grouping=ALPHA, killed_after=2),
    "resumed, ditto": Case(settings={"scheme": "ditto"}, killed_after=1),
}


def cases(schemes: Iterable[str]) -> dict[str, Case]:
    """All cases by name, for a checkout with these schemes."""
    of_schemes = {name: OF_SCHEMES.get(name, Case(settings={"scheme": name})) for name in schemes}
    return {**{f"scheme {name}": case for name, case in of_schemes.items()}, **OTHERS}


def chosen(of_all: Mapping[str, Case], only: Sequence[str]) -> dict[str, Case]:
    """The cases whose names contain one of these texts; all of them without any."""
    return {name: case for name, case in of_all.items() if not only or any(text in name for text in only)}
