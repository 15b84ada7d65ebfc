"""The commands `fedgsp-node export` and `fedgsp-node evaluate`."""

from __future__ import annotations

import json as json_format
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from fedgsp import logs, stdout
from fedgsp.errors import ConfigError
from fedgsp.options import options, parse_clients
from fedgsp.settings.checks import check_name
from fedgsp.settings.devices import DEVICES, check_device
from fedgsp.tasks import TASKS
from fedgsp.words import with_name

if TYPE_CHECKING:
    from fedgsp.task import Task
    from fedgsp_node.finished.record import RunRecord
    from fedgsp_node.kept.personal_state import PersonalState

Part = Literal["test", "validation"]
RunDir = Annotated[Path, typer.Argument(help="the directory of the run, or a copy of it")]
TaskName = Annotated[
    str | None,
    typer.Option("--task", metavar="NAME", help="the task of the run; only needed if it is your own (module:factory)"),
]
TaskOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--task-option", metavar="KEY=VALUE", help="an option of the task, in place of that of the run; repeatable"
    ),
]
Model = Annotated[
    str,
    typer.Option("--model", metavar="NAME", help="a file of RUN_DIR/models without its ending, such as round-0003"),
]
StateDir = Annotated[
    Path | None,
    typer.Option(
        "--state-dir",
        help="the --state-dir of the client's node, with the heads and personal models that stayed there",
    ),
]


def export(
    run_dir: RunDir,
    *,
    out: Annotated[
        Path,
        typer.Option(help="a file that ends in .safetensors, or a folder that from_pretrained of transformers reads"),
    ],
    task: TaskName = None,
    task_option: TaskOptions = None,
    model: Model = "final",
    client: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="the client whose model is written, if groups or clients have different models"
        ),
    ] = None,
    state_dir: StateDir = None,
    merge_adapters: Annotated[
        bool, typer.Option("--merge-adapters", help="merge the adapter of a PeftModel into its model")
    ] = False,
) -> None:
    """Write a model of a run with all its tensors, also those that did not travel."""
    logs.configure()
    run, loaded, _ = _opened(run_dir, task, task_option)
    personal = _kept_in(state_dir)
    from fedgsp_node.finished import export as exporting  # imports torch, which takes seconds

    exporting.check_out(out)
    file, target = run.model(model, client), out.absolute()
    echo = stdout.taken()
    exporting.export(
        run,
        loaded(),
        file,
        target,
        client=client,
        personal=personal,
        merge_adapters=merge_adapters,
        tell=_tell,
    )
    echo(f"{out}: {file.name} of round {file.round}")


def evaluate(
    run_dir: RunDir,
    *,
    task: TaskName = None,
    task_option: TaskOptions = None,
    clients: Annotated[
        str | None,
        typer.Option(
            metavar="IDS",
            help="the ids of the clients whose data are on this machine, such as 0-3,7 or 0-98/2; all by default",
        ),
    ] = None,
    model: Model = "final",
    part: Annotated[Part, typer.Option(metavar="PART", help="the data to evaluate on: test or validation")] = "test",
    state_dir: StateDir = None,
    device: Annotated[str, typer.Option(metavar="DEVICE", help=f"where to compute: {DEVICES}")] = "cpu",
    json: Annotated[bool, typer.Option("--json", help="print the figures as one JSON object")] = False,
) -> None:
    """Evaluate a model of a run on the data of clients on this machine; nothing leaves this machine."""
    logs.configure()
    check_device(device)
    ids = None if clients is None else parse_clients(clients)
    run, loaded, chosen = _opened(run_dir, task, task_option)
    personal = _kept_in(state_dir)
    for client in ids or ():
        run.model(model, client)  # refuses before anything is loaded
    from fedgsp_node import devices
    from fedgsp_node.finished import evaluate as evaluating
    from fedgsp_node.finished.options import check_options
    from fedgsp_node.hosted_data import names_of
    from fedgsp_node.kept.personal_state import PersonalState

    echo = stdout.taken()
    here, used = loaded(), devices.device_of(device)
    check_options(run, here, chosen)
    devices.prepare(used)
    names = names_of(here)
    scores, together = evaluating.evaluate(
        run,
        here,
        ids,
        model,
        part=part,
        personal=personal or PersonalState(),
        device=used,
        tell=_tell,
    )
    if json:
        each = {str(client): _named(client, names) | score.as_json() for client, score in scores.items()}
        echo(json_format.dumps({"clients": each, "together": together.as_json()}))
        return
    for client, score in scores.items():
        echo(f"client {with_name(client, names)}: {score}")
    if len(scores) > 1:
        echo(f"together: {together}")


def _named(client: int, names: Mapping[int, str]) -> dict[str, str]:
    return {"name": names[client]} if client in names else {}


def _opened(run_dir: Path, task: str | None, given: list[str] | None) -> tuple[RunRecord, Any, Mapping[str, str]]:
    """What the directory of a run says, a function that loads its task, and the task options that were given.

    Raises UserError.
    """
    from fedgsp_node.finished.record import read

    chosen = options("--task-option", given or [])
    run = read(run_dir.absolute())  # the task may change the working directory
    name = run.config.task
    if task is not None and task != name:
        raise ConfigError(f"--task is {task}, and the run in {run_dir} is one of task {name}", f"give --task {name}")
    if task is None and ":" in name:  # a record alone must not decide which code runs
        raise ConfigError(f"the run in {run_dir} has the task {name}", f"if you trust that code, give --task {name}")
    if ":" not in name:
        check_name("--task", name, TASKS)

    def loaded() -> Task:
        from fedgsp_node.tasks import load_task

        return load_task(name, {**run.config.task_option, **chosen})

    return run, loaded, chosen


def _kept_in(folder: Path | None) -> PersonalState | None:
    """What stayed with clients in a folder, which may have been given; raises ConfigError if it does not exist."""
    from fedgsp_node.kept.personal_state import PersonalState

    if folder is not None and not folder.is_dir():
        raise ConfigError(f"--state-dir {folder}: there is no such folder", "give that of the client's node")
    return PersonalState(folder.absolute(), read_only=True) if folder is not None else None


def _tell(text: str) -> None:
    stdout.echo(f"note: {text}", err=True)
