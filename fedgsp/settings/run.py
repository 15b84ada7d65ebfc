"""The settings of the programs of a run: top server, group managers, nodes, and a grouping service."""

import re
from dataclasses import dataclass
from pathlib import Path

from fedgsp.errors import ConfigError
from fedgsp.identity import NAME_RULE, is_name
from fedgsp.options import parse_clients
from fedgsp.schedules import plan
from fedgsp.settings.connections import CONNECTIONS, TlsSettings
from fedgsp.settings.devices import DEVICES, check_device
from fedgsp.settings.fields import described, setting
from fedgsp.settings.placing import LOCAL, PROCESSES, PlaceSettings
from fedgsp.settings.policy import NO_POLICY
from fedgsp.settings.proxies import ProxySettings
from fedgsp.settings.run_files import TRAINING

#: How the address of a grouping service begins: grpc://host:port.
GROUPING_SERVICE = "grpc://"

METHOD, TASK = "Method", "Task"
OPTIMISER = "Optimiser"
WORK, POLICY = "Work", "Policy"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig(PlaceSettings):
    """Every setting of a run. None leaves a choice to the scheme, or says that there is no limit.

    The names of schemes, groupings and other parts are in the tables of the top server, not here.
    """

    scheme: str = setting("fedgsp", "the algorithm; it sets the defaults of the choices below", panel=METHOD)
    growth: str | None = setting(None, "how the number of groups grows from round to round", panel=METHOD)
    alpha: float | None = setting(
        None,
        "how fast the number of groups grows; the default depends on the number of clients",
        above=0,
        panel=METHOD,
    )
    beta: int | None = setting(
        None,
        "groups in round 1, and the step by which their number grows; the default depends on the number of clients",
        least=1,
        panel=METHOD,
    )
    smallest_group: int | None = setting(
        None, "fewest clients in a group; the default depends on the number of clients", least=1, panel=METHOD
    )
    sampling_rate: float | None = setting(
        None,
        "share of the groups (fedavg, ...: clients) that train in a round; by default the number of clients decides",
        above=0,
        most=1,
        panel=METHOD,
    )
    grouping: str | None = setting(
        None,
        "how clients are grouped; grpc://host:port asks a grouping service",
        service=GROUPING_SERVICE,
        panel=METHOD,
    )
    grouping_option: dict[str, str] = setting(
        {}, "an option of the grouping; repeatable", options_of="grouping", panel=METHOD
    )
    balance: str | None = setting(
        None,
        "time: clients are dealt to groups by how long each took so far, so that no relay takes longer than it must",
        choices=("time",),
        panel=METHOD,
    )
    profile: str | None = setting(None, "what clients reveal before they are grouped", panel=METHOD)
    profile_option: dict[str, str] = setting(
        {}, "an option of the profile; repeatable", options_of="profile", panel=METHOD
    )
    program: str | None = setting(
        None,
        "how the clients of a group train: one after the other (relay), or at the same time (parallel)",
        panel=METHOD,
    )
    program_option: dict[str, str] = setting(
        {}, "an option of the program; repeatable", options_of="program", panel=METHOD
    )
    relay_order: str | None = setting(
        None,
        "whether relays keep their order (kept), or draw it anew in every round (drawn); the scheme has a default",
        choices=("kept", "drawn"),
        panel=METHOD,
    )
    training: str | None = setting(None, "how a client trains on its data", panel=METHOD)
    training_option: dict[str, str] = setting(
        {}, "an option of the training; repeatable", options_of="training", panel=METHOD
    )
    aggregation: str | None = setting(None, "how models that were trained in parallel are combined", panel=METHOD)
    aggregation_option: dict[str, str] = setting(
        {}, "an option of the aggregation; repeatable", options_of="aggregation", panel=METHOD
    )
    weighing: str | None = setting(None, "how much each client counts in the mean of its group", panel=METHOD)
    weighing_option: dict[str, str] = setting(
        {}, "an option of the weighing; repeatable", options_of="weighing", panel=METHOD
    )
    merge: str | None = setting(
        None,
        "how the results of the groups are combined: into one model, or into a model for each group or cluster",
        panel=METHOD,
    )
    merge_option: dict[str, str] = setting({}, "an option of the merge; repeatable", options_of="merge", panel=METHOD)
    after_arrivals: str | None = setting(
        None,
        "which clients continue training after clients have joined late: all, or only the coalitions that they joined",
        choices=("all", "joined"),
        panel=METHOD,
    )
    seed: int = setting(0, "seed of models, groups and batches, not of data", least=0, most=2**63 - 1, panel=METHOD)

    rounds: int = setting(20, "number of rounds", least=1, panel=TRAINING)
    local_epochs: int = setting(
        1, "passes over a client's data each time it trains", least=1, most=2**31, panel=TRAINING
    )
    batch_size: int = setting(5, "samples in each step", least=1, most=2**31, panel=TRAINING)
    evaluate_every: int = setting(
        1,
        "number of rounds from one evaluation to the next; the last round is always evaluated",
        least=1,
        panel=TRAINING,
    )
    wire_dtype: str = setting(
        "exact",
        "bfloat16 rounds each model as soon as it is made, so that float32 weights travel in half the bytes",
        choices=("exact", "bfloat16"),
        panel=TRAINING,
    )

    optimizer: str | None = setting(None, "how a client turns gradients into steps; auto by default", panel=OPTIMISER)
    optimizer_option: dict[str, str] = setting(
        {}, "an option of the optimiser; repeatable", options_of="optimizer", panel=OPTIMISER
    )
    optimizer_state: str = setting(
        "fresh",
        "where the optimiser of a training begins: without a state (fresh), from the state that the node keeps for the"
        " client (kept), or from the state that came with the model (relayed)",
        choices=("fresh", "kept", "relayed"),
        panel=OPTIMISER,
    )
    learning_rate: float = setting(0.01, "step size", above=0, panel=OPTIMISER)
    learning_rate_decay: float = setting(
        1.0, "factor on the learning rate from one round to the next", above=0, most=1, panel=OPTIMISER
    )
    schedule: str = setting("constant", "how the step size changes from round to round", panel=OPTIMISER)
    schedule_option: dict[str, str] = setting(
        {}, "an option of the schedule; repeatable", options_of="schedule", panel=OPTIMISER
    )
    local_schedule: str = setting(
        "constant", "how the step size changes from step to step of a training", panel=OPTIMISER
    )
    local_schedule_option: dict[str, str] = setting(
        {}, "an option of the local schedule; repeatable", options_of="local_schedule", panel=OPTIMISER
    )
    clip_norm: float | None = setting(
        None,
        "shorten each longer gradient to this length (Euclidean norm over all parameters); no limit by default",
        above=0,
        metavar="LENGTH",
        panel=OPTIMISER,
    )
    accumulate: int = setting(
        1, "batches whose mean gradient makes one step, for batches larger than memory", least=1, panel=OPTIMISER
    )

    precision: str = setting(
        "float32",
        "dtype in which nodes compute the model and the loss in training (autocast); weights stay as they are",
        choices=("float32", "bfloat16", "float16"),
        panel=OPTIMISER,
    )

    outgoing: tuple[str, ...] = setting(
        (),
        "a step that nodes take before a trained model leaves them; repeatable, taken in the order given",
        metavar="STEP",
        panel=TRAINING,
    )
    outgoing_option: dict[str, str] = setting(
        {},
        "an option of an outgoing step; repeatable",
        options_of="outgoing",
        metavar="STEP.KEY=VALUE",
        panel=TRAINING,
    )

    task: str = setting(
        "digits",
        "a task by name, or your own task as module:factory",
        required="name a task, or give module:factory",
        other_names=True,
        panel=TASK,
    )
    task_option: dict[str, str] = setting({}, "an option of the task; repeatable", options_of="task", panel=TASK)

    min_nodes: int = setting(1, "number of nodes that the first round waits for", least=1, panel=PROCESSES)
    min_clients: int | None = setting(
        None, "number of clients that every round waits for", least=1, may_change=True, panel=PROCESSES
    )
    join_timeout: float = setting(
        120.0,
        "how long the top server waits for the nodes and clients of --min-nodes and --min-clients; then the run ends",
        above=0,
        metavar="SECONDS",
        may_change=True,
        panel=PROCESSES,
    )
    stall_timeout: float = setting(
        60.0, "skip a client that makes no progress for this long", above=0, metavar="SECONDS", panel=PROCESSES
    )
    update_norm_limit: float | None = setting(
        None,
        "reject updates that are longer than FACTOR times the median; no limit by default",
        above=1,
        metavar="FACTOR",
        panel=PROCESSES,
    )
    relay: str = setting(
        "auto",
        "how weights travel between clients: from node to node where possible (auto), always from node to node "
        "(direct), or always through the group managers (manager)",
        choices=("auto", "direct", "manager"),
        panel=PROCESSES,
    )
    manager_ports: str | None = setting(
        None,
        "ports that group managers may use; any free port by default",
        metavar="FIRST-LAST",
        may_change=True,
        panel=PROCESSES,
    )

    def learning_rate_in(self, round_number: int) -> float:
        """Step size in a round, which counts from 1 (HCCT, section 3.3); before round 1 that of round 1.

        Raises ConfigError for a round beyond the horizon of the schedule.
        """
        past = max(0, round_number - 1)
        factor = plan(self.schedule, self.schedule_option).factor(past, self.rounds)
        return self.learning_rate * self.learning_rate_decay**past * factor

    @property
    def nodes_to_wait_for(self) -> int:
        """Number of nodes that must have joined before the first round: all that the run starts, or see below."""
        return max(self.min_nodes, 0 if self.begins_early else self.workers_to_place)

    @property
    def clients_to_wait_for(self) -> int:
        """Number of clients that nodes must host before the first round."""
        return max(self.min_clients or 1, 0 if self.begins_early else self.clients or 1)

    @property
    def begins_early(self) -> bool:
        """Whether the first round begins with a part of the workers: in a cluster, --min-clients says so."""
        return self.min_clients is not None and self.placed not in (None, LOCAL)

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

    def check_together(self) -> None:
        """Raise ConfigError for settings that do not go together."""
        PlaceSettings.check_together(self)
        if self.manager_port_range is not None and self.place_managers:
            raise ConfigError(
                "--manager-ports is for managers beside the top server, and --place-managers for others",
                "drop one of them: managers on the machines of workers take free ports",
            )
        if self.place_managers and self.insecure:
            raise ConfigError(
                "--place-managers hands the key of the run to workers, and with --insecure anybody may say to be one",
                "drop one of them",
            )


