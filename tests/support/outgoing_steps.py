"""A package of outgoing steps, of every sort that the seam has to carry, and a way to install it for a test."""

from __future__ import annotations

import functools
import logging
import os
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import fedgsp.parts
from fedgsp.outgoing import Step
from fedgsp.settings.fields import setting
from fedgsp.tensors.updates import trainable
from fedgsp.tensors.weights import Weights
from fedgsp_node.outgoing.base import Outgoing

#: Environment variable: the file to which `noise` appends a line "ROUND CLIENT DIGEST" each time that it draws.
DRAWS = "TEST_OUTGOING_DRAWS"
#: `hanging` tells here that it has begun, and goes on when it may.
HANGS, MAY_GO_ON = threading.Event(), threading.Event()


@dataclass(frozen=True, slots=True)
class ClipOptions:
    norm: float = setting(1.0, "the largest length of an update", above=0)


@dataclass(frozen=True, slots=True)
class NoiseOptions:
    scale: float = setting(0.01, "standard deviation of the noise", least=0)


def differences(start: Weights, after: Weights) -> dict[str, NDArray[np.float64]]:
    """The trainable part of an update, by tensor."""
    return {
        spec.name: after.arrays[spec.name].astype(np.float64) - start.arrays[spec.name].astype(np.float64)
        for spec in trainable(start.tensors)
    }


def clip(outgoing: Outgoing, options: ClipOptions) -> Weights:
    """Scales the update down to a length of at most `norm`."""
    assert outgoing.start is not None
    result = outgoing.model.to_change()
    update = differences(outgoing.start, result)
    length = np.sqrt(sum(np.sum(np.square(array)) for array in update.values()))
    for name, array in update.items():
        before = outgoing.start.arrays[name].astype(np.float64)
        result.arrays[name][...] = before + array * min(1.0, options.norm / length)
    return result


def noise(outgoing: Outgoing, options: NoiseOptions) -> Weights:
    """Adds Gaussian noise from the node's secret."""
    rng = np.random.Generator(np.random.Philox(int.from_bytes(outgoing.secret[:16])))
    result = _added(outgoing.model, rng, options.scale)
    if path := os.environ.get(DRAWS):
        with Path(path).open("a") as file:
            file.write(f"{outgoing.round} {outgoing.client} {result.digest.hex()}\n")
    return result


def mask(outgoing: Outgoing, _: Any) -> Weights:
    """Adds a mask that everybody can compute."""
    return _added(outgoing.model, outgoing.rng, 1.0)


def _added(model: Weights, rng: np.random.Generator, scale: float) -> Weights:
    result = model.copy()
    for spec in trainable(result.tensors):
        before = result.arrays[spec.name].astype(np.float64)
        result.arrays[spec.name][...] = before + scale * rng.standard_normal(spec.shape)
    return result


def raising(outgoing: Outgoing, _: Any) -> Weights:
    raise ValueError(f"no budget is left for client {outgoing.client}")


def hanging(outgoing: Outgoing, _: Any) -> Weights:
    logging.getLogger(__name__).warning("round=%d a step hangs", outgoing.round)
    HANGS.set()
    assert MAY_GO_ON.wait(60)
    return outgoing.model


def short(outgoing: Outgoing, _: Any) -> Weights:
    """Leaves a tensor out without having declared so."""
    return outgoing.model.part(outgoing.model.tensors[1:])


def not_finite(outgoing: Outgoing, _: Any) -> Weights:
    result = outgoing.model.copy()
    next(iter(result.arrays.values()))[...] = np.nan
    return result


def other_type(outgoing: Outgoing, _: Any) -> Any:
    return dict(outgoing.model.arrays)


CLIP = Step(help="clip", code=f"{__name__}:clip", options=ClipOptions, needs_start=True)
NOISE = Step(help="noise", code=f"{__name__}:noise", options=NoiseOptions, repeatable=False)
MASK = Step(help="mask", code=f"{__name__}:mask")
HANGING = Step(help="hangs", code=f"{__name__}:hanging")
RAISING = Step(help="raises", code=f"{__name__}:raising")
SHORT = Step(help="leaves a tensor out", code=f"{__name__}:short")
NOT_FINITE = Step(help="gives NaN", code=f"{__name__}:not_finite")
OTHER_TYPE = Step(help="gives a dict", code=f"{__name__}:other_type")
LOST = Step(help="has no code", code=f"{__name__}:nowhere")
_NAMES = ("CLIP", "NOISE", "MASK", "HANGING", "RAISING", "SHORT", "NOT_FINITE", "OTHER_TYPE", "LOST")


def install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Installs the steps for this process and for the processes that it starts, until the test ends."""
    metadata = folder / "outgoing_steps-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: outgoing-steps\nVersion: 1.0\n")
    points = [f"{name.lower().replace('_', '-')} = {__name__}:{name}" for name in _NAMES]
    (metadata / "entry_points.txt").write_text("\n".join(["[fedgsp.outgoings]", *points, ""]))
    monkeypatch.syspath_prepend(folder)
    paths = [str(folder), str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in paths if path))
    forget()


def forget() -> None:
    """Lets this process look for installed parts again."""
    for found in vars(fedgsp.parts).values():
        if isinstance(found, functools._lru_cache_wrapper):
            found.cache_clear()
