"""Whether models travel coded over a link: pure functions of what is known about link, model and coding."""

#: The values of the setting --wire.
AUTO, RAW, CODED = WIRES = ("auto", "raw", "coded")
#: A coded model has at most this share of its bytes, in the estimate of a transfer. Codes against a base are shorter.
EXPECTED_SHARE = 0.8
#: A link has to be so many times slower than the coding: the other end decodes, and both have other work.
MARGIN = 3


def may_be_coded(wire: str, near: bool, rate: float, speed: float) -> bool:
    """Whether models that travel over a link are kept as bases, because later ones may be coded.

    `near`: both ends are on one machine. `rate`: bytes per second that the link carries, 0 if that is not known.
    `speed`: bytes that this process codes per second of processor time.
    """
    return wire == CODED or (wire == AUTO and not near and MARGIN * rate < speed)


def is_coded(wire: str, near: bool, size: int, window: int, rate: float, round_trip_s: float, speed: float) -> bool:
    """Whether a model that would travel in `size` bytes is offered in code; other arguments as for `may_be_coded`.

    The offer costs a round trip. A model that fits into the `window` of an unknown link is not offered in code.
    """
    if wire == CODED:
        return True
    if not may_be_coded(wire, near, rate, speed):
        return False
    if not rate:
        return size > window
    coded_s = round_trip_s + max(MARGIN * size / speed, EXPECTED_SHARE * size / rate)
    return coded_s < size / rate
