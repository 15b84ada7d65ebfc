"""Local training algorithms. Each has a file and a row of `ALGORITHMS`; `fedgsp.local_training` has their options."""

from __future__ import annotations

from fedgsp_node.training import ditto, fedprox, finetune, per_fedavg, pfedme, sgd
from fedgsp_node.training.base import Algorithm

ALGORITHMS: dict[str, Algorithm] = {
    "sgd": Algorithm(sgd.train, in_place=True),
    "own-head": Algorithm(sgd.train, in_place=True, keeps_head=True),
    "fedprox": Algorithm(fedprox.train),
    "finetune": Algorithm(sgd.train, in_place=True, adapt=finetune.adapt),
    "per-fedavg": Algorithm(per_fedavg.train, in_place=True, adapt=finetune.adapt),
    "pfedme": Algorithm(pfedme.train, keeps_personal=True),
    "ditto": Algorithm(ditto.train, keeps_personal=True),
}
