"""Profiles: what clients reveal of themselves before they are grouped. One file each."""

from fedgsp.parts import Part, Parts
from fedgsp.scoring import ACCURACY, CLASS_COUNTS, CLASS_LABELS
from top_server.profiles.options import DistanceOptions, LossOptions, ModelOptions, PriorOptions, UpdateOptions

__all__ = ["PROFILES"]

_HERE = "top_server.profiles"
_BUILT_IN = {
    "none": Part(help="nothing but numbers of samples", code=f"{_HERE}.questions:Nothing"),
    "histograms": Part(
        help="the number of training samples in each class",
        code=f"{_HERE}.questions:Histograms",
        needs_of_task=lambda _: (CLASS_COUNTS,),
    ),
    "updates": Part(
        help="the last update of each client, one layer of it, or a sketch of it",
        code=f"{_HERE}.updates:UpdateProfile",
        options=UpdateOptions,
    ),
    "distances": Part(
        help="how far the data of two clients are apart, by networks that are trained to tell them apart",
        code=f"{_HERE}.distances:Distances",
        options=DistanceOptions,
        # distances that are read from a file need no discriminators, which see labels
        needs_of_task=lambda options: () if options.distances is not None else (CLASS_LABELS,),
    ),
    "losses": Part(
        help="the training loss of each cluster's model on each client",
        code=f"{_HERE}.questions:Losses",
        options=LossOptions,
        # Else the models that clients choose among are never trained.
        needs={"merge": ("clusters", "soft-clusters")},
    ),
    "training-accuracy": Part(
        help="the accuracy of the global model on the training data of each client",
        code=f"{_HERE}.questions:TrainingAccuracy",
        needs_of_task=lambda _: (ACCURACY,),
    ),
    "prior-losses": Part(
        help="training losses of the global model, and of a model that each client trains alone beforehand",
        code=f"{_HERE}.priors:PriorLosses",
        options=PriorOptions,
    ),
    "prior-distances": Part(
        help="training loss of the clients' mean model, and its distance to a model that each trains alone beforehand",
        code=f"{_HERE}.priors:PriorDistances",
        options=PriorOptions,
    ),
    "prior-models": Part(
        help="a model that each client trains alone before the first round",
        code=f"{_HERE}.priors:PriorModels",
        options=PriorOptions,
    ),
    "model-distances": Part(
        help="the distance of each cluster's model to the model that each client trained last",
        code=f"{_HERE}.questions:ModelDistances",
        options=ModelOptions,
        needs={"program": ("parallel",), "merge": ("centres",)},
    ),
}

PROFILES: Parts[Part] = Parts("profile", _BUILT_IN, Part)
