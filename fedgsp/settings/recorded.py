"""The settings of a run, from the config.toml in its directory."""

from pathlib import Path

from fedgsp.errors import ConfigError, DataError
from fedgsp.files import parse_toml
from fedgsp.settings.files import parse, text_of
from fedgsp.settings.run import RunConfig

#: What every such file has. A file that was cut off lacks its tables, which stand at the end. Not all settings are
#: required: a run of an earlier version may lack some.
_ALWAYS = ("task", "task_option")
_REMEDY = "restore the file from a copy"


def load_recorded(path: Path) -> RunConfig:
    """The settings; DataError names the file if it is missing, empty or damaged: its run has other settings."""
    try:
        text = text_of(path)
        settings = parse(RunConfig, text, path)
    except ConfigError as error:
        raise DataError(error.what.removeprefix("--config "), _REMEDY) from None
    has = parse_toml(text)
    lacks = [name for name in _ALWAYS if name not in has]
    DataError.require(not lacks, f"{path} lacks {', '.join(lacks)}", _REMEDY)
    return settings
