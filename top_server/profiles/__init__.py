"""Profiles: what clients reveal of themselves before they are grouped. One file each."""

from __future__ import annotations

from top_server.profiles.base import Profile
from top_server.profiles.distances import Distances
from top_server.profiles.histograms import Histograms
from top_server.profiles.losses import Losses
from top_server.profiles.model_distances import ModelDistances
from top_server.profiles.nothing import Nothing
from top_server.profiles.prior_models import PriorModels
from top_server.profiles.priors import PriorDistances, PriorLosses
from top_server.profiles.training_accuracy import TrainingAccuracy
from top_server.profiles.updates import UpdateProfile

__all__ = ["PROFILES", "Profile"]

PROFILES: dict[str, type[Profile]] = {
    "none": Nothing,
    "histograms": Histograms,
    "updates": UpdateProfile,
    "distances": Distances,
    "losses": Losses,
    "training-accuracy": TrainingAccuracy,
    "prior-losses": PriorLosses,
    "prior-distances": PriorDistances,
    "prior-models": PriorModels,
    "model-distances": ModelDistances,
}
