"""The figures that tables, values and pictures take from the summary of a run, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.results.coalitions import distance, numbers, of_types, types
from benchmarks.results.summary import Summary
from fedgsp.errors import ConfigError

#: A figure of a run; None if the run has none.
Code = Callable[..., float | None]


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure: its code, the factor and the decimals with which it is shown, and its options."""

    code: Code
    scale: float = 1
    decimals: int = 2
    options: tuple[str, ...] = ()


def at(summary: Summary, name: str, round: int | None = None) -> float | None:
    """The value of a column after `round`, by default after the last round of the run."""
    history = summary["history"]
    number = summary["rounds"] if round is None else round
    if name not in history or number not in history["round"]:
        return None
    found: float | None = history[name][history["round"].index(number)]
    return found


def up_to(summary: Summary, *names: str, round: int | None = None) -> float:
    """The sum of columns over the rounds up to `round`, by default over all rounds."""
    if round is None:
        return float(sum(summary["totals"][name] for name in names))
    rounds = summary["history"]["round"]
    return float(sum(v for name in names for v, r in zip(summary["history"][name], rounds, strict=True) if r <= round))


def tail(summary: Summary, last: int = 5) -> float | None:
    """Mean accuracy over the last evaluated rounds."""
    return float(np.mean(summary["history"]["accuracy"][-last:])) if summary["history"]["round"] else None


def rounds_to(summary: Summary, level: float) -> float | None:
    """The first evaluated round with at least this accuracy."""
    history = summary["history"]
    reached = (r for r, value in zip(history["round"], history["accuracy"], strict=True) if value >= level)
    return next(reached, None)


def whole(summary: Summary) -> bool:
    """Whether all clients that were evaluated in any round were evaluated after the last round."""
    told = summary["clients"]
    return told.get("last_evaluated") == summary["rounds"] and len(known(told, "last")) == len(known(told, "best"))


def known(clients: Mapping[str, Any], name: str) -> list[float]:
    """The values of those clients that have one."""
    return [value for value in clients.get(name, ()) if value is not None]


def best(summary: Summary, of: Callable[[Any], float] = np.mean) -> float | None:
    """A statistic over the clients' accuracies, each in its own best round."""
    values = known(summary["clients"], "best")
    return float(of(values)) if values else None


def last(summary: Summary, of: Callable[[Any], float] = np.mean) -> float | None:
    """A statistic over the clients' accuracies after the last round; None if not all clients were evaluated."""
    return float(of(known(summary["clients"], "last"))) if whole(summary) else None


def client(summary: Summary, client: int, of: str = "last") -> float | None:
    """A figure of one client, by the name of its list in the summary."""
    numbers, values = summary["clients"]["client"], summary["clients"].get(of)
    found: float | None = values[numbers.index(client)] if values and client in numbers else None
    return found


def mean_of(summary: Summary, of: str = "last", type: int | None = None) -> float | None:
    """The mean of a list of the summary over all clients, or over those of a type; None unless each has a value."""
    values = summary["clients"].get(of)
    if not values or None in values or (of == "last" and not whole(summary)):
        return None
    chosen = np.array(values, np.float64)
    return float(np.mean(chosen if type is None else chosen[types(len(chosen)) == type]))


def error_of(summary: Summary, clients: list[int], of: str = "last") -> float | None:
    """Mean error of some clients, by the name of a list in the summary; None unless all of them have a value."""
    found = [client(summary, number, of) for number in clients]
    return None if None in found else 1 - float(np.mean([value for value in found if value is not None]))


def served(name: str) -> Code:
    """IPR or RSD after the last round; None if not all clients were evaluated."""
    return lambda summary: at(summary, name) if whole(summary) else None


def column(name: str) -> Code:
    return lambda summary, round=None: at(summary, name, round)


def summed(*names: str) -> Code:
    """The sum up to `round`, or up to the first evaluated round with the accuracy `level`; None if there is none."""

    def code(summary: Summary, round: int | None = None, level: float | None = None) -> float | None:
        if level is not None:
            reached = rounds_to(summary, level)
            if reached is None:
                return None
            round = int(reached)
        return up_to(summary, *names, round=round)

    return code


