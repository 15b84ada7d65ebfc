"""The local run, and the gains of clients over it.

It is a run of scheme `independent` with the same settings. Its result can be used by several runs.
"""

import itertools
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedgsp.errors import ConfigError, DataError, UserError
from fedgsp.files import parse_json, read_file
from fedgsp.messages import HostedClient
from fedgsp.run_ids import ALONE, is_local
from fedgsp.settings.checks import flag
from fedgsp.settings.connections import CONNECTIONS
from fedgsp.settings.fields import described
from fedgsp.settings.placing import PROCESSES
from fedgsp.settings.recorded import load_recorded
from fedgsp.settings.run import RunConfig
from fedgsp.settings.run_files import UNTIL_FINISHED
from fedgsp.trainings import TRAININGS
from top_server.record.damage import MALFORMED
from top_server.record.directory import RunDirectory, check_free, claim, lock, usable
from top_server.record.events.alone import GainsNotTold
from top_server.record.history import lines_of
from top_server.record.journal import Recorder
from top_server.record.scores import scored_by
from top_server.schemes import SCHEMES

logger = logging.getLogger(__name__)

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
    "schedule",
    "schedule_option",
    "local_schedule",
    "local_schedule_option",
    "clip_norm",
    "accumulate",
    "precision",
    "optimizer_state",
    "optimizer",
    "optimizer_option",
    "wire_dtype",
    "outgoing",
    "outgoing_option",
    "initial_model",
)
#: Settings that would replace choices of scheme `independent`; the local run has the choices of the scheme.
LEFT_TO_SCHEME = ("grouping", "program", "training", "training_option", "aggregation", "merge")

_ANOTHER = "give another directory: a local run is made where there is none"


def run_id(run: str) -> str:
    """The id of the local run of a run."""
    return run + ALONE


def settings(config: RunConfig) -> RunConfig:
    """The settings of the local run for a run with settings `config`."""
    processes = [
        name for name, one in described(RunConfig).items() if one.metadata["panel"] in (PROCESSES, CONNECTIONS)
    ]
    same = {name: getattr(config, name) for name in {*SAME, *processes}}
    return RunConfig(
        scheme="independent",
        run_dir=config.local_run,
        evaluate_every=config.evaluate_every,
        keep_state=UNTIL_FINISHED,  # its nodes forget what they keep for it
        **same,
    )


def recorded(config: RunConfig) -> dict[int, float] | None:
    """Score of each client at the end of an earlier local run; None if the directory has none yet.

    Raises ConfigError for a directory with a run of other settings, or with a run that did not finish.
    """
    assert config.local_run is not None
    directory = RunDirectory(config.local_run)
    if not os.path.exists(directory.config):  # also False for a path that cannot exist, which the check reports
        check_free(directory, "--local-run")
        return None
    try:
        found, wanted = load_recorded(directory.config), settings(config)
    except UserError as error:
        raise ConfigError(f"--local-run {directory.path} holds no run: {error.what}", error.remedy) from None
    for name in ("scheme", *SAME, *LEFT_TO_SCHEME):
        has, needs = _value(found, name), _value(wanted, name)
        if has != needs:
            raise ConfigError(
                f"--local-run {directory.path} was made with {flag(name)} {has}, this run needs {needs}", _ANOTHER
            )
    try:
        last = parse_json(read_file(directory.summary))["last"]
        if last["round"] != config.rounds:
            raise ValueError
        return {int(client): float(score) for client, score in last["per_client"].items()}
    except (OSError, *MALFORMED):
        if _cut_off(directory):
            return None
        raise ConfigError(
            f"--local-run {directory.path} holds a run that did not end",
            "resume it if it can be, remove it, or give another directory",
        ) from None


def _cut_off(directory: RunDirectory) -> bool:
    """Whether a top server ended while it made a local run here. Such a run cannot be resumed.

    Raises ConfigError if another top server is still making it.
    """
    try:
        events = lines_of(directory.events)
        made_here = is_local(str(next(events, {}).get("run", "")))
        if not made_here or any(event.get("event") == "run_finished" for event in events):
            return False
        with directory.events.open("rb") as file:
            lock(file, directory)
    except (OSError, DataError):
        return False
    return True


def set_aside(config: RunConfig) -> None:
    """Renames the directory of a local run that was cut off, so that it can be played from the beginning."""
    assert config.local_run is not None
    directory = RunDirectory(Path(config.local_run).absolute())
    if not directory.config.exists() or not _cut_off(directory):
        return
    names = (f"{directory.path.name}-unfinished-{number}" for number in itertools.count(1))
    aside = next(path for path in map(directory.path.with_name, names) if not path.exists())
    with usable(directory, "--local-run"):
        directory.path.rename(aside)
    logger.warning(
        "the local run in %s was cut off and is begun again: what there was is in %s", directory.path, aside
    )


def _value(config: RunConfig, name: str) -> Any:
    """The value of a setting, or the scheme's choice if the setting is not given. The scheme must exist."""
    value = getattr(config, name)
    return getattr(SCHEMES[config.scheme], name, None) if value is None else value


def check_score(config: RunConfig, score: str) -> None:
    """Raises ConfigError if the recorded local run rates models by another score than the task of this run."""
    assert config.local_run is not None
    directory = RunDirectory(config.local_run)
    found = scored_by(parse_json(read_file(directory.summary)))
    if found != score:
        raise ConfigError(f"--local-run {directory.path} is scored by {found}, and this task by {score}", _ANOTHER)


def tell_left_out(
    config: RunConfig, hosted: Mapping[int, HostedClient], alone: Mapping[int, float], recorder: Recorder
) -> None:
    """Records the clients without a gain; raises ConfigError if no client has one.

    Clients without test samples are in neither run.
    """
    here = {client for client, member in hosted.items() if member.test_samples}
    if not here & alone.keys():
        raise ConfigError(f"--local-run {config.local_run} has no score of any client of this run", _ANOTHER)
    for left_out, reason in (
        (here - alone.keys(), "the local run has no score of them"),
        (alone.keys() - here, "the local run has them, this run does not"),
    ):
        if left_out:
            recorder.record(GainsNotTold(clients=sorted(left_out), reason=reason))


def check(config: RunConfig) -> None:
    """Raises ConfigError if --local-run cannot be used. It is called before the top server waits for nodes."""
    if config.local_run is None:
        return
    if config.run_dir is not None and Path(config.run_dir).resolve() == Path(config.local_run).resolve():
        raise ConfigError("--local-run and --run-dir are the same directory", "give the local run one of its own")
    if recorded(config) is None:
        if TRAININGS[training := _value(config, "training")].adds is not None:
            raise ConfigError(
                f"--local-run {config.local_run} is still to be made, and training {training} adds tensors to"
                " the model, which clients alone have no use for",
                f"make it before: --scheme independent --run-dir {config.local_run} with the same other settings",
            )
        claim(RunDirectory(config.local_run), "--local-run")


def gained(reached: Mapping[int, float], alone: Mapping[int, float]) -> dict[int, float]:
    """Client -> its gain in score over training alone; for clients in both mappings, in ascending order."""
    return {client: reached[client] - alone[client] for client in sorted(reached.keys() & alone.keys())}


def gains(reached: Mapping[int, float], alone: Mapping[int, float]) -> tuple[float, float] | None:
    """IPR, the share of clients that are strictly better off than alone, and RSD, the deviation of their gains.

    Only clients in both mappings count; None if there are none. The deviation is that of the population (FedCollab,
    section 5.5).
    """
    differences = np.array(list(gained(reached, alone).values()))
    if not differences.size:
        return None
    return float((differences > 0).mean()), float(differences.std())
