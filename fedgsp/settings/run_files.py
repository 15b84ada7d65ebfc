"""The settings of the files of a run: those that it reads, and those that it leaves."""

from dataclasses import dataclass
from pathlib import Path

from fedgsp.settings.fields import setting
from fedgsp.settings.watching import WatchSettings

TRAINING, RECORD = "Training", "Record"
#: Which models are kept.
LAST, BEST, ALL = "last", "best", "all"
#: How long the state of a run is kept: until the run is finished, or beyond its end.
UNTIL_FINISHED, BEYOND = "until-finished", "beyond"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFiles(WatchSettings):
    """Settings of the files of a run."""

    initial_model: Path | None = setting(
        None,
        "start from the weights in this safetensors file, such as a checkpoint of another run; random by default",
        metavar="FILE",
        panel=TRAINING,
    )
    run_dir: Path | None = setting(
        None, "where the run is recorded; runs/TIME-SCHEME by default", metavar="DIRECTORY", panel=RECORD
    )
    local_run: Path | None = setting(
        None,
        "compare each client with training alone: a run that is kept in DIRECTORY, and played first if it is missing",
        metavar="DIRECTORY",
        panel=RECORD,
    )
    patience: int | None = setting(
        None,
        "end the run after so many evaluations in a row without a better validation score",
        least=1,
        metavar="EVALUATIONS",
        panel=TRAINING,
    )
    keep_models: str = setting(
        LAST,
        "keep the models of the last round (last), beside them those of the round with the best validation score "
        "(best), or those of all rounds (all)",
        choices=(LAST, BEST, ALL),
        panel=RECORD,
    )
    keep_state: str = setting(
        BEYOND,
        "keep what --resume needs until the run is finished, or beyond its end, so that --extend can add rounds",
        choices=(UNTIL_FINISHED, BEYOND),
        panel=RECORD,
    )

    @property
    def validates(self) -> bool:
        """Whether validation scores decide something in the run."""
        return self.patience is not None or self.keep_models == BEST
