"""Whether models travel coded over a link: pure functions of what is known about link, model and coding."""

from dataclasses import dataclass

#: The values of the setting --wire.
AUTO, RAW, CODED = WIRES = ("auto", "raw", "coded")
#: A coded model has at most this share of its bytes, in the estimate of a transfer. Codes against a base are shorter.
EXPECTED_SHARE = 0.8
#: A link has to be so many times slower than the coding: the other end decodes, and both have other work.
MARGIN = 3


@dataclass(slots=True)
class Seen:
    """How fast the last large models travelled over a link, in bytes of weights per second; 0: none was seen."""

    plain: float = 0.0
    coded: float = 0.0
    #: Whether the last coded model had to wait for the link. If it had not, the coding took the time.
    waited: bool = False


def may_be_coded(wire: str, near: bool, rate: float, speed: float, seen: Seen) -> bool:
    """Whether models that travel over a link are kept as bases, because later ones may be coded.

    `near`: both ends are on one machine. `rate`: bytes per second that the link carries, 0 if that is not known.
    `speed`: bytes that this process codes per second of processor time.
    """
    return wire == CODED or (wire == AUTO and not near and MARGIN * rate < speed and not 0 < seen.coded < seen.plain)


def is_coded(
    wire: str, near: bool, size: int, window: int, rate: float, round_trip_s: float, speed: float, seen: Seen
) -> bool:
    """Whether a model that would travel in `size` bytes is offered in code; other arguments as for `may_be_coded`.

    The offer costs a round trip. A model that fits into the `window` of an unknown link is not offered in code. If a
    coded model did not wait for the link, the next one travels as it is, and then what was faster.
    """
    if wire == CODED:
        return True
    if not may_be_coded(wire, near, rate, speed, seen):
        return False
    if seen.coded and (seen.plain or not seen.waited):
        return seen.coded >= seen.plain > 0
    if not rate:
        return size > window
    coded_s = round_trip_s + max(MARGIN * size / speed, EXPECTED_SHARE * size / rate)
    return coded_s < size / rate
