"""The settings of a run, from the config.toml in its directory."""

from pathlib import Path

from fedgsp.errors import ConfigError, DataError
from fedgsp.files import MOST_OF_SETTINGS, parse_toml, read_text
from fedgsp.settings.files import load
from fedgsp.settings.run import RunConfig

#: What every such file has. A file that was cut off lacks its tables, which stand at the end. Not all settings are
#: required: a run of an earlier version may lack some.
_ALWAYS = ("task", "task_option")


def load_recorded(path: Path) -> RunConfig:
    """The settings; DataError names the file if it is missing, empty or damaged: its run has other settings."""
    try:
        settings = load(RunConfig, path)
        has = parse_toml(read_text(path, MOST_OF_SETTINGS))
    except (ConfigError, OSError, ValueError) as error:
        what = error.what.removeprefix("--config ") if isinstance(error, ConfigError) else f"{path}: {error}"
        raise DataError(what, "restore the file from a copy") from None
    lacks = [name for name in _ALWAYS if name not in has]
    DataError.require(not lacks, f"{path} lacks {', '.join(lacks)}", "restore the file from a copy")
    return settings
