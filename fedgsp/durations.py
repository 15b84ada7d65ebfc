"""Durations as people write them: 90s, 30m, 24h, 7d."""

import re

from fedgsp.errors import ConfigError

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_DURATION = re.compile(r"([0-9]{1,9})([smhd])", re.ASCII)


def seconds_in(flag: str, text: str, most_s: int, least_s: int = 1, why: str = "") -> int:
    """The seconds of a duration; raises ConfigError that names the flag, and says why it is not shorter."""
    found = _DURATION.fullmatch(text)
    seconds = int(found[1]) * _UNITS[found[2]] if found else 0
    if 0 < seconds < least_s:
        raise ConfigError(f"{flag} {text} is too short: {why}", f"give at least {least_s // _UNITS['m']}m")
    if not 0 < seconds <= most_s:
        most = f"{most_s // _UNITS['d']}d"
        raise ConfigError(f"{flag} is {text[:40]!r}", f"write a duration of at most {most}: 90s, 30m, 24h, 7d")
    return seconds
