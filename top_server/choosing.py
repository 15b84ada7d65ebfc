"""From settings to choices: the scheme's row with what the settings replace, and each option to whom it is for."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np

from fedgsp.errors import ConfigError
from top_server.config import RunConfig
from top_server.grouping import GROUPINGS, GroupingRequest
from top_server.merging import MERGE_OPTIONS
from top_server.profiles import PROFILES
from top_server.schemes import SCHEMES, Scheme

#: Merges that need what only some profiles tell.
_NEEDS = {"clusters": "losses", "soft-clusters": "losses"}


def choose(config: RunConfig) -> Scheme:
    """The scheme's row with the choices that the settings replace; raises ConfigError for what does not fit."""
    row = SCHEMES[config.scheme]
    chosen = {
        name: value
        for name in ("growth", "grouping", "program", "merge")
        if (value := getattr(config, name)) is not None
    }
    scheme = dataclasses.replace(row, **chosen)
    needed = _NEEDS.get(scheme.merge)
    if needed is not None and scheme.profile != needed:
        fitting = [name for name, other in SCHEMES.items() if other.profile == needed]
        raise ConfigError(
            f"--merge {scheme.merge} does not go with scheme {config.scheme}", f"use scheme {' or '.join(fitting)}"
        )
    given = options(config, scheme)
    if scheme.grouping in GROUPINGS:
        _try_options(scheme.grouping, given["grouping"])
    return scheme


def options(config: RunConfig, scheme: Scheme) -> dict[str, dict[str, str]]:
    """The options of --grouping-option, by the part of the scheme that reads them: profile, merge, or grouping."""
    merged = {**scheme.options, **config.grouping_option}
    profile, merge = PROFILES[scheme.profile].options, MERGE_OPTIONS.get(scheme.merge, ())
    return {
        "profile": {name: value for name, value in merged.items() if name in profile},
        "merge": {name: value for name, value in merged.items() if name in merge},
        "grouping": {name: value for name, value in merged.items() if name not in (*profile, *merge)},
    }


def _try_options(grouping: str, options: Mapping[str, str]) -> None:
    """Groups four clients, so that a wrong --grouping-option is told before anybody waits for nodes."""
    four = np.arange(1, 5)
    column = four[:, None].astype(np.float64)
    GROUPINGS[grouping](
        GroupingRequest(
            1,
            2,
            0,
            (0, 1, 2, 3),
            sizes=four,
            histograms=np.stack([four, four[::-1]], axis=1),
            matrices={"gram": np.eye(4), "losses": column, "train_loss": column, "prior_distance": column},
            options=options,
        )
    )
