"""The order of definitions in a module."""

from __future__ import annotations

from collections.abc import Mapping


def ordered(uses: Mapping[str, Mapping[str, bool]]) -> list[str]:
    """Names so that each stands behind those that its definition needs.

    `uses`: name -> the names that its definition uses -> whether it needs them when it is executed. The others stand
    before it, too, since a function in the definition may be called at once; only of definitions that use each other,
    they stand behind it, as soon as they can.
    """
    known = {name: [used for used in used_ones if used in uses] for name, used_ones in uses.items()}
    before = {
        name: [used for used in found if uses[name][used] or name not in _reached(used, known)]
        for name, found in known.items()
    }
    placed: dict[str, None] = {}
    placing: set[str] = set()

    def place(name: str) -> None:
        if name in placed or name in placing:
            return
        placing.add(name)
        for used in before[name]:
            place(used)
        placing.discard(name)
        placed[name] = None
        for used in [used for one in placed for used in known[one]]:
            if used not in placed and not placing & {used, *_reached(used, before)}:
                place(used)

    for name in uses:
        place(name)
    return list(placed)


def _reached(name: str, following: Mapping[str, list[str]]) -> set[str]:
    """The names to which a way leads from a name."""
    found: set[str] = set()
    waiting = [name]
    while waiting:
        new = {*following[waiting.pop()]} - found
        found |= new
        waiting += new
    return found
