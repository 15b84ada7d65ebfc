"""Finds what a merge of a package keeps for the next round and does not save: a resumed run would have other bits."""

import json
import logging
from collections.abc import Mapping
from typing import Any

import numpy as np

from fedgsp.parts import Part
from fedgsp.tensors.weights import Weights
from top_server.evidence import Evidence
from top_server.merging.base import Merging
from top_server.models import Changes

logger = logging.getLogger(__name__)

#: The round in which a merge of a package is watched: it has kept something by then.
WATCHED = 2
_REMEDY = "return it from state() and take it in restore(), or make it a field by top_server.remembered"


def begin(
    part: Part, merging: Merging, round_number: int, evidence: Evidence, weights: Mapping[str, Weights]
) -> Changes:
    """Begins a round; in round `WATCHED`, warns if a new merge that has the saved state then differs from this one.

    Compared after `begin`, since a merge may keep what it likes until then. It takes a second copy of the saved
    tensors, which may be large: so only merges of packages are compared, and in one round.
    """
    if not part.package or round_number != WATCHED:
        return merging.begin(round_number, evidence, weights)
    saved, tensors = merging.state()
    document = json.loads(json.dumps(saved))
    kept = {name: np.array(tensor) for name, tensor in tensors.items()}
    changes = merging.begin(round_number, evidence, weights)
    try:
        twin = part.load()(merging.settings)
        twin.restore(document, kept)
        twin.begin(round_number, evidence, weights)
    except Exception as error:
        logger.warning("%s cannot be put where its saved state was taken: %s: %s", part, type(error).__name__, error)
        return changes
    for name in unlike(merging, twin):
        logger.warning(
            "%s keeps its attribute %r for the next round and does not save it, so that a resumed run may have other"
            " bits; %s",
            part,
            name,
            _REMEDY,
        )
    return changes


def unlike(one: object, other: object) -> list[str]:
    """The attributes in which two objects of a class differ, as far as their values can be compared."""
    ours, theirs = vars(one), vars(other)
    return [name for name in ours if name not in theirs or not _alike(ours[name], theirs[name])]


def _alike(one: Any, other: Any) -> bool:
    """Whether two values are equal; those of classes that cannot be compared are."""
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return one.dtype == other.dtype and one.tobytes() == other.tobytes()
    if isinstance(one, Weights) and isinstance(other, Weights):
        return one.digest == other.digest
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(_alike(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(_alike, one, other))
    if isinstance(one, _PLAIN) or isinstance(other, _PLAIN):
        return bool(one == other)
    return True


_PLAIN = (bool, int, float, complex, str, bytes, set, frozenset, np.generic, type(None))
