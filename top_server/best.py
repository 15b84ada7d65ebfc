"""Which round was the best so far by validation, and whether a run has waited long enough for a better one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from fedgsp.errors import ConfigError
from fedgsp.messages import HostedClient
from fedgsp.settings.run import RunConfig
from top_server.record.scores import score_of, scored_by


@dataclass(frozen=True, slots=True)
class Best:
    """The best round so far. A larger score is better; of equal scores, the first counts."""

    #: None, and round 0, before the first score.
    score: float | None = None
    round: int = 0
    #: Evaluations in a row since that round, none of them better.
    waited: int = 0

    def after(self, number: int, score: float | None) -> Best:
        """The best round after the evaluation of round `number`.

        Without a score, since a client with validation data gave no answer, nothing can be compared: the evaluation
        does not count.
        """
        if score is None:
            return self
        if self.score is None or score > self.score:
            return Best(score, number)
        return Best(self.score, self.round, self.waited + 1)

    def is_final(self, patience: int | None) -> bool:
        """Whether a run with this patience ends now."""
        return patience is not None and self.waited >= patience

    def to_json(self) -> list[Any]:
        """The JSON of a saved state."""
        return [self.score, self.round, self.waited]

    @classmethod
    def from_json(cls, saved: list[Any]) -> Best:
        """The inverse; raises ValueError or TypeError."""
        score, number, waited = saved
        return cls(None if score is None else float(score), int(number), int(waited))


def is_last(config: RunConfig, best: Best, number: int) -> bool:
    """Whether the run ends after round `number`."""
    return number >= config.rounds or best.is_final(config.patience)


def check_validation(config: RunConfig, hosted: Iterable[HostedClient]) -> None:
    """Raises ConfigError if validation scores decide something, and no client has validation data."""
    if config.validates and not any(one.validation_samples for one in hosted):
        flag = "--patience" if config.patience is not None else "--keep-models best"
        raise ConfigError(
            f"{flag} needs validation data, and no client has some: the test data must not choose what they rate",
            "let data() of the task return ClientData(train, test, validation), or leave the flag out",
        )


def after_row(best: Best, row: Mapping[str, Any], every: int) -> Best:
    """The best round after a row of the history.

    The last round of a run may be evaluated out of turn, and then does not count: in a longer run it would not have
    been evaluated. Every `every`-th round is in turn.
    """
    if row["round"] % every:
        return best
    return best.after(row["round"], score_of(row.get("validation") or {}))


def chosen_by_validation(rows: Iterable[Mapping[str, Any]], best: Best) -> dict[str, Any]:
    """What the summary says of the round that validation has chosen: its figures on the test data too.

    Empty if no round has a validation score.
    """
    row = next((row for row in rows if row["round"] == best.round), None)
    if best.score is None or row is None:
        return {}
    names = ("accuracy", "loss", "metrics", "score", "accuracy_per_client", "score_per_client")
    found = {name: row[name] for name in names if row.get(name) is not None}
    told = {"chosen_by": f"validation {scored_by(row['validation'])}", "round": best.round}
    return {"validated": {**told, "validation_score": best.score, "test": found}}
