"""What every client reaches alone: a run of scheme `independent` with the same settings, made once and used again."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from fedgsp.errors import ConfigError
from top_server.config import RunConfig, flag, load
from top_server.run_directory import RunDirectory, check_free, claim

#: Settings that must be the same for two runs to be compared.
SAME = (
    "task",
    "task_option",
    "seed",
    "rounds",
    "local_epochs",
    "batch_size",
    "learning_rate",
    "learning_rate_decay",
)


def settings(config: RunConfig) -> RunConfig:
    """Those of the local run that goes with a run."""
    same = {name: getattr(config, name) for name in SAME}
    return RunConfig(scheme="independent", run_dir=config.local_run, evaluate_every=config.evaluate_every, **same)


def recorded(config: RunConfig) -> dict[int, float] | None:
    """Accuracy of each client at the end of the local run that is there; None if there is none yet.

    Raises ConfigError for a directory that holds another run, or one that did not end.
    """
    assert config.local_run is not None
    directory = RunDirectory(config.local_run)
    if not os.path.exists(directory.config):  # False too where nothing can be: told by the check
        check_free(directory, "--local-run")
        return None
    try:
        found, wanted = load(directory.config), settings(config)
    except ConfigError as error:
        raise ConfigError(f"--local-run {directory.path} holds no run: {error.what}", error.remedy) from None
    for name in ("scheme", *SAME):
        if getattr(found, name) != getattr(wanted, name):
            raise ConfigError(
                f"--local-run {directory.path} was made with {flag(name)} {getattr(found, name)},"
                f" this run needs {getattr(wanted, name)}",
                "give another directory: a local run is made where there is none",
            )
    try:
        last = json.loads(directory.summary.read_text(encoding="utf-8"))["last"]
        if last["round"] != config.rounds:
            raise ValueError
        return {int(client): float(accuracy) for client, accuracy in last["per_client"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise ConfigError(
            f"--local-run {directory.path} holds a run that did not end", "remove it, or give another directory"
        ) from None


def gains(reached: Mapping[int, float], alone: Mapping[int, float]) -> tuple[float, float] | None:
    """IPR, the share of clients that are strictly better off than alone, and RSD, the deviation of their gains.

    The deviation is that of the population (FedCollab, section 5.5). None unless both are of the same clients: figures
    over some of them would not compare with those of other rounds.
    """
    if not reached or reached.keys() != alone.keys():
        return None
    differences = np.array([reached[client] - alone[client] for client in alone])
    return float((differences > 0).mean()), float(differences.std())


def check(config: RunConfig) -> None:
    """Refuses a --local-run that cannot be used before anybody waits for nodes."""
    if config.local_run is None:
        return
    if config.run_dir is not None and Path(config.run_dir).resolve() == Path(config.local_run).resolve():
        raise ConfigError("--local-run and --run-dir are the same directory", "give the local run one of its own")
    if recorded(config) is None:
        claim(RunDirectory(config.local_run), "--local-run")
