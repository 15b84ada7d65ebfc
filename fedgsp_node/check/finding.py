"""What a judge says of one fact: how it is, in words, and what to do."""

from typing import NamedTuple

from fedgsp.report import State


class Finding(NamedTuple):
    """The state of a thing, the words about it, and the remedy if it is not good."""

    state: State
    words: str
    remedy: str = ""


def good(words: str) -> Finding:
    """All is well."""
    return Finding(State.GOOD, words)


def warning(words: str, remedy: str) -> Finding:
    """It works now, and may fail later."""
    return Finding(State.WARNING, words, remedy)


def bad(words: str, remedy: str) -> Finding:
    """It does not work."""
    return Finding(State.BAD, words, remedy)
