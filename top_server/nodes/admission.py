"""Whether a node may join a run: pure checks of its hello against what the run knows."""

import math
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass

from fedgsp import on_nodes
from fedgsp.connections.addresses import is_wildcard, split_address
from fedgsp.errors import ConfigError
from fedgsp.identity import NAME_RULE, is_name
from fedgsp.limits.items import MOST_CLASSES
from fedgsp.messages import (
    MOST_CLIENT,
    MOST_CLIENTS_OF_NODE,
    MOST_SAMPLES,
    PROTOCOL,
    TASK_DIGEST_BYTES,
    Failure,
    FailureCode,
    Hello,
    InstalledPart,
    RelayMode,
    TensorSpec,
)
from fedgsp.names import (
    CLIENT_NAME_RULE,
    MOST_ADDRESS,
    MOST_OPTION,
    OPTION_RULE,
    TASK_RULE,
    TEXT_RULE,
    is_client_name,
    is_option,
    is_task,
    is_text,
)
from fedgsp.options import same
from fedgsp.scoring import ACCURACY, LACKS, SAMPLES, WAYS, metric_of
from fedgsp.tensors.weights import DIGEST_BYTES, MAX_DIMENSIONS, WeightsError, check_same_tensors, require, total_bytes
from fedgsp.visible import visible

#: The most nodes of a run. A node keeps a connection open, which takes about 70 KiB and a file descriptor here.
MOST_NODES = 20_000
#: The most clients of a run. Each round goes through all clients several times, at some microseconds each.
MOST_CLIENTS = 1_000_000
#: Largest number of operations or bytes that a node may tell: larger ones lose digits in JSON of other programs.
MOST_COUNTED = 2**53
#: Most times that a node may join within a minute: each is recorded.
MOST_JOINS = 30


