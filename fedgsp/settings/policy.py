"""The policy of a node: what it does at most, whatever a top server orders. Each key is described once, here."""

import ipaddress
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import ClassVar, Self

from fedgsp.settings.fields import described, setting
from fedgsp.tensors.updates import SKETCH_BYTES

#: The value of `--policy` that stands for `UNLIMITED`.
NO_POLICY = "none"
WORK = ("train", "retain", "evaluate", "evaluate-training", "compare", "describe", "discriminate", "initialise")
#: Work that a site allows explicitly: chosen networks that are judged tell the values of single samples.
ON_REQUEST = ("discriminate",)
ANY_HOST = "any"
PANELS = WHAT, HOW, MEMORY, DIALLING, WHOM = (
    "What clients do and reveal",
    "How they train",
    "Memory and load",
    "Connections",
    "Whom the node serves",
)
_LARGEST, _MANY = 10**18, 1e9


class Entries(tuple[str, ...]):
    """A list of texts. As one text it is written with commas; in TOML it may also be a list."""

    pattern: ClassVar[re.Pattern[str]] = re.compile(r"[!-+\--~]+")  # ASCII without space and comma

    @classmethod
    def fits(cls, entry: str) -> bool:
        """Whether a text can be an entry."""
        return cls.pattern.fullmatch(entry) is not None

    @classmethod
    def parse(cls, text: str) -> Self:
        """The entries of a text; raises ValueError if one of them does not fit."""
        entries = cls(entry.strip() for entry in text.split(",") if entry.strip())
        if not all(map(cls.fits, entries)):
            raise ValueError(text)
        return entries

    def covers(self, entry: str) -> bool:
        """Whether these entries allow this text, or all that it allows as an entry."""
        return any(fnmatchcase(entry, pattern) for pattern in self)


class Works(Entries):
    """Kinds of work."""

    pattern = re.compile("|".join(WORK))


class Views(Entries):
    """Views of an update."""

    pattern = re.compile(rf"exact|layer|layer:[^\s,]+|sketch:(?:{'|'.join(SKETCH_BYTES)})")

    def covers(self, entry: str) -> bool:
        """The same; a sketch is covered by a larger one, a layer by `layer`, and everything by `exact`."""
        kind, _, size = entry.partition(":")
        sketches = [sketch_bytes(view.removeprefix("sketch:")) for view in self if view.startswith("sketch:")]
        smaller = kind == "sketch" and sketch_bytes(size) <= max(sketches, default=0)
        return "exact" in self or entry in self or kind in self or smaller


def sketch_bytes(text: str) -> float:
    """The size of a sketch; infinite if the text, which may be of a peer, is no size."""
    return int(text) if text.isdecimal() and len(text) < 20 else math.inf


class Steps(Entries):
    """Outgoing steps, each also with one option: STEP, or STEP.KEY=VALUE."""

    pattern = re.compile(r"[\w-]+(?:\.[\w-]+=[!-+\--~]+)?", re.ASCII)


class Ports(Entries):
    """Ports and ranges of ports."""

    pattern = re.compile(r"[0-9]{1,5}(?:-[0-9]{1,5})?")

    def covers(self, entry: str) -> bool:
        """The same; a range covers what is within it."""
        first, last = self._range(entry)
        return any(low <= first and last <= high for low, high in map(self._range, self))

    @staticmethod
    def _range(text: str) -> tuple[int, int]:
        first, _, last = text.partition("-")
        return int(first), int(last or first)


class Digests(Entries):
    """SHA-256 digests in hexadecimal."""

    pattern = re.compile(r"[0-9a-f]{64}")


