"""Events of the whole run."""

from collections.abc import Mapping, Sequence

from top_server.record.events.base import ABSENT, Event, told


class Listening(Event):
    """The top server has begun, and nodes can reach it."""

    address: str = told("where nodes join")
    metrics: str = told("with `--metrics`: where /metrics and /healthz are", default=ABSENT)


class SettingsChosen(Event):
    """Settings that nobody gave have values for the number of clients; config.toml has them from now on."""

    clients: int = told("number of clients that are there")
    settings: str = told("the chosen settings, with the reason for them; without the values of the papers")


class GroupsExpected(Event):
    """What the groups of the run will be, if the clients that are there stay."""

    clients: int = told("number of clients that are there")
    outlook: str = told("in words: how many groups in which rounds, and how many clients train in each")


class GroupsDoubted(Event):
    """Groups of single clients, or clients that never train, are to be expected."""

    reason: str = told("what is to be expected, and which flags change it")


class RunStarted(Event):
    """The nodes that the run waited for are there."""

    run: str = told("id of the run")
    directory: str = told("where relative paths in the settings begin")
    round: int = told("the last finished round; 0 if there is none")
    clients: int = told("number of clients that are there")
    nodes: int = told("number of nodes that are there")
    rounds: int = told("number of rounds that will be played")
    scheme: str
    head: Sequence[str] = told("names of the tensors that stay with the clients")
    constants: Mapping[str, str] = told("digest (BLAKE3) of each tensor that does not travel, by name", default=ABSENT)
    task_options: Mapping[str, str] = told(
        "options of the task that are equal on all nodes, as the first node has them, with defaults", default=ABSENT
    )
    commit: str = told(
        "commit of the checkout that the top server runs from, with `-dirty` if files are changed", default=ABSENT
    )


class RunResumed(RunStarted):
    """`--resume` continues a run: comes in place of `run_started`."""


class StateDamaged(Event):
    """A saved state of a resumed run cannot be read; the state before it is used."""

    reason: str


class ClientsMissing(Event):
    """Clients of a resumed run did not come back in time."""

    clients: Sequence[int]


class InitialModelFailed(Event):
    """An attempt to make an initial model failed."""

    model: str = told("what the model is for")
    reason: str


class InitialModelsDiffer(Event):
    """Nodes made different initial models from the same seed.

    The model that two of them made is used. If no two are alike, the model that came first is used.
    """

    model: str = told("what the model is for")
    reason: str = told("which nodes made the model that counts, and which made others")
    digests: Mapping[str, str] = told("digest (BLAKE3) of what each node made, by node")


class InitialModelRead(Event):
    """The run starts from the weights of a file (`--initial-model`)."""

    file: str = told("the path as it was given")
    sha256: str = told("digest of the file, in hexadecimal")


class ClientsServed(Event):
    """All rounds are done, and the score of single clients is known: its spread after the last evaluation."""

    scored_by: str = told("the `score` of the task, unless it is accuracy", default=ABSENT)

    mean: float = told("mean over the clients")
    std: float = told("standard deviation over the clients")
    min: float
    max: float


class ClientsMissed(Event):
    """After the last round: rounds in a row that clients missed for one reason.

    Clients that were not drawn for a round do not miss it.
    """

    clients: Sequence[int]
    first: int = told("the first of these rounds")
    last: int = told("the last of these rounds")
    code: str = told("`AWAY`, `LEFT_OUT`, `GROUP_FAILED`, or a name from `protos/fedgsp/v1/failure.proto`")
    reason: str = told("in words; of the first of these rounds")
    seconds: float = told("for how long their node was away, with `AWAY` and `NODE_LOST`, if known", default=ABSENT)


class MoreMissed(Event):
    """Further absences, which summary.json has; only the first ones are events."""

    absences: int = told("their number")


class FieldsLeftOut(Event):
    """A line would be longer than any that is read, so that it lacks fields with a value for each client.

    The event comes again only if the line of another kind, or another field, is concerned.
    """

    kind_of_event: str = told("the kind of that line; `round_finished` stands for `history.jsonl`, too")
    left_out: Sequence[str] = told("the fields, such as `metrics_per_client`")
    reason: str = told("in words, with the number of bytes")


class StoppedEarly(Event):
    """The validation score has not become better for `--patience` evaluations: the run ends before its last round."""

    round: int = told("the round after which the run ends")
    best: int = told("the round with the best validation score")


class NoBestModel(Event):
    """All rounds are done, and none had a validation score: `--keep-models best` has kept no best model."""

    reason: str = told("what to look for")


class RunFinished(Event):
    """The last event of a finished run."""

    rounds: int
    accuracy: float | None = told("accuracy after the last round")
    scored_by: str = told("the `score` of the task, unless it is accuracy", default=ABSENT)
    score: float | None = told("its value after the last round; larger is better", default=ABSENT)
    seconds: float = told("time since this top server began")


class RunFailed(Event):
    """The run ended with an error. It is the last event, unless the run is resumed."""

    reason: str = told("what was wrong")
    remedy: str = told("what to do")
    code: int = told("exit code of the top server")


class RunStopped(Event):
    """A person or the system stopped the top server. It is the last event, unless the run is resumed."""

    code: int = told("exit code of the top server: 128 and the number of the signal")
