"""The settings of a run: one list, from which the flags, the settings file and their checks are derived."""
# ruff: noqa: RUF009 (`_setting` makes a dataclass field)

from __future__ import annotations

import dataclasses
import math
import re
import tomllib
import types
import typing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w

from fedgsp.aggregations import AGGREGATIONS
from fedgsp.errors import ConfigError
from fedgsp.liveness import LEAST_LOST_AFTER_S, LOST_AFTER_S, MOST_LOST_AFTER_S
from fedgsp.local_training import TRAININGS
from fedgsp.options import suggestion
from fedgsp.tls import TlsFiles, tls_files
from fedgsp.windows import HAND_OVERS
from top_server.grouping import GROUPINGS
from top_server.grouping.growth import GROWTHS
from top_server.merging import MERGES
from top_server.schemes import SCHEMES

if typing.TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

#: A grouping that another process answers: grpc://host:port.
GROUPING_SERVICE = "grpc://"

METHOD, TRAINING, TASK, PROCESSES, RECORD = "Method", "Training", "Task", "Processes", "Record"


def _setting(default: Any, panel: str, help: str, **rules: Any) -> Any:
    """A field; rules: choices (names), above, least, most, metavar, options_of (whose options)."""
    metadata = {"panel": panel, "help": help, **rules}
    if isinstance(default, dict):
        return dataclasses.field(default_factory=dict, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


@dataclass(frozen=True, slots=True)
class RunConfig:
    """Every setting of a run; None leaves the choice to the scheme, or says that there is no limit."""

    scheme: str = _setting("fedgsp", METHOD, "the algorithm; sets the defaults of the choices below", choices=SCHEMES)
    growth: str | None = _setting(None, METHOD, "how the number of groups grows from round to round", choices=GROWTHS)
    alpha: float = _setting(2.0, METHOD, "how fast the number of groups grows", above=0)
    beta: int = _setting(10, METHOD, "number of groups in the first round, and the step by which it grows", least=1)
    sampling_rate: float = _setting(
        0.3,
        METHOD,
        "share of the groups (fedavg: of the clients) that train in each round, where the scheme samples",
        above=0,
        most=1,
    )
    grouping: str | None = _setting(
        None, METHOD, "who trains with whom; or ask a service: grpc://host:port", choices=GROUPINGS
    )
    grouping_option: dict[str, str] = _setting(
        {}, METHOD, "an option of the grouping, evidence, merge or aggregation; repeatable", options_of="grouping"
    )
    program: str | None = _setting(
        None, METHOD, "how the clients of a group train: in turn, or at once", choices=("relay", "parallel")
    )
    training: str | None = _setting(None, METHOD, "how a client trains on its data", choices=TRAININGS)
    training_option: dict[str, str] = _setting(
        {}, METHOD, "an option of the training; repeatable", options_of="training"
    )
    aggregation: str | None = _setting(
        None, METHOD, "how models trained in parallel are combined", choices=AGGREGATIONS
    )
    merge: str | None = _setting(
        None, METHOD, "how the groups' results are combined: one model, or one per group or cluster", choices=MERGES
    )
    after_arrivals: str | None = _setting(
        None,
        METHOD,
        "who keeps training once clients have joined late: everybody, or only the coalitions that they joined",
        choices=("all", "joined"),
    )
    seed: int = _setting(0, METHOD, "seed of all randomness", least=0, most=2**63 - 1)

    rounds: int = _setting(20, TRAINING, "number of rounds", least=1)
    local_epochs: int = _setting(1, TRAINING, "passes over a client's data each time it trains", least=1, most=2**31)
    batch_size: int = _setting(5, TRAINING, "samples per step", least=1, most=2**31)
    learning_rate: float = _setting(0.01, TRAINING, "step size", above=0)
    learning_rate_decay: float = _setting(
        1.0, TRAINING, "factor that the learning rate is multiplied by after each round", above=0, most=1
    )
    evaluate_every: int = _setting(1, TRAINING, "evaluate every so many rounds, and always after the last", least=1)

    task: str = _setting("digits", TASK, "a built-in task, or your own as module:factory")
    task_option: dict[str, str] = _setting({}, TASK, "an option of the task; repeatable", options_of="task")

    listen: str = _setting("127.0.0.1:7000", PROCESSES, "where nodes join; port 0: any free one", metavar="HOST:PORT")
    min_nodes: int = _setting(1, PROCESSES, "nodes to wait for before the first round", least=1)
    min_clients: int | None = _setting(None, PROCESSES, "clients to wait for before the first round", least=1)
    join_timeout: float = _setting(
        120.0,
        PROCESSES,
        "how long to wait for those nodes and clients, or for one to come back when all are lost",
        above=0,
        metavar="SECONDS",
    )
    lost_after: float = _setting(
        LOST_AFTER_S,
        PROCESSES,
        "treat a peer as lost (dead, frozen or cut off) after this long without a sign of life",
        least=LEAST_LOST_AFTER_S,
        most=MOST_LOST_AFTER_S,
        metavar="SECONDS",
    )
    stall_timeout: float = _setting(
        60.0, PROCESSES, "skip a client that makes no progress for this long", above=0, metavar="SECONDS"
    )
    update_norm_limit: float | None = _setting(
        None,
        PROCESSES,
        "skip a client whose update is more than FACTOR times as long as the median; no limit by default",
        above=1,
        metavar="FACTOR",
    )
    relay: str = _setting(
        "auto",
        PROCESSES,
        "how weights travel: straight from node to node where possible, always so, or always through the managers",
        choices=("auto", "direct", "manager"),
    )
    hand_over: str = _setting(
        "auto",
        PROCESSES,
        "how models pass between processes of one machine: by shared memory (auto), or always over the network",
        choices=HAND_OVERS,
    )
    wire_dtype: str = _setting(
        "exact",
        PROCESSES,
        "bfloat16: models are rounded to it as they are made, and their float32 values travel in half the bytes",
        choices=("exact", "bfloat16"),
    )
    manager_ports: str | None = _setting(
        None, PROCESSES, "ports that group managers may use; any by default", metavar="FIRST-LAST"
    )
    tls_ca: Path | None = _setting(
        None,
        PROCESSES,
        "PEM file of the CA that issued all peers' certificates; without it nothing is encrypted",
        metavar="FILE",
    )
    tls_cert: Path | None = _setting(
        None, PROCESSES, "PEM file of the certificate that this process shows to all peers", metavar="FILE"
    )
    tls_key: Path | None = _setting(None, PROCESSES, "PEM file of the private key of --tls-cert", metavar="FILE")
    local_nodes: int = _setting(0, PROCESSES, "nodes to start on this machine", least=0)
    clients: int | None = _setting(None, PROCESSES, "clients that the local nodes host together: 0 to N - 1", least=1)
    threads: int = _setting(
        1, PROCESSES, "threads per local node; the bits of the models depend on it", least=1, most=1024
    )

    run_dir: Path | None = _setting(
        None, RECORD, "where the run is recorded; runs/TIME-SCHEME by default", metavar="DIRECTORY"
    )
    local_run: Path | None = _setting(
        None,
        RECORD,
        "compare each client with a baseline where every client trains alone, kept in DIRECTORY; run first if missing",
        metavar="DIRECTORY",
    )
    keep_models: str = _setting(
        "last", RECORD, "which checkpoints to keep: those of the last round, or all", choices=("last", "all")
    )

    def learning_rate_in(self, round_number: int) -> float:
        """Step size of a round, which counts from 1 (HCCT, section 3.3); before the first one that of the first."""
        return self.learning_rate * self.learning_rate_decay ** max(0, round_number - 1)

    @property
    def nodes_to_wait_for(self) -> int:
        """Nodes that must have joined before the first round: all local ones are meant to take part."""
        return max(self.min_nodes, self.local_nodes)

    @property
    def clients_to_wait_for(self) -> int:
        """Clients that must be hosted before the first round."""
        return max(self.min_clients or 1, self.clients or 1)

    @property
    def manager_port_range(self) -> range | None:
        """The ports that group managers may take, or None for any; ConfigError if they are not FIRST-LAST."""
        if self.manager_ports is None:
            return None
        found = re.fullmatch(r"([0-9]{1,5})-([0-9]{1,5})", self.manager_ports)
        first, last = (int(found[1]), int(found[2])) if found else (1, 0)
        if not 1 <= first <= last <= 65535:
            raise ConfigError(
                f"--manager-ports is {self.manager_ports!r}", "write FIRST-LAST, for example 7100-7199, up to 65535"
            )
        return range(first, last + 1)

    @property
    def tls_files(self) -> TlsFiles | None:
        """The files of mutual TLS, or None for plain connections; ConfigError if only some are given."""
        return tls_files(self.tls_ca, self.tls_cert, self.tls_key)

    @property
    def peer_flags(self) -> list[str]:
        """How processes that a run starts are told to deal with their peers."""
        told = ["--lost-after", str(self.lost_after), "--hand-over", self.hand_over]
        return told + (self.tls_files.flags if self.tls_files else [])


FIELDS: Mapping[str, dataclasses.Field[Any]] = {field.name: field for field in dataclasses.fields(RunConfig)}
TYPES: Mapping[str, Any] = typing.get_type_hints(RunConfig)


#: Settings that a run may have otherwise once it is resumed: nothing that comes of it hangs by them.
MAY_CHANGE = ("manager_ports",)


def flag(name: str) -> str:
    """The flag of a setting."""
    return f"--{name.replace('_', '-')}"


def choices(name: str) -> tuple[str, ...]:
    """The names that a setting may take; empty if it takes others than names."""
    return tuple(FIELDS[name].metadata.get("choices", ()))


def check(config: RunConfig) -> None:
    """Raise ConfigError for the first setting that cannot be used; the only place where values are judged."""
    for name in FIELDS:
        value = getattr(config, name)
        if isinstance(value, int | float):
            _check_number(name, value)
        elif value is not None and choices(name) and not (name == "grouping" and value.startswith(GROUPING_SERVICE)):
            check_name(flag(name), value, choices(name))
    if not config.task:
        raise ConfigError("--task is empty", "name a built-in task, or give module:factory")
    from fedgsp.channels import check_address  # brings in gRPC, which --help does not need

    check_address("--listen", config.listen)
    if config.grouping and config.grouping.startswith(GROUPING_SERVICE):
        check_address("--grouping", config.grouping.removeprefix(GROUPING_SERVICE))
    _ = config.manager_port_range, config.tls_files
    _check_local_nodes(config)


def check_name(flag: str, value: str, known: Iterable[str]) -> None:
    """Raise ConfigError unless `value` is one of the known names; suggests the closest."""
    names = tuple(known)
    if value not in names:
        raise ConfigError(f"{flag} cannot be {value!r}", suggestion(value, names))


def _check_number(name: str, value: float) -> None:
    rules = FIELDS[name].metadata
    above, least, most = rules.get("above", -math.inf), rules.get("least", -math.inf), rules.get("most", math.inf)
    if math.isfinite(value) and value > above and least <= value <= most:
        return
    wanted = [f"above {above}"] if "above" in rules else []
    wanted += [f"of at least {least}"] if "least" in rules else []
    wanted += [f"of at most {most}"] if "most" in rules else []
    raise ConfigError(f"{flag(name)} is {value}", f"give a number {' and '.join(wanted)}")


def _check_local_nodes(config: RunConfig) -> None:
    if not config.local_nodes:
        if config.clients is not None:
            raise ConfigError("--clients says what local nodes host, and there are none", "give --local-nodes too")
        return
    if config.clients is None and config.local_nodes > 1:
        raise ConfigError(
            f"--local-nodes {config.local_nodes} cannot share out the clients of the task",
            "give --clients, their number",
        )
    if config.clients is not None and config.clients < config.local_nodes:
        raise ConfigError(
            f"--local-nodes {config.local_nodes} is more than --clients {config.clients}",
            "every node hosts a client",
        )


def load(path: Path) -> RunConfig:
    """The settings of a file, of the right types but not yet checked; ConfigError names the file and the key."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"--config {path}: there is no such file", "check the path") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--config {path} cannot be read: {error}", "give a TOML file in UTF-8") from None
    return parse(text, path)


def parse(text: str, path: Path) -> RunConfig:
    """The same of what a file says, or is going to say."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"--config {path} is not TOML: {error}", "mend that place") from None
    return RunConfig(**{key: _typed(path, key, value) for key, value in document.items()})


def dump(config: RunConfig) -> str:
    """The settings as TOML, without those that are None: `load` gives back an equal configuration."""
    plain = {name: getattr(config, name) for name in FIELDS if getattr(config, name) is not None}
    return tomli_w.dumps({name: str(value) if isinstance(value, Path) else value for name, value in plain.items()})


def _typed(path: Path, key: str, value: Any) -> Any:
    if key not in FIELDS:
        raise ConfigError(f"--config {path}: there is no setting {key!r}", suggestion(key, FIELDS))
    wanted = _plain_type(key)
    if wanted is float and type(value) is int:
        return float(value)
    if wanted is Path and isinstance(value, str):
        return Path(value)
    if wanted is dict and isinstance(value, dict) and all(isinstance(v, str | int | float) for v in value.values()):
        # TOML knows numbers and booleans, options are text: what the same option would be as a flag
        return {name: str(v).lower() if isinstance(v, bool) else str(v) for name, v in value.items()}
    if type(value) is not wanted or wanted is dict:
        raise ConfigError(f"--config {path}: {key} is {value!r}", f"give {_PLAIN_NAMES[wanted]}")
    return value


_PLAIN_NAMES: Mapping[type, str] = {
    int: "a whole number",
    float: "a number",
    str: 'text, in "quotes"',
    Path: 'a path, in "quotes"',
    dict: "a table of options, each text or a number",
}


def _plain_type(name: str) -> type:
    annotation = TYPES[name]
    if isinstance(annotation, types.UnionType):
        annotation = next(part for part in typing.get_args(annotation) if part is not types.NoneType)
    plain: type = typing.get_origin(annotation) or annotation
    return plain