class Hosts(Entries):
    """Addresses, networks, and names with `*`."""

    # Digits at the end of a name would be an address that is written wrongly, such as 10.0.0.1/8.
    pattern = re.compile(r"[A-Za-z0-9_.*-]*[A-Za-z*][A-Za-z0-9_-]*\.?")

    @classmethod
    def fits(cls, entry: str) -> bool:
        """Whether a text is a network, or a pattern of names."""
        try:
            ipaddress.ip_network(entry)
        except ValueError:
            return super().fits(entry)
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What a node does at most. `widest` is the value of a key under which it forbids nothing."""

    work: Works = setting(
        Works(kind for kind in WORK if kind not in ON_REQUEST),
        "kinds of work that clients do; `retain` keeps a client's own model on the node, `evaluate-training` tells"
        " figures about training data, `compare` tells distances between models, `describe` class histograms,"
        " `discriminate` how far apart the clients' data are",
        wanted=f"some of {', '.join(WORK)}",
        widest=Works(WORK),
        panel=WHAT,
    )
    reveal: Views = setting(
        Views(("sketch:16384",)),
        "views of updates that clients reveal: `exact` (all views), `layer:NAME`, `layer` (any layer), `sketch:BYTES`"
        " (sketches of at most this size, with fewer signs than the update has numbers)",
        wanted="exact, layer, layer:NAME or sketch:BYTES, where BYTES is a power of two from 8 to 131072",
        widest=Views(("exact",)),
        panel=WHAT,
    )
    require: Steps = setting(
        Steps(),
        "outgoing steps that a trained model must pass directly one after another, also with an option as"
        " STEP.KEY=VALUE",
        wanted="STEP or STEP.KEY=VALUE",
        widest=Steps(),
        only_in_file=True,  # an entry more allows less
        panel=WHAT,
    )
    outgoing: Entries = setting(
        Entries("*"), "outgoing steps that may be ordered; `*` stands for any text", widest=Entries("*"), panel=WHAT
    )
    training: Entries = setting(
        Entries("*"), "local trainings that may be ordered, such as `sgd`", widest=Entries("*"), panel=WHAT
    )
    optimizer: Entries = setting(
        Entries("*"), "optimisers that may be ordered, such as `adam`", widest=Entries("*"), panel=WHAT
    )
    optimizer_state: Entries = setting(
        Entries("*"),
        "where optimisers may begin: `fresh`, `kept` (their state stays on this node), `relayed` (it travels with the"
        " model)",
        widest=Entries("*"),
        panel=WHAT,
    )
    least_samples: int = setting(
        10,
        "training samples that a client must have before the node tells its class histogram, updates, distances,"
        " discriminators, or figures on its training data",
        least=0,
        widest=0,
        panel=WHAT,
    )

    most_epochs: int = setting(
        1000,
        "epochs of one training, also of one before an evaluation or of networks that tell clients apart; steps are"
        " converted to epochs",
        least=1,
        most=_LARGEST,
        widest=_LARGEST,
        panel=HOW,
    )
    least_batch_size: int = setting(
        2,
        "samples of a full batch, and of a short last one that would stand alone by its settings; a step on one sample"
        " reveals most of it",
        least=0,
        widest=0,
        panel=HOW,
    )
    least_learning_rate: float = setting(0.0, "smallest of all step sizes", least=0, widest=0.0, panel=HOW)
    most_learning_rate: float = setting(10.0, "largest of all step sizes", above=0, widest=_MANY, panel=HOW)
    most_trainings_per_round: int = setting(
        16, "trainings of one client in one round", least=1, most=_LARGEST, widest=_LARGEST, panel=HOW
    )
    most_trainings: int = setting(
        10_000, "trainings of one client while the node runs", least=1, most=_LARGEST, widest=_LARGEST, panel=HOW
    )
    most_total_epochs: int = setting(
        1_000_000,
        "epochs of all that one client trains while the node runs",
        least=1,
        most=_LARGEST,
        widest=_LARGEST,
        panel=HOW,
    )
    most_evaluations_per_round: int = setting(
        64, "evaluations of models for one client in one round", least=1, most=_LARGEST, widest=_LARGEST, panel=HOW
    )
    most_evaluations: int = setting(
        20_000,
        "evaluations of models for one client while the node runs",
        least=1,
        most=_LARGEST,
        widest=_LARGEST,
        panel=HOW,
    )
    most_orders_per_round: int = setting(
        20_000, "orders of any kind for one client in one round", least=1, most=_LARGEST, widest=_LARGEST, panel=HOW
    )
    most_seconds: float = setting(
        3600.0,
        "duration of one piece of work, in seconds; longer work is stopped after the running batch",
        above=0,
        widest=_MANY,
        panel=HOW,
    )

    most_model_bytes: int = setting(
        1 << 30, "bytes of one model, or of one set of networks", least=1, most=_LARGEST, widest=_LARGEST, panel=MEMORY
    )
    most_held_bytes: int = setting(
        4 << 30, "bytes of all models that the node holds", least=1, most=_LARGEST, widest=_LARGEST, panel=MEMORY
    )
    most_held_models: int = setting(
        32,
        "models that the node holds, for each of its clients",
        least=1,
        most=_LARGEST,
        widest=_LARGEST,
        panel=MEMORY,
    )
    most_open_orders: int = setting(
        64, "orders in work, for each client of the node", least=1, most=_LARGEST, widest=_LARGEST, panel=MEMORY
    )
    most_managers: int = setting(
        256, "group managers that the node is attached to", least=1, most=_LARGEST, widest=_LARGEST, panel=MEMORY
    )

    hosts: Hosts = setting(
        Hosts(),
        "hosts that the node dials beside that of its top server: addresses, networks such as 10.8.0.0/16, names with"
        " `*` such as `*.example.org`; `any` is every host",
        wanted="addresses, networks, names, or any",
        widest=Hosts((ANY_HOST,)),
        panel=DIALLING,
    )
    ports: Ports = setting(
        Ports(("1024-65535",)),
        "ports that the node dials, beside that of `--top-server`",
        wanted="ports and ranges, such as 7000,7100-7199",
        widest=Ports(("0-65535",)),
        panel=DIALLING,
    )

    top_servers: Entries = setting(
        Entries("*"), "values of `--top-server` that the node accepts", widest=Entries("*"), panel=WHOM
    )
    runs: Entries = setting(Entries("*"), "ids of runs that the node joins", widest=Entries("*"), panel=WHOM)
    task_sha256: Digests = setting(
        Digests(),
        "SHA-256 of the task's source file: the node starts with no other; empty: with any",
        wanted="digests of 64 hexadecimal digits, in lower case",
        widest=Digests(),
        only_in_file=True,
        panel=WHOM,
    )


#: The policy that forbids nothing, for nodes that are started by their own top server.
UNLIMITED = Policy(**{name: one.metadata["widest"] for name, one in described(Policy).items()})


def written(policy: Policy) -> Mapping[str, str]:
    """The value of each key, as it is written after `--allow KEY=`."""
    values = {name: getattr(policy, name) for name in described(Policy)}
    return {name: ",".join(value) if isinstance(value, tuple) else f"{value:.15g}" for name, value in values.items()}
