"""The trainings of FedGSP with their code."""

from __future__ import annotations

from collections.abc import Mapping

from fedgsp.settings.fields import values_of
from fedgsp.trainings import TRAININGS
from fedgsp_node.training.base import Algorithm

#: Training -> its code.
ALGORITHMS: dict[str, Algorithm] = {name: training.load() for name, training in TRAININGS.built_in.items()}
#: Trainings whose clients keep a personal model.
KEEPING = [name for name, training in TRAININGS.built_in.items() if training.keeps_personal]
#: Trainings whose clients keep their heads.
HEADED = [name for name, training in TRAININGS.built_in.items() if training.keeps_head]
#: Trainings that take steps before a model is evaluated.
ADAPTING = [name for name, algorithm in ALGORITHMS.items() if algorithm.adapt is not None]


def numbers(training: str, given: Mapping[str, str] | None = None) -> dict[str, float]:
    """Every option of a training by its written name."""
    return values_of(TRAININGS[training].read(given or {}))
