"""What the lines of an audit log say, as far as they were verified."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from fedgsp.security.chained import BrokenError


@dataclass(slots=True)
class Call:
    """The order of one call of a group manager."""

    run: str
    round: int
    group: int
    chained: bool
    #: Whether all members of its program have to make a model. None: the program is of another package.
    makes: bool | None
    nodes: Mapping[int, str]
    start: tuple[str, str] | None
    #: Client -> id and digest of its own start, in place of that of the group.
    own: Mapping[int, list[str]] = field(default_factory=dict)
    seen: set[tuple[str, int, int]] = field(default_factory=set)

    @property
    def place(self) -> tuple[str, int, int]:
        """Run, round and group of this call. If a manager is lost, a later call for the group continues the relay."""
        return self.run, self.round, self.group


@dataclass(slots=True)
class Findings:
    """What the lines said so far."""

    run: str = ""
    #: The certificate of the top server, in PEM; None without TLS.
    certificate: bytes | None = None
    lines: int = 0
    #: Round that was sealed -> the number of the line of its first seal, in the order of the log.
    seals: dict[int, int] = field(default_factory=dict)
    #: Number of the last line that a seal covers.
    sealed: int = 0
    #: The largest serial number of an order.
    serial: int = 0
    #: What the last line tells.
    last: str = ""
    finished: bool = False
    #: Whether a seal came after the end of the run. A top server that comes later to extend it may be killed.
    ended: bool = False
    #: The SHA-256 that config.toml has now. Two if the top server was about to write it, none if nobody knows.
    settings: list[str] = field(default_factory=list)
    #: The first line with a certificate of another CA, unless the own key has signed it since.
    foreign: BrokenError | None = None
    #: Models that were made, by node; and those of them whose receipt holds.
    made: Counter[str] = field(default_factory=Counter)
    receipts: int = 0
    #: (node, signer) -> the results that somebody else signed for the node: the top server, for its local nodes.
    signed_for: Counter[tuple[str, str]] = field(default_factory=Counter)
    #: The first line after which a node has two identities: that of its certificate, and that of the top server.
    mixed: BrokenError | None = None
    #: Results without a start, such as those that were published before and handed out again.
    without_start: int = 0
    whats: Counter[str] = field(default_factory=Counter)
    #: Who -> the fingerprints of the certificates.
    shown: dict[str, set[str]] = field(default_factory=dict)
    #: Whether the log does not have the begin of the run.
    resumed: bool = False
    #: Whether the last line was cut off in the middle.
    torn: bool = False

    @property
    def rounds(self) -> int:
        """The last round that was sealed."""
        return max(self.seals, default=0)

    def unsealed(self, rounds: Iterable[int]) -> list[int]:
        """Those of the rounds of the history that no line seals."""
        return sorted(set(rounds) - self.seals.keys())

    @property
    def whole(self) -> bool:
        """Whether the log has the end of the run, and the seal after it."""
        return self.finished and self.last == "sealed"


def whole(value: object) -> int:
    """A number that JSON can have as text of any kind, such as 1e999 or true, but that has to be a whole number.

    Raises ValueError if it is none.
    """
    if type(value) is not int or not 0 <= value < 1 << 64:
        raise ValueError(f"{str(value)[:60]} is not a whole number")
    return value