def may_change() -> set[str]:
    """The settings that may have another value when a run is resumed; none of them affects results."""
    return {name for name, one in described(RunConfig).items() if one.metadata.get("may_change")}


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSettings(ProxySettings):
    """Every setting of a node."""

    top_server: str = setting(
        "",
        "the top server to join",
        metavar="HOST:PORT",
        address=True,
        required="give --top-server HOST:PORT",
        panel=CONNECTIONS,
    )
    peer_listen: str | None = setting(
        None,
        "where other nodes fetch weights from this node; without it, weights pass through the group managers",
        metavar="HOST:PORT",
        address=True,
        panel=CONNECTIONS,
    )
    advertise: str | None = setting(
        None,
        "the address that other nodes dial to reach this node, if it differs from --peer-listen",
        metavar="HOST:PORT",
        address=True,
        panel=CONNECTIONS,
    )
    connect_timeout: float = setting(
        120.0, "exit if no top server is found for this long", above=0, metavar="SECONDS", panel=CONNECTIONS
    )
    return_timeout: float = setting(
        3600.0,
        "exit if the top server of a joined run is away for so long; --connect-timeout, if it has stopped the run",
        above=0,
        metavar="SECONDS",
        panel=CONNECTIONS,
    )
    task: str = setting("digits", "a task by name, or your own task as module:factory", other_names=True, panel=WORK)
    task_option: dict[str, str] = setting({}, "an option of the task; repeatable", options_of="task", panel=WORK)
    clients: str | None = setting(
        None, "ids of the clients to host: 0-3,7 or 0-98/2 (12: client 12); all by default", metavar="IDS", panel=WORK
    )
    threads: int = setting(
        1,
        "threads for training; another number may change the last bits of the models",
        least=1,
        most=1024,
        panel=WORK,
    )
    device: str = setting("cpu", f"where the node trains: {DEVICES}", metavar="DEVICE", panel=WORK)
    state_dir: Path | None = setting(
        None,
        "folder in which the node keeps the heads, models and optimiser states of its clients, so that they survive a "
        "restart; by default they are in memory only",
        metavar="DIRECTORY",
        panel=WORK,
    )
    name: str | None = setting(None, "name of this node in the run's records; HOST-PID by default", panel=WORK)
    host_managers: bool = setting(
        False,
        "run group managers for the top server on this machine; only for nodes that a run starts (--place-managers)",
        panel=WORK,
    )
    policy: str | None = setting(
        None,
        "TOML file with the limits of what this node does for a top server; without this flag, a default policy"
        f" holds; {NO_POLICY}: no limits",
        metavar="FILE",
        panel=POLICY,
    )
    allow: dict[str, str] = setting(
        {},
        "allow more than the policy: adds entries to a list, and replaces a number; repeatable. "
        "`fedgsp-node policy` prints all keys",
        panel=POLICY,
    )

    @property
    def client_ids(self) -> tuple[int, ...] | None:
        """The clients to host, ascending; None for all clients of the task. Raises ConfigError."""
        return None if self.clients is None else parse_clients(self.clients)

    def check_together(self) -> None:
        """Raise ConfigError for settings that do not go together."""
        ProxySettings.check_together(self)
        check_device(self.device)
        _ = self.client_ids
        if self.name and not is_name(self.name):
            raise ConfigError(f"--name {self.name!r} cannot be the name of a node", f"write {NAME_RULE}")
        if self.proxy is not None and self.peer_listen is not None:
            raise ConfigError(
                "--peer-listen is for a node that others can dial, and --proxy for one that reaches others by a proxy",
                "leave out --peer-listen: weights then pass through the group managers",
            )
        if self.host_managers and self.state_dir is None:
            raise ConfigError("--host-managers keeps certificates of managers in --state-dir", "give --state-dir")
        if self.advertise and not self.peer_listen:
            raise ConfigError("--advertise names an address, but this node does not listen", "give --peer-listen too")


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupingServiceSettings(TlsSettings):
    """Every setting of `top-server grouping-service`."""

    listen: str = setting(
        "127.0.0.1:7300", "where top servers ask; port 0 takes any free port", metavar="HOST:PORT", address=True
    )
