"""The tensors of a whole model: those of its file, and those that stayed on the node of a client."""

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from numpy.typing import NDArray

from fedgsp.errors import ConfigError, DataError
from fedgsp.messages import Constant, TensorSpec
from fedgsp.tensors.dtypes import DTYPES
from fedgsp.tensors.headers import Kind, kinds_of, nbytes
from fedgsp_node.finished.record import ModelFile, RunRecord
from fedgsp_node.kept.personal_state import HEAD, PERSONAL_MODEL, PersonalState, round_of
from fedgsp_node.receipts import trained_models

Arrays = dict[str, NDArray[Any]]
#: Tells the user something that is not an error.
Tell = Callable[[str], None]

#: Most bytes of what a training adds to a model, beside a copy of the model. FedFusion's convolution of 16,384
#: features has half of them.
MOST_ADDED = 1 << 32

_OF_THE_RUN = "give the --task and the --task-option of the run"
#: Another version may give a tensor another name.
_OR_ITS_VERSION = f"{_OF_THE_RUN}, or use the version of fedgsp that made the run"


def tensors_of(
    run: RunRecord,
    file: ModelFile,
    specs: Iterable[TensorSpec],
    client: int | None,
    personal: PersonalState | None,
    tell: Tell,
    flag: str,
) -> Arrays:
    """All tensors of `specs`, from the file of a model and from what the node of the client kept, if anything.

    Only what was kept until the round of the model counts. Tensors that a training adds to the model are left in.
    `flag` is how the user names the client.

    Raises ConfigError if what stays with the client is not here, DataError if the file does not fit the model.
    """
    wanted = {spec.name: spec for spec in specs}
    kept = _kept(run, file, client, personal, tell, flag)
    for purpose, tensors in kept.items():
        where = f"the {purpose.replace('-', ' ')} of client {client} in --state-dir"
        _check_kinds(run, kinds_of(tensors), wanted, where)
    arrays = file.tensors(lambda named: _check_kinds(run, named, wanted, str(file.path)))
    if PERSONAL_MODEL in kept:
        arrays = kept[PERSONAL_MODEL]
    arrays |= kept.get(HEAD, {})
    lacking = [spec for name, spec in wanted.items() if name not in arrays]
    for spec in lacking:
        if not spec.head or not all(other.head for other in lacking):
            raise DataError(f"{file.path} lacks the tensor {spec.name!r} of the task's model", _OR_ITS_VERSION)
    if lacking:
        missing = f"tensors {', '.join(spec.name for spec in lacking)} are missing"
        if client is None or personal is None or personal.directory is None:
            whose = "clients" if client is None else f"client {client}"
            raise ConfigError(
                f"{file.path} has no head: the head of {whose} stays on its node, where --state-dir was given",
                f"give {flag} and --state-dir there ({missing})",
            )
        raise ConfigError(
            f"{file.path} has no head, and {personal.directory} has no head of client {client} of run {run.run_id}"
            f" until round {file.round} ({missing})",
            "give the --state-dir of the node that hosted the client in this run, or another --model",
        )
    return arrays


def _check_kinds(run: RunRecord, named: Mapping[str, Kind], wanted: Mapping[str, TensorSpec], where: str) -> None:
    """Raises DataError for tensors that the model of the task has not, or has with another dtype or shape."""
    unknown = {name: kind for name, kind in named.items() if name not in wanted}
    if unknown and run.training.adds is None:
        raise DataError(f"{where} has a tensor {next(iter(unknown))!r} that the task's model has not", _OR_ITS_VERSION)
    if unknown:
        _check_added(unknown, wanted, where)
    for name in named.keys() & wanted.keys():
        needed = (wanted[name].dtype, wanted[name].shape)
        if named[name] != needed:
            raise DataError(
                f"the tensor {name!r} of {where} is {_shape(named[name])}, and the task's model has {_shape(needed)}",
                _OF_THE_RUN,
            )


def _check_added(added: Mapping[str, Kind], wanted: Mapping[str, TensorSpec], where: str) -> None:
    """Raises DataError for tensors that no training adds: which ones it adds is not known here, only how large."""
    for name, (dtype, _) in added.items():
        if dtype not in DTYPES:
            raise DataError(f"the tensor {name!r} of {where} has the dtype {dtype}, which no model has", _OF_THE_RUN)
    size, own = sum(map(nbytes, added.values())), sum(nbytes((spec.dtype, spec.shape)) for spec in wanted.values())
    if size > MOST_ADDED + own:
        raise DataError(
            f"{where} has {size:,} bytes of tensors that the task's model has not, more than a training adds",
            _OF_THE_RUN,
        )


def _shape(kind: Kind) -> str:
    return f"{kind[0]} {list(kind[1])}"


def _kept(
    run: RunRecord, file: ModelFile, client: int | None, personal: PersonalState | None, tell: Tell, flag: str
) -> dict[str, Arrays]:
    """What the node of a client kept, by purpose; only what the run evaluated in place of the shared model."""
    training = run.training
    needed = {PERSONAL_MODEL: training.keeps_personal, HEAD: True}
    found: dict[str, Arrays] = {}
    if personal is not None and client is not None:
        personal.open(run.run_id)
        # If the node was killed and never came back, this has not been done on disk.
        personal.settle_in_memory(client, functools.partial(trained_models, personal.directory))
        for purpose in (purpose for purpose, wanted in needed.items() if wanted):
            if (kept := personal.get_before(client, purpose, file.round + 1)) is not None:
                found[purpose] = dict(kept)
            elif (later := personal.get(client, purpose)) is not None:
                what = f"the {purpose.replace('-', ' ')} of client {client} in {personal.directory}"
                tell(
                    f"{what} is of round {round_of(later[0])}, and {file.path.name} of round {file.round}:"
                    " they are not put together"
                )
            elif purpose == PERSONAL_MODEL and personal.directory is not None:
                raise ConfigError(
                    f"{personal.directory} has no personal model of client {client} of run {run.run_id}"
                    f" until round {file.round}",
                    "give the --state-dir of the node that hosted the client in this run, name other clients, or leave"
                    " out --state-dir to take the shared model",
                )
    stays = "personal model" if training.keeps_personal else "head" if training.keeps_head else ""
    if stays and not found:
        tell(
            f"the {stays} of each client stays on its node (training {training.name}), and is not in this model;"
            f" {flag} and --state-dir add it"
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