def bytes_of_a_training(totals: Mapping[str, float]) -> float | None:
    """All bytes of models that a run moved, also for its evaluations, for each training of a client."""
    moved, trained = totals["bytes_direct"] + totals["bytes_relayed"], totals["clients_trained"]
    return moved / trained if trained else None


def missed(code: Code, of: Callable[[Any], float] = np.mean) -> Code:
    """1 minus a statistic over clients: an error."""

    def error(summary: Summary) -> float | None:
        value = code(summary, of)
        return None if value is None else 1 - value

    return error


FIGURES: dict[str, Figure] = {
    "accuracy": Figure(column("accuracy"), 100, options=("round",)),
    "loss": Figure(column("loss"), 1, 3, options=("round",)),
    "tail-accuracy": Figure(tail, 100, options=("last",)),
    "peak-accuracy": Figure(lambda s: max(s["history"]["accuracy"], default=None), 100),
    "rounds-to": Figure(rounds_to, 1, 0, options=("level",)),
    "client": Figure(client, 100, 1, options=("client", "of")),
    # over clients, where all clients train: as FedCollab's authors report, and as HCCT's
    "mean-accuracy": Figure(lambda s: last(s), 100),
    "mean-of": Figure(mean_of, 100, 1, options=("of", "type")),
    "ipr": Figure(served("ipr"), 100),
    "rsd": Figure(served("rsd"), 100),
    "best-error": Figure(missed(best), 100),
    "last-error": Figure(missed(last), 100),
    "error-of": Figure(error_of, 100, options=("clients", "of")),
    "std-over-clients": Figure(lambda s: best(s, np.std), 100),
    "least-error": Figure(missed(best, np.max), 100),
    "most-error": Figure(missed(best, np.min), 100),
    # costs
    "moved-mb": Figure(summed("bytes_direct", "bytes_relayed"), 1e-6, 1, options=("round", "level")),
    "mb-of-a-training": Figure(lambda s: bytes_of_a_training(s["totals"]), 1e-6, 3),
    "seconds": Figure(summed("seconds"), 1, 0, options=("round", "level")),
    "clients-trained": Figure(summed("clients_trained"), 1, 0, options=("round", "level")),
    "clients-that-trained": Figure(lambda s: len(known(s["clients"], "samples")), 1, 0),
    "clients-skipped": Figure(summed("clients_skipped"), 1, 0, options=("round", "level")),
    "t-comp": Figure(summed("t_comp_s"), 1, 2, options=("round", "level")),
    "t-comm": Figure(summed("t_comm_s"), 1, 1, options=("round", "level")),
    "d-comm-gb": Figure(summed("d_comm_bytes"), 1e-9, 1, options=("round", "level")),
    "groups": Figure(column("groups"), 1, 0, options=("round",)),
    "cpd-median": Figure(column("cpd_median"), 1, 5, options=("round",)),
    # FedCollab's coalitions
    "distance": Figure(distance, 1, 3, options=("one", "other")),
    "objective": Figure(lambda s: numbers(s, "objective"), 1, 3),
    "margin": Figure(lambda s: numbers(s, "more"), 1, 3),
    "margin-of-types": Figure(of_types, 1, 3),
    "margin-errors": Figure(lambda s: numbers(s, "errors"), 1, 1),
}


def figure(name: str, where: str) -> Figure:
    """The figure of that name; ConfigError, which begins with `where`, if there is none."""
    if name not in FIGURES:
        raise ConfigError(f"{where}: there is no figure {name!r}", f"use one of: {', '.join(FIGURES)}")
    return FIGURES[name]


def values(runs: Mapping[int, Summary], name: str, where: str = "a table", **options: Any) -> dict[int, float]:
    """A figure of each run by seed, scaled as it is shown; runs without the figure are left out."""
    one = figure(name, where)
    if unknown := set(options) - set(one.options):
        allowed = ", ".join(one.options) or "none"
        raise ConfigError(f"{where}: figure {name} has no option {min(unknown)!r}", f"its options: {allowed}")
    if one.code is rounds_to and "level" not in options:
        raise ConfigError(f"{where}: figure {name} needs a level", "give level = 0.8, for example")
    found = {seed: one.code(summary, **options) for seed, summary in runs.items()}
    return {seed: one.scale * value for seed, value in found.items() if value is not None}
