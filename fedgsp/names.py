"""What the names in messages may look like; `fedgsp.identity` has the rule for the names of nodes.

Names stand in records, logs, errors and paths, so that each kind has a limited alphabet and length.
"""

import re

from fedgsp.visible import visible

#: Most characters of the value of an option, and of an address; longer values are shortened before they are sent.
MOST_OPTION, MOST_ADDRESS = 200, 300
CLIENT_NAME_RULE = "1 to 60 characters that can be shown, without spaces around them, and no number"
TEXT_RULE = "1 to 255 characters that can be shown"
OPTION_RULE = "1 to 100 letters, digits, dots, dashes and underscores"
TASK_RULE = "a name, or module:attribute, of at most 200 letters, digits, dots, colons, dashes and underscores"

_OPTION = re.compile(r"[\w.-]{1,100}")
_TASK = re.compile(r"[\w.:-]{1,200}")


def is_option(text: str) -> bool:
    """Whether a text can be the name of an option, or of a kind of parts."""
    return _OPTION.fullmatch(text) is not None


def is_task(text: str) -> bool:
    """Whether a text can be the name of a task; modules of Python may have letters of all scripts."""
    return _TASK.fullmatch(text) is not None


def is_client_name(text: str) -> bool:
    """Whether a text can be what people call a client; a number would look like that of another client."""
    return is_text(text) and len(text) <= 60 and text.strip() == text and not text.isdecimal()


def is_text(text: str) -> bool:
    """Whether a text can be a name that others choose: of a tensor, of a package, or the id of a model."""
    return 0 < len(text) <= 255 and visible(text) == text
