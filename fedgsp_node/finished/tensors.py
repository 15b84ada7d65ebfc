"""The tensors of a whole model: those of its file, and those that stayed on the node of a client."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from numpy.typing import NDArray

from fedgsp.errors import ConfigError, DataError
from fedgsp.messages import Constant, TensorSpec
from fedgsp_node.finished.record import ModelFile, RunRecord
from fedgsp_node.personal_state import HEAD, PERSONAL_MODEL, PersonalState

Arrays = dict[str, NDArray[Any]]
#: Tells the user something that is not an error.
Tell = Callable[[str], None]

_OF_THE_RUN = "give the --task and the --task-option of the run"


def tensors_of(
    run: RunRecord,
    file: ModelFile,
    specs: Iterable[TensorSpec],
    client: int | None,
    personal: PersonalState | None,
    tell: Tell,
) -> Arrays:
    """All tensors of `specs`, from the file of a model and from what the node of the client kept, if anything.

    Tensors that a training adds to the model are left in.

    Raises ConfigError if what stays with the client is not here, DataError if the file does not fit the model.
    """
    arrays = file.tensors()
    kept = _kept(run, client, personal, tell)
    if PERSONAL_MODEL in kept:
        arrays = kept[PERSONAL_MODEL]
    arrays |= kept.get(HEAD, {})
    wanted = {spec.name: spec for spec in specs}
    lacking = [spec for name, spec in wanted.items() if name not in arrays]
    for spec in lacking:
        if not spec.head or not all(other.head for other in lacking):
            raise DataError(f"{file.path} lacks the tensor {spec.name!r} of the task's model", _OF_THE_RUN)
    if lacking:
        whose = "clients" if client is None else f"client {client}"
        raise ConfigError(
            f"{file.path} has no head: the head of {whose} stays on its node, where --state-dir was given",
            f"give --client and --state-dir there (tensors {', '.join(spec.name for spec in lacking)} are missing)",
        )
    for name, array in arrays.items():
        if name not in wanted and run.training.adds is not None:
            continue  # a tensor of the training, which the run added to the model
        if name not in wanted:
            raise DataError(f"{file.path} has a tensor {name!r} that the task's model has not", _OF_THE_RUN)
        found, needed = (str(array.dtype), array.shape), (wanted[name].dtype, wanted[name].shape)
        if found != needed:
            raise DataError(
                f"the tensor {name!r} of {file.path} is {_shape(found)}, and the task's model has {_shape(needed)}",
                _OF_THE_RUN,
            )
    return arrays


def _shape(kind: tuple[str, tuple[int, ...]]) -> str:
    return f"{kind[0]} {list(kind[1])}"


def _kept(run: RunRecord, client: int | None, personal: PersonalState | None, tell: Tell) -> dict[str, Arrays]:
    """What the node of a client kept, by purpose; only what the run evaluated in place of the shared model."""
    training = run.training
    needed = {PERSONAL_MODEL: training.keeps_personal, HEAD: True}
    found: dict[str, Arrays] = {}
    if personal is not None and client is not None:
        personal.open(run.run_id)
        for purpose in (purpose for purpose, wanted in needed.items() if wanted):
            if (kept := personal.get(client, purpose)) is not None:
                found[purpose] = dict(kept[1])
    stays = "personal model" if training.keeps_personal else "head" if training.keeps_head else ""
    if stays and not found:
        tell(
            f"the {stays} of each client stays on its node (training {training.name}), and is not in this model;"
            " --client and --state-dir add it"
        )
    if training.name in ("finetune", "per-fedavg"):
        tell(
            f"the run evaluated models after some steps on the client's own data (training {training.name});"
            " this is the model before these steps"
        )
    return found


def check_constants(run: RunRecord, made: Iterable[Constant], tell: Tell) -> None:
    """Compares the tensors that do not travel with those of the run; raises DataError that names one that differs."""
    here: Mapping[str, bytes] = {one.tensor.name: one.digest for one in made if one.tensor is not None}
    if run.constants is None:
        if here:
            tell("the run did not record the digests of the tensors that do not travel: they are not compared")
        return
    for name in sorted(here.keys() | run.constants.keys()):
        if here.get(name) != run.constants.get(name):
            where = "has other values" if name in here and name in run.constants else "is only in one of them"
            raise DataError(
                f"the tensor {name!r}, which does not travel, {where}: in this task's model, and in that of the run",
                "give the files and options that the nodes had, and the same version of torch",
            )
