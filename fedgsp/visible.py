"""Text from others as it may be shown: what a terminal would obey, or nobody would see, becomes an escape."""

import re

#: Characters that `str.isprintable` accepts, although most fonts show nothing for them: a combining joiner, fillers of
#: Hangul, vowels of Khmer, variation selectors of Mongolian and of all scripts, and the empty pattern of Braille.
_BLANK = "\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef"
_UNSEEN = re.compile(f"[{_BLANK}]")
#: So many marks may stand above or below one letter; with more of them a text would cover the lines around it.
MOST_MARKS = 4
#: Blocks of marks that belong to no script, and that can be put on any letter.
_MARKS = re.compile(
    f"[\u0300-\u034e\u0350-\u036f\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f]{{{MOST_MARKS + 1},}}"
)


def visible(text: str) -> str:
    r"""The text in one line that hides nothing: a line break becomes \n, the start of a terminal's command \x1b.

    Escaped are control characters, separators other than the space, characters that turn the direction of writing, all
    other characters of format, half of a surrogate pair, characters without a meaning, blank letters, and piles of
    marks. All other text stays as it is.
    """
    if not text.isprintable():
        text = "".join([one if one.isprintable() else _escape(one) for one in text])
    if text.isascii():
        return text
    return _MARKS.sub(_escape_all, _UNSEEN.sub(_escape_all, text))


def visible_lines(text: str) -> str:
    """As `visible`, but line breaks stay: for a text whose lines are our own."""
    return "\n".join(map(visible, text.split("\n")))


def _escape(character: str) -> str:
    return character.encode("unicode_escape", "surrogatepass").decode()


def _escape_all(found: re.Match[str]) -> str:
    return "".join(map(_escape, found[0]))
