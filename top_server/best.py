"""Which round was the best so far by validation, and whether a run has waited long enough for a better one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from fedgsp.errors import ConfigError
from fedgsp.messages import HostedClient
from fedgsp.scoring import Figure, Scoring
from fedgsp.settings.run import RunConfig
from fedgsp.words import counted, share
from top_server.record.scores import score_of, scored_by

_BY_ACCURACY = Scoring()


@dataclass(frozen=True, slots=True)
class Best:
    """The best round so far. A larger score is better; of equal scores, the first counts."""

    #: None, and round 0, before the first score.
    score: float | None = None
    round: int = 0
    #: Evaluations in a row since that round, none of them better.
    waited: int = 0
    #: What the score is combined of, by client.
    figures: Mapping[int, Figure] = field(default_factory=dict)

    def after(
        self,
        number: int,
        score: float | None,
        figures: Mapping[int, Figure | None] = MappingProxyType({}),
        scoring: Scoring = _BY_ACCURACY,
    ) -> Best:
        """The best round after the evaluation of round `number`.

        Rounds are compared over the clients that both have: clients come and go. An evaluation that cannot be compared
        does not count: one without a score (a client gave no answer), and one in which a client that counted in the
        best round has a figure (None) that is not a finite number.
        """
        known = {client: one for client, one in figures.items() if one is not None}
        if score is None or any(figures.get(client, one) is None for client, one in self.figures.items()):
            return self
        if self.score is None:
            return Best(score, number, 0, known)
        now, before = score, self.score
        if known.keys() != self.figures.keys():
            common = known.keys() & self.figures.keys()
            both = [scoring.score_of(of[client] for client in common) for of in (known, self.figures)]
            if both[0] is None or both[1] is None:
                return self
            now, before = both[0], both[1]
        if now > before:
            return Best(score, number, 0, known)
        return Best(self.score, self.round, self.waited + 1, self.figures)

    def is_final(self, patience: int | None) -> bool:
        """Whether a run with this patience ends now."""
        return patience is not None and self.waited >= patience

    def to_json(self) -> list[Any]:
        """The JSON of a saved state."""
        return [self.score, self.round, self.waited, {str(client): one for client, one in self.figures.items()}]

    @classmethod
    def from_json(cls, saved: list[Any]) -> Best:
        """The inverse; raises ValueError or TypeError."""
        score, number, waited, figures = saved
        return cls(None if score is None else float(score), int(number), int(waited), _figures(figures))


def _figures(saved: Mapping[str, Sequence[float]]) -> dict[int, Figure]:
    return {int(client): Figure(float(one[0]), float(one[1]), int(one[2])) for client, one in saved.items()}


def is_last(config: RunConfig, best: Best, number: int) -> bool:
    """Whether the run ends after round `number`."""
    return number >= config.rounds or best.is_final(config.patience)


def told_validation(config: RunConfig, hosted: Iterable[HostedClient]) -> Iterator[str]:
    """What people should know before a run in which validation scores decide something."""
    if not config.validates:
        return
    clients = list(hosted)
    some = [one for one in clients if one.validation_samples]
    samples = sum(one.validation_samples for one in some)
    yield f"{share(len(some), len(clients), 'client')} have validation parts, with {counted(samples, 'sample')}"
    turns = config.rounds // config.evaluate_every
    if config.patience is not None and config.patience >= turns:
        yield (
            f"--patience {config.patience} cannot end this run before its last round: validation data are evaluated"
            f" {turns} times; give a smaller --patience, or more --rounds"
        )


def check_validation(config: RunConfig, hosted: Iterable[HostedClient]) -> None:
    """Raises ConfigError if validation scores decide something, and no client has validation data."""
    if config.validates and not any(one.validation_samples for one in hosted):
        flag = "--patience" if config.patience is not None else "--keep-models best"
        raise ConfigError(
            f"{flag} needs validation data, and no client has some: test data must not choose the model",
            "let data() of the task return ClientData(train, test, validation), or leave the flag out",
        )


def after_row(best: Best, row: Mapping[str, Any], every: int, scoring: Scoring = _BY_ACCURACY) -> Best:
    """The best round after a row of the history.

    The last round of a run may be evaluated out of turn, and then does not count: in a longer run it would not have
    been evaluated. Every `every`-th round is in turn.
    """
    if row["round"] % every:
        return best
    told = row.get("validation") or {}
    figures = {
        int(client): None if one is None else Figure(*one) for client, one in (told.get("behind_score") or {}).items()
    }
    return best.after(row["round"], score_of(told), figures, scoring)


def chosen_by_validation(rows: Iterable[Mapping[str, Any]], best: Best) -> dict[str, Any]:
    """What the summary says of the round that validation has chosen: its figures on the test data too.

    Empty if no round has a validation score.
    """
    if best.score is None or (row := next((row for row in rows if row["round"] == best.round), None)) is None:
        return {}
    names = ("accuracy", "loss", "metrics", "score", "accuracy_per_client", "score_per_client")
    found = {name: row[name] for name in names if row.get(name) is not None}
    told = {"chosen_by": f"validation {scored_by(row['validation'])}", "round": best.round}
    if best.figures:
        told["clients"] = len(best.figures)
    return {"validated": {**told, "validation_score": best.score, "test": found}}