@dataclass(frozen=True, slots=True)
class Known:
    """What a run knows when a node asks to join."""

    task: str
    #: The task options that the run was started with.
    task_options: Mapping[str, str]
    relay: RelayMode
    #: The names of the nodes that are part of the run.
    nodes: Collection[str]
    #: The number of their clients.
    clients: int
    #: Client -> the name of its node; None if no node hosts it.
    host_of: Callable[[int], str | None]
    #: The hello of the first node, to which all others must be alike; None if there was no node.
    standard: Hello | None = None
    #: The tensors that the run adds to a model with these tensors and features.
    adds: Callable[[tuple[TensorSpec, ...], TensorSpec | None], tuple[TensorSpec, ...]] = lambda _model, _features: ()
    #: The digests of the tensors that do not travel, by name; None if no node has told them.
    constants: Mapping[str, bytes] | None = None
    #: The client that has a name; None if no present client has.
    named: Callable[[str], int | None] = lambda _: None
    #: Whether the run is over.
    over: bool = False
    #: Whether it is being stopped, and may be resumed.
    stopped: bool = False
    #: Clients that would belong to the node: those of its earlier joins, and those that it brings now.
    owned: int = 0
    #: How often the node has joined in this minute.
    joins: int = 0
    #: From where the node of the same name is connected: for the newcomer, and for the record.
    taken_from: tuple[str, str] = ("", "")
    #: The parts of other packages that every node must have.
    needed: Collection[InstalledPart] = ()


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a node may not join."""

    #: What the node is told. A refused node is a stranger: it learns what it can mend about itself, and nothing of the
    #: run, such as the names of nodes and tasks or the values of options.
    failure: Failure
    #: What explains it to the user of the top server, for the record alone.
    known: str = ""

    def __str__(self) -> str:
        return visible(f"{self.failure}{f' ({self.known})' if self.known else ''}")


def refusal(hello: Hello, known: Known, made: bool = True) -> Refusal | None:
    """The first reason why a node may not join; None if it may.

    `made`: it has made its constants, and told how many samples it has; a node that is only checked has not.
    """
    late = (_samples, _constants) if made else ()
    checks = (_names, _numbers, _node, _clients, _client_names, _options, _model, *late)
    return next((found for check in checks for found in check(hello, known)), None)


def _names(hello: Hello, known: Known) -> Iterator[Refusal]:
    """Names stand in records, logs and errors; nothing of the hello is quoted before they are checked."""
    found = (
        (is_name(hello.node), f"the name of the node has to be {NAME_RULE}: start it with another --name"),
        (is_task(hello.task), f"the name of its task has to be {TASK_RULE}"),
        (all(map(is_option, hello.task_options)), f"the name of a task option has to be {OPTION_RULE}"),
        (
            all(len(value) <= MOST_OPTION for value in hello.task_options.values()),
            f"a task option has more than {MOST_OPTION} characters",
        ),
        (
            all(not value or is_text(value) for value in hello.task_options.values()),
            f"the value of a task option has to be {TEXT_RULE}, or empty: update FedGSP on its machine",
        ),
        (
            all(is_option(part.kind) and is_text(part.name) and is_text(part.package) for part in hello.parts),
            f"the name of an installed part has to be {TEXT_RULE}",
        ),
        (
            all(is_text(spec.name) for spec in _specs(hello) if spec is not hello.features),
            f"the name of a tensor has to be {TEXT_RULE}",
        ),
        (
            all(is_text(spec.dtype) for spec in _specs(hello)),
            f"the dtype of a tensor, or of its features, has to be {TEXT_RULE}",
        ),
        (
            all(not text or is_text(text) for text in (hello.device, hello.torch)),
            f"the name of its device, and its version of torch, have to be {TEXT_RULE}",
        ),
        (
            not hello.score or (is_text(hello.score) and metric_of(hello.score) != ""),
            f"the score of its task has to be {TEXT_RULE}",
        ),
        (
            all(not hosted.name or is_client_name(hosted.name) for hosted in hello.clients),
            f"the name of a client has to be {CLIENT_NAME_RULE}",
        ),
        (
            hello.features is None or is_text(hello.features.name),
            f"the name of the layer with its features has to be {TEXT_RULE}",
        ),
        (all(map(is_text, hello.combine)), f"the name of a metric has to be {TEXT_RULE}"),
        (
            set(hello.combine.values()) <= WAYS.keys(),
            f"its task combines a metric in a way that is none of {', '.join(WAYS)}",
        ),
        (set(hello.lacks) <= LACKS, f"what its task lacks has to be among {', '.join(sorted(LACKS))}"),
        (len(hello.peer_address) <= MOST_ADDRESS, f"its address has more than {MOST_ADDRESS} characters"),
    )
    yield from (Refusal(Failure(FailureCode.WRONG_PROTOCOL, why)) for holds, why in found if not holds)


def _numbers(hello: Hello, known: Known) -> Iterator[Refusal]:
    """Numbers that size arrays, are multiplied, or stand in records that other programs read."""
    told = (
        ("classes of its task", hello.num_classes, MOST_CLASSES),
        ("operations to train on a sample", hello.training_flop, MOST_COUNTED),
        ("bytes of memory of its device", hello.device_memory, MOST_COUNTED),
    )
    for what, number, most in told:
        if number > most:
            detail = f"the number of {what} is {number:,}, and can be {most:,} at most: correct its task"
            yield Refusal(Failure(FailureCode.WRONG_PROTOCOL, detail))


def _node(hello: Hello, known: Known) -> Iterator[Refusal]:
    upgrade = "install the same version of fedgsp"
    digest, own = len(hello.task_digest), max(len(hello.clients), known.owned)
    together = known.clients + len(hello.clients)
    told, recorded = known.taken_from
    lacking = on_nodes.lacking(known.needed, hello.parts)
    refusals = (
        (known.over, FailureCode.RUN_OVER, "the run is over: join the next one"),
        (known.stopped, FailureCode.RUN_STOPPED, "the top server is stopping: wait until the run is resumed"),
        (
            hello.protocol != PROTOCOL,
            FailureCode.WRONG_PROTOCOL,
            f"it speaks protocol {hello.protocol}, this server {PROTOCOL}: {upgrade}",
        ),
        (
            digest not in (0, TASK_DIGEST_BYTES),
            FailureCode.WRONG_PROTOCOL,
            f"the digest of its task has {digest} bytes, not {TASK_DIGEST_BYTES}: {upgrade}",
        ),
        (not hello.clients, FailureCode.NO_CLIENTS, "it hosts no client: give it --clients"),
        (
            hello.node in known.nodes,
            FailureCode.NAME_TAKEN,
            f"a node named {hello.node!r} is already part of the run{told}:"
            " end that process if it is an old one of this node, or give this one another --name",
        ),
        (
            hello.task != known.task,
            FailureCode.WRONG_TASK,
            f"it has task {hello.task!r}, and the run has another: start it with the --task of the run",
        ),
        (
            known.relay is RelayMode.DIRECT and not hello.peer_address,
            FailureCode.CANNOT_BE_DIALLED,
            "the run relays directly, and its peers cannot dial it: start it with --peer-listen",
        ),
        (
            bool(hello.peer_address) and not _can_be_dialled(hello.peer_address),
            FailureCode.CANNOT_BE_DIALLED,
            f"peers cannot dial its address {hello.peer_address!r}: correct its --advertise, or --peer-listen",
        ),
        (bool(lacking), FailureCode.MISSING_PART, lacking),
        (
            len(known.nodes) >= MOST_NODES,
            FailureCode.TOO_MANY,
            f"a run cannot have more than {MOST_NODES:,} nodes: host more clients on each",
        ),
        (
            own > MOST_CLIENTS_OF_NODE,
            FailureCode.TOO_MANY,
            f"it hosts {own:,} clients, a node can have {MOST_CLIENTS_OF_NODE:,} in a run: start more nodes",
        ),
        (
            known.joins >= MOST_JOINS,
            FailureCode.TOO_MANY,
            f"it has joined {known.joins} times within a minute: wait, and find out why it loses its connection",
        ),
        (
            together > MOST_CLIENTS,
            FailureCode.TOO_MANY,
            f"with it the run would have more than {MOST_CLIENTS:,} clients: host fewer",
        ),
    )
    more = {
        FailureCode.NAME_TAKEN: recorded,
        FailureCode.WRONG_TASK: f"the run is for {known.task!r}",
        FailureCode.TOO_MANY: f"{together:,} clients",
    }
    yield from (Refusal(Failure(code, why), more.get(code, "")) for refused, code, why in refusals if refused)


def _clients(hello: Hello, known: Known) -> Iterator[Refusal]:
    own: set[int] = set()
    for hosted in hello.clients:
        client, owner = hosted.client, known.host_of(hosted.client)
        if client in own:
            detail = f"it names client {client} twice: choose other --clients"
            yield Refusal(Failure(FailureCode.CLIENT_TAKEN, detail))
        own.add(client)
        if client > MOST_CLIENT:
            yield Refusal(Failure(FailureCode.WRONG_TASK, f"it names client {client}: ids end at {MOST_CLIENT}"))
        if max(hosted.train_samples, hosted.test_samples, hosted.validation_samples) > MOST_SAMPLES:
            detail = f"client {client} cannot have more than {MOST_SAMPLES} samples: correct its task"
            yield Refusal(Failure(FailureCode.WRONG_TASK, detail))
        if owner is not None:
            detail = f"client {client} is already hosted by another node: choose other --clients"
            yield Refusal(Failure(FailureCode.CLIENT_TAKEN, detail), f"by node {owner!r}")


def _samples(hello: Hello, known: Known) -> Iterator[Refusal]:
    """A client without samples has no weight in a mean, and what it tells later is not compared with 0."""
    for hosted in hello.clients:
        if not hosted.train_samples:
            detail = f"client {hosted.client} has no training samples: leave it out of --clients"
            yield Refusal(Failure(FailureCode.WRONG_TASK, detail))


def _client_names(hello: Hello, known: Known) -> Iterator[Refusal]:
    own = {hosted.client for hosted in hello.clients}
    seen: set[str] = set()
    for hosted in hello.clients:
        holder = known.named(hosted.name) if hosted.name else None
        if hosted.name in seen or (holder is not None and holder not in own):
            detail = f"the name of its client {hosted.client} is that of another client: give it another client_names"
            more = f"client {holder} is called {hosted.name!r}" if holder is not None else ""
            yield Refusal(Failure(FailureCode.CLIENT_TAKEN, detail), more)
        if hosted.name:
            seen.add(hosted.name)


def _options(hello: Hello, known: Known) -> Iterator[Refusal]:
    theirs = [("this run", known.task_options)]
    if known.standard is not None:
        theirs.append((f"node {known.standard.node!r}", known.standard.task_options))
    for whose, options in theirs:
        for key in sorted(hello.task_options.keys() & options.keys()):
            own, other = hello.task_options[key], options[key]
            if not same(own, other):
                detail = f"its task has {key}={own}, and the run has another value"
                remedy = f"give all the same --task-option, or name {key} in the task's local_options"
                more = f"that of {whose} has {key}={other}"
                yield Refusal(Failure(FailureCode.WRONG_TASK, f"{detail}: {remedy}"), more)


def _model(hello: Hello, known: Known) -> Iterator[Refusal]:
    first, remedy = known.standard, "give all nodes the same task options"
    try:
        if first is None:
            if hello.features is not None:
                shape = hello.features.shape
                require(len(shape) == 1, FailureCode.WRONG_SHAPES, f"its features have {len(shape)} dimensions")
                require(shape[0] > 0, FailureCode.WRONG_SHAPES, "it has no features")
                total_bytes((hello.features,))
            total_bytes((*hello.tensors, *known.adds(hello.tensors, hello.features)))
            return
        if hello.num_classes != first.num_classes:
            detail = f"its task has {hello.num_classes} classes, and the run has another number"
            more = f"that of node {first.node!r} has {first.num_classes}"
            yield Refusal(Failure(FailureCode.WRONG_TASK, f"{detail}: {remedy}"), more)
        if hello.features != first.features:
            detail = f"its task names other features than the run has: {remedy}, and the same version of the task"
            yield Refusal(Failure(FailureCode.WRONG_SHAPES, detail), f"as node {first.node!r}")
        if hello.own_optimizer != first.own_optimizer:
            has, other = ("has", "has none") if hello.own_optimizer else ("lacks", "has one")
            detail = f"its task {has} an optimizer(), and that of the run {other}: use the same version of the task"
            yield Refusal(Failure(FailureCode.WRONG_TASK, detail))
        yield from _figures(hello, first)
        check_same_tensors(hello.tensors, first.tensors, f"the model of node {hello.node!r}")
    except WeightsError as error:
        if first is None:
            yield Refusal(Failure(error.failure.code, f"{error.failure.detail}: change the model of its task"))
        else:
            detail = f"its model has other tensors than the run's: {remedy}, and the same version of the task"
            more = f"{error.failure.detail} by node {first.node!r}"
            yield Refusal(Failure(FailureCode.WRONG_SHAPES, detail), more)


def _figures(hello: Hello, first: Hello) -> Iterator[Refusal]:
    """The figures of all clients are compared and combined, so that their tasks must declare the same."""
    same, more = "use the same version of the task", f"that of node {first.node!r} has "
    if hello.score != first.score:
        detail = f"its task has score {hello.score or ACCURACY!r}, and that of the run another: {same}"
        yield Refusal(Failure(FailureCode.WRONG_TASK, detail), f"{more}{first.score or ACCURACY!r}")
    if (ACCURACY in hello.lacks) != (ACCURACY in first.lacks):
        has, other = ("has no", "has one") if ACCURACY in hello.lacks else ("has an", "has none")
        yield Refusal(Failure(FailureCode.WRONG_TASK, f"its task {has} accuracy, and that of the run {other}: {same}"))
    for metric in sorted(hello.combine.keys() | first.combine.keys()):
        own, other = (task.combine.get(metric, SAMPLES) for task in (hello, first))
        if own != other:
            detail = f"its task combines metric {metric!r} by {own!r}, and that of the run otherwise: {same}"
            yield Refusal(Failure(FailureCode.WRONG_TASK, detail), f"{more}{other!r}")


def _constants(hello: Hello, known: Known) -> Iterator[Refusal]:
    """Tensors that do not travel: every node makes them, and all must have the same."""
    for spec in _not_travelling(hello):
        if len(spec.shape) > MAX_DIMENSIONS or math.prod(max(1, size) for size in spec.shape) > sys.maxsize:
            detail = f"its tensor {spec.name!r}, which does not travel, has a shape that no tensor can have"
            yield Refusal(Failure(FailureCode.WRONG_SHAPES, f"{detail}: change the model of its task"))
    digests = {spec.name: one.digest for one, spec in zip(hello.constants, _not_travelling(hello), strict=True)}
    if any(len(digest) != DIGEST_BYTES for digest in digests.values()):
        yield Refusal(Failure(FailureCode.WRONG_PROTOCOL, "a digest of a constant is missing or has another length"))
    if twice := {spec.name for spec in hello.tensors} & digests.keys():
        detail = f"its tensor {min(twice)!r} both travels and does not: update FedGSP on its machine"
        yield Refusal(Failure(FailureCode.WRONG_PROTOCOL, detail))
    if known.constants is None:
        return
    whose = f"node {known.standard.node!r}" if known.standard else "the run before it was resumed"
    for name in sorted(digests.keys() ^ known.constants.keys()):
        ours, theirs = ("does not travel", "travels") if name in digests else ("travels", "does not travel")
        detail = f"its tensor {name!r} {ours}, and that of the run {theirs}: use the same version of the task"
        yield Refusal(Failure(FailureCode.WRONG_SHAPES, detail), f"as that of {whose}")
    for name in digests:
        if digests[name] != known.constants.get(name):
            detail = (
                f"its tensor {name!r}, which does not travel, has other values than that of the run: give all nodes"
                " the same pretrained weights, task options and version of torch"
            )
            yield Refusal(Failure(FailureCode.WRONG_TASK, detail), f"than that of {whose}")


def _specs(hello: Hello) -> list[TensorSpec]:
    """All tensors of a hello: those of the model, and the features."""
    return [*hello.tensors, *_not_travelling(hello), *([hello.features] if hello.features is not None else [])]


def _not_travelling(hello: Hello) -> list[TensorSpec]:
    return [one.tensor or TensorSpec("", "", ()) for one in hello.constants]


def _can_be_dialled(address: str) -> bool:
    try:
        host, port = split_address(address)
    except ConfigError:
        return False
    return port > 0 and not is_wildcard(host)
