"""Whether two runs have the same settings, as far as settings affect results."""

from pathlib import PurePath
from typing import Any

from fedgsp.settings.fields import described
from fedgsp.settings.run import METHOD, OPTIMISER, TASK, RunConfig
from fedgsp.settings.run_files import TRAINING
from top_server.fitted import MAY_BE_CHOSEN

#: Settings of other panels that affect results.
_ALSO = ("clients", "update_norm_limit", "wire_dtype", "local_run")
#: Options that are files. Several are separated by commas.
FILES = ("data", "distances")
#: Settings and options that name files. The same file may have another place.
_PLACES = (*FILES, "local_run", "initial_model")


def differing(found: RunConfig, asked: RunConfig) -> str:
    """The first setting that affects results and is not the same in both; empty if there is none.

    `found` is of a run's record, which has the values that the run has chosen where `asked` gives none. What a run may
    choose (`MAY_BE_CHOSEN`) is therefore compared only if `asked` gives it.
    """
    for name, one in described(RunConfig).items():
        if one.metadata["panel"] not in (METHOD, TRAINING, OPTIMISER, TASK) and name not in _ALSO:
            continue
        there, here = getattr(found, name), getattr(asked, name)
        if here is None and (name, "") in MAY_BE_CHOSEN:
            continue
        if isinstance(here, dict):
            there = {key: text for key, text in there.items() if key in here or (name, key) not in MAY_BE_CHOSEN}
        if _comparable(name, there) != _comparable(name, here):
            return name
    return ""


def _comparable(name: str, value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _comparable(key, text) for key, text in value.items()}
    return [PurePath(path).name for path in str(value).split(",")] if name in _PLACES and value is not None else value
