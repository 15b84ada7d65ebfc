"""Errors in the words of Python: the flag of a command becomes the parameter that stands for it."""

import contextlib
import re
from collections.abc import Iterator

from fedgsp.errors import UserError
from fedgsp.settings.fields import described
from fedgsp.settings.run import RunConfig

#: Flag -> the parameter of `run`, or of `Run.model`, if that has another name than a setting of a run.
_PARAMETERS = {
    **{f"--{name.replace('_', '-')}": name for name in described(RunConfig)},
    "--client": "client",
    "--model": "name",
    "--out": "out",
    "--extend": "extend",
    "--resume": "resume",
    "--state-dir": "state_dir",
    "--task-option": "options",
    **dict.fromkeys(("--local-nodes", "--workers"), "nodes"),
}
#: A command that Python has as a function is that function, and no program. Another command stays as a shell takes it.
_FLAG = re.compile(
    r"--config (?=run\(\))|(?:top-server )?--(?:resume|extend)(?![a-z-])"
    r"|(?:top-server|fedgsp-node) (?:'[^']*'|[^;,`()])*|--[a-z][a-z-]*"
)


@contextlib.contextmanager
def in_python() -> Iterator[None]:
    """Within, a UserError names parameters in place of flags."""
    try:
        yield
    except UserError as error:
        UserError.__init__(error, reworded(error.what), reworded(error.remedy))
        raise


def reworded(text: str) -> str:
    """The text with parameters in place of flags."""
    return _FLAG.sub(lambda found: _parameter(found[0]), text)


def _parameter(found: str) -> str:
    flag = found.removeprefix("top-server ")
    if flag in _PARAMETERS:
        return f"`{_PARAMETERS[flag]}`"
    return "" if found == "--config " else found  # `run` gives its arguments as the text of a file
