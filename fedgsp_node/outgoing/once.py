"""One result for each training: what a node published is handed out again, and never drawn a second time.

This holds for trainings with a step that is not repeatable, such as noise from the node's secret. The mean of two
draws for one update would hide less of it than one draw does.

A training is identified by the client, the round and the kind of training: the usual one, a trial, or a training aside
(see `Train` in protos/). The start model does not identify it: after a failure, a relay may reach the client with
another model, and the update would still be nearly the same. The settings, the steps and the revealed view must be
those of the first order; otherwise the order is refused.

Results are kept in the state directory, until the client's next training of the same kind. A node without a state
directory refuses such trainings: after a restart, it could not know whether it has published a result before.
"""

import contextlib
import dataclasses
import hashlib
import json
import os
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fedgsp.errors import DataError, UserError, not_written
from fedgsp.files import fresh, sync, write_all
from fedgsp.messages import Failure, FailureCode, OrderKey, TensorSpec, Train, Trained
from fedgsp.run_ids import is_local
from fedgsp.tensors.weights import Weights
from fedgsp_node.kept.own_models import check_kept
from fedgsp_node.kept.personal_state import PUBLISHED, PersonalState
from fedgsp_node.order_error import OrderError, failing
from fedgsp_node.outgoing.steps import Published

#: Fields of the report on a published result. They are kept, for the case that the result is handed out again.
FIGURES = ("samples", "loss", "seconds", "steps", "keeps", "afresh", "train_accuracy")
_MODEL, _UPDATE = "model.", "update"
SECRET_BYTES = 32
_NO_DIRECTORY = (
    "an outgoing step of this run draws from a secret of the node, which must outlive the node: "
    "start the node with --state-dir"
)


class Once:
    """The results that a node has published, by client and kind of training. Called in the slot of outgoing steps."""

    def __init__(self, personal: PersonalState, tensors: tuple[TensorSpec, ...]) -> None:
        self._personal = personal
        self._tensors = tensors

    def secret(self) -> bytes:
        """The node's secret, made at the first call.

        Raises OrderError if the node has no state directory, or if that cannot be used.
        """
        path = self._directory() / "secret"
        with failing(FailureCode.UNSPECIFIED, UserError):
            try:
                if not path.exists():
                    aside = path.with_name(f".{path.name}.{os.getpid()}")
                    with fresh(aside, 0o600) as file:
                        write_all(file, secrets.token_bytes(SECRET_BYTES))
                    sync(aside)  # what is drawn from it lasts, so it must last, too
                    # A link never replaces a secret that another process has made in the meantime.
                    with contextlib.suppress(FileExistsError):
                        os.link(aside, path)
                    aside.unlink()
                    sync(path.parent)
                found = path.read_bytes()
            except OSError as error:
                raise not_written(path, error) from error
            if len(found) != SECRET_BYTES:
                raise DataError(f"{path} holds {len(found)} bytes, not {SECRET_BYTES}", "restore it from a copy")
        return found

    def _directory(self) -> Path:
        if self._personal.directory is None:
            raise OrderError(Failure(FailureCode.BAD_ORDER, _NO_DIRECTORY))
        return self._personal.directory

    def find(self, client: int, key: OrderKey, work: Train) -> Published | None:
        """The result of this training if it was published before.

        Raises OrderError if the order does not agree with what was published, or if the node has no state directory.
        """
        self._directory()
        with failing(FailureCode.UNSPECIFIED, UserError, ValueError, KeyError, TypeError):
            label = self._personal.label(client, _purpose(key, work))
            if label is None:
                return None
            record = json.loads(label)
            if record["run"] != key.run or record["round"] < key.round:
                return None
            if record["round"] > key.round:
                raise _refused(client, key, f"it has trained in round {record['round']} since then")
            if record["order"] != _identity(work):
                raise _refused(client, key, "the first order had other settings")
            return self._load(client, key, work, record)

    def publish(self, client: int, key: OrderKey, work: Train, make: Callable[[], Published]) -> Published:
        """The result of this training: the one that was published before, or else that of `make`, which is kept.

        Raises OrderError as `find` and `make` do, or if the result cannot be written.
        """
        found = self.find(client, key, work)
        if found is not None:
            return found
        made = make()
        arrays = {_MODEL + name: array for name, array in made.model.arrays.items()}
        if made.update is not None:
            arrays[_UPDATE] = made.update.arrays["update"]
        record = {
            "run": key.run,
            "round": key.round,
            "order": _identity(work),
            "training": made.training,
            "bfloat16": made.model.bfloat16,
            "figures": {name: getattr(made.report, name) for name in FIGURES},
        }
        with failing(FailureCode.UNSPECIFIED, UserError):
            self._personal.save(client, _purpose(key, work), arrays, json.dumps(record))
        return made

    def _load(self, client: int, key: OrderKey, work: Train, record: Mapping[str, Any]) -> Published:
        found = self._personal.load(client, _purpose(key, work))
        if found is None:
            raise DataError(f"the published result of client {client} is gone", "restore the state directory")
        arrays = {name.removeprefix(_MODEL): array for name, array in found[1].items() if name != _UPDATE}
        specs = tuple(spec for spec in self._tensors if spec.name in arrays)
        check_kept(arrays, specs, client)
        model = Weights.of(arrays, specs)
        model.bfloat16 = record["bfloat16"]
        update = None
        if (revealed := found[1].get(_UPDATE)) is not None:
            update = Weights.of({_UPDATE: revealed}, (TensorSpec(_UPDATE, str(revealed.dtype), revealed.shape),))
        report = Trained(None, **{name: record["figures"][name] for name in FIGURES})
        return Published(model, update, report, record.get("training", ""))


def _purpose(key: OrderKey, work: Train) -> str:
    """Each kind of training, of the main run and of the local run, has its own record: none replaces another."""
    kind = "-trial" if work.trial else "-aside" if work.aside else ""
    return PUBLISHED + kind + ("-alone" if is_local(key.run) else "")


def _identity(work: Train) -> str:
    """A digest of everything that two orders for one training have in common."""
    values = [
        dataclasses.asdict(value) if value is not None else None
        for value in (work.settings, work.reveal, *work.outgoing)
    ]
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def _refused(client: int, key: OrderKey, why: str) -> OrderError:
    return OrderError(
        Failure(
            FailureCode.BAD_ORDER,
            f"client {client} has published its result of round {key.round} and would draw again: {why}",
        )
    )
