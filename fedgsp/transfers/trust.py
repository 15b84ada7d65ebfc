"""How far the first bytes that a link carries are trusted to show what it will carry."""

#: A window may grow to so many times what the link has carried since it became busy. Many links let some bytes pass at
#: once, as fast as they come, and then brake. The first bytes over such a link do not show how fast it is. The second
#: number holds for links that were seen to brake, until they carry as much without being late.
TRUST, LITTLE_TRUST = 2.0, 0.5


class Trust:
    """What one link has carried since it became busy, and whether it has braked."""

    def __init__(self) -> None:
        self._carried = 0
        #: After how few bytes the link was seen to brake; 0 if it was not.
        self._braked_after = 0
        #: Whether the link has been late since it became busy.
        self._was_late = False

    def begin(self) -> None:
        """The link is busy again after a pause: what it lets pass at once is there again."""
        if self._carried > self._braked_after and not self._was_late:
            self._braked_after = 0  # one of the ends was busy, or frozen for a moment
        self._carried, self._was_late = 0, False

    def forget(self) -> None:
        """Nothing is known of the link any more."""
        self._braked_after = 0

    def carried(self, size: int) -> None:
        """The link has carried so many bytes."""
        self._carried += size

    def late(self, braked: bool) -> None:
        """Bytes were late: they waited in a queue. `braked`: for so long that the link must have become slower."""
        self._was_late = True
        if braked:
            self._braked_after = min(self._braked_after or self._carried, self._carried)

    @property
    def most(self) -> int:
        """The size to which the window of the link may grow, in bytes."""
        return int((LITTLE_TRUST if self._braked_after else TRUST) * self._carried)
