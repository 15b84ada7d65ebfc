"""Tensors that stay with the clients of a node, such as heads; on disk if the node has a state directory."""

import contextlib
import re
import tempfile
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy
from numpy.typing import NDArray

from fedgsp.errors import DataError, not_written
from fedgsp.files import check_regular, fresh, sync, write_all
from fedgsp.owners import check_tree, tell_if_open
from fedgsp.run_ids import is_local
from fedgsp.tensors.digests import check_digest, with_digest

Arrays = Mapping[str, NDArray[Any]]

#: What tensors are kept for. These words are also part of file names.
HEAD, MODEL, PREVIOUS, PERSONAL_MODEL, PUBLISHED = "head", "model", "previous-model", "personal-model", "published"
OPTIMIZER, OPTIMIZER_ALONE, TENSORS, NEXT_MODEL = "optimizer", "optimizer-alone", "tensors", "model-next"
#: What trainings of rounds leave.
OF_TRAININGS = (HEAD, PERSONAL_MODEL, OPTIMIZER, OPTIMIZER_ALONE, TENSORS)
_BEFORE, _NEXT = "-before", "-next"
#: In the label of what a training has left: between the training whose receipt counts, and the one that has left it,
#: if they are not the same.
_MADE_BY = "\n"
_REMEDY = "restore it, or remove it to start afresh"


class PersonalState:
    """Named tensors by client and purpose, of one run at a time. With a directory, they survive a restart."""

    def __init__(self, directory: Path | None = None, *, read_only: bool = False) -> None:
        """`read_only` is for commands that read what a node keeps: the directory need not be writable for them.

        Raises ConfigError if somebody else could have changed the directory, and DataError if it cannot be written.
        """
        #: The state directory; None if nothing outlives the process.
        self.directory = directory
        self._run_id = ""
        self._held: dict[tuple[int, str], tuple[str, Arrays]] = {}
        #: By client: moves of its files, from one purpose to another, that a failing disk has left to be made.
        self._moves = defaultdict[int, list[tuple[str, str]]](list)
        if directory is not None:
            check_tree("--state-dir", directory)
            if not read_only:
                _make_writable(directory)

    def open(self, run_id: str) -> None:
        """Switches to a run. Files of other runs stay on disk and are not used."""
        if run_id != self._run_id:
            self._run_id = run_id
            self._held.clear()
            self._moves.clear()

    def get(self, client: int, purpose: str) -> tuple[str, Arrays] | None:
        """The label and the tensors kept for a client, or None; raises DataError if the file is damaged."""
        found = self._held.get((client, purpose)) or self.load(client, purpose)
        if found is not None:
            self._held[client, purpose] = found
        return found

    def put(self, client: int, purpose: str, arrays: Arrays, label: str = "") -> None:
        """Keeps copies of tensors in place of the tensors kept before; raises RunError if they cannot be written."""
        copies = {name: np.array(array, order="C") for name, array in arrays.items()}
        self.save(client, purpose, copies, label)
        self._held[client, purpose] = (label, copies)

    def get_before(self, client: int, purpose: str, round_number: int | None) -> Arrays | None:
        """The tensors kept before a round, even if the client has trained in it since. With None: the last ones.

        If the file of the last ones was removed, there are none: older ones do not take their place.
        """
        if self.get(client, purpose) is None:
            return None
        for name in (purpose, purpose + _BEFORE):
            kept = self.get(client, name)
            if kept is not None and (round_number is None or _is_before(kept[0], round_number)):
                return kept[1]
        return None

    def prepare(self, client: int, left: Mapping[str, Arrays], round_number: int, training: str) -> None:
        """Writes what a training of a round has left, by purpose; `settle` takes it in place of what is kept.

        Until then the client goes on from what it has: a training without a receipt must change nothing. `training` is
        the id of the model that was made. Raises RunError if the tensors cannot be written.
        """
        self.finish(client)
        for purpose in OF_TRAININGS:
            self._remove(client, purpose + _NEXT)  # of a training that was given up
        for purpose, arrays in left.items():
            if self.get(client, purpose) is None:
                self._remove(client, purpose + _BEFORE)
            self.put(client, purpose + _NEXT, arrays, f"{round_number} {training}")

    def hand_out(self, client: int, training: str, again: str) -> None:
        """The result of a training is given once more, as the model `again`, whose receipt is the one that counts.

        This may happen several times, also under the first name again: files that have another name by now, or only
        some of them, are still of the training. Raises RunError if this cannot be written.
        """
        self.finish(client)
        for purpose in OF_TRAININGS:
            found = self._prepared(client, purpose, training, _maker_of)
            if found is not None and _training_of(found[0]) != again:
                self.put(client, purpose + _NEXT, found[1], f"{round_of(found[0])} {again}{_MADE_BY}{training}")

    def settle(self, client: int, training: str) -> None:
        """Keeps what a training has left, whose receipt is kept, too.

        What the client began with stays beside it, because a client that trains again in this round starts from that.
        If the disk fails (RunError), the client goes on from this training all the same.
        """
        self.rename(client, self._take(client, training))

    def _take(self, client: int, training: str) -> list[tuple[str, str]]:
        """Takes what a training has left in place of what is kept, in memory; returns the moves that do so on disk.

        If the process ends between two moves, the file of the last round is missing: `settle_those_of` goes on.
        """
        moves = list[tuple[str, str]]()
        for purpose in OF_TRAININGS:
            if (found := self._prepared(client, purpose, training, _training_of)) is None:
                continue
            kept = self.get(client, purpose)
            # What is kept may be of a later round, if the run was resumed: that is not what the client began with.
            if kept is not None and _is_before(kept[0], int(round_of(found[0]))):
                self._held[client, purpose + _BEFORE] = kept
                moves.append((purpose, purpose + _BEFORE))
            self._held[client, purpose] = found
            del self._held[client, purpose + _NEXT]
            moves.append((purpose + _NEXT, purpose))
        return moves

    def settle_those_of(self, trainings: Callable[[], Container[str]]) -> None:
        """Keeps what the process before this one had prepared, if `trainings` has the id of the model that was made.

        `trainings` is called only if something was prepared, for each client anew: it may have to read much.
        """
        for client in list(self._moves):
            self.finish(client)
        purposes = "|".join(OF_TRAININGS)
        mine = re.compile(rf"{re.escape(self._run_id)}-client-(\d+)\.({purposes}){_NEXT}\.safetensors", re.ASCII)
        names = (path.name for path in self.directory.iterdir()) if self.directory is not None else ()
        for client in sorted({int(found[1]) for name in names if (found := mine.fullmatch(name))}):
            for training in self._answered(client, trainings):
                self.settle(client, training)

    def settle_in_memory(self, client: int, trainings: Callable[[], Container[str]]) -> None:
        """The same for one client, whose files stay as they are: they may be those of a node that runs, or a copy."""
        for training in self._answered(client, trainings):
            self._take(client, training)

    def _answered(self, client: int, trainings: Callable[[], Container[str]]) -> list[str]:
        """The trainings of a client that have left something to be settled on disk, and that `trainings` has."""
        labels = (self.label(client, purpose + _NEXT) for purpose in OF_TRAININGS)
        prepared = sorted({_training_of(label) for label in labels if label is not None})
        answered = trainings() if prepared else ()
        return [training for training in prepared if training in answered]

    def load(self, client: int, purpose: str) -> tuple[str, Arrays] | None:
        """The label and the tensors on disk, or None; raises DataError if the file is damaged."""
        path = self._path(client, purpose)
        if path is None or not path.exists():
            return None
        with _opened(path) as file:
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
            said = file.metadata() or {}
        check_digest(path, arrays, said, _REMEDY)
        return said.get("label", ""), arrays

    def label(self, client: int, purpose: str) -> str | None:
        """The text that was stored beside the tensors of a client (usually the round), or None if there is no file.

        `purpose` says what the tensors are, for example the client's head. No tensor is read. Raises DataError if the
        file is damaged.
        """
        path = self._path(client, purpose)
        if path is None or not path.exists():
            return None
        with _opened(path) as file:
            return str((file.metadata() or {}).get("label", ""))

    def save(self, client: int, purpose: str, arrays: Arrays, label: str) -> None:
        """Writes tensors to disk only, if there is a directory; raises RunError if they cannot be written."""
        path = self._path(client, purpose)
        if path is None:
            return
        aside = path.with_name(f".{path.name}.tmp")
        try:
            # Only the owner may read the file: it holds tensors that the client does not share.
            ordered = {name: np.asarray(array, order="C") for name, array in arrays.items()}
            with fresh(aside, 0o600) as file:
                write_all(file, safetensors.numpy.save(ordered, with_digest(ordered, {"label": label})))
            sync(aside)
            aside.replace(path)
            sync(path.parent)  # what was published must be known after a power cut, too: it is never drawn twice
        except OSError as error:
            with contextlib.suppress(OSError):
                aside.unlink(missing_ok=True)
            raise not_written(path, error) from error

    def rename(self, client: int, moves: Iterable[tuple[str, str]]) -> None:
        """Moves tensors on disk, each from one purpose to another, and replaces the tensors that were kept there.

        Raises RunError if the disk fails; `finish` makes the moves that are left.
        """
        self._moves[client] += moves
        self.finish(client)

    def finish(self, client: int) -> None:
        """Makes the moves that have failed so far; raises RunError if one fails again.

        What they move counts, and is nowhere else on the disk. So it must be at its place before anything is written.
        """
        moves = self._moves[client]
        while moves:
            self._move(client, *moves[0])
            del moves[0]

    def _move(self, client: int, purpose: str, other: str) -> None:
        """Moves tensors on disk, if they are there; raises RunError if that fails."""
        path, target = self._path(client, purpose), self._path(client, other)
        if path is None or target is None:
            return
        try:
            with contextlib.suppress(FileNotFoundError):  # an earlier try may have come so far
                path.replace(target)
            sync(path.parent)
        except OSError as error:
            raise not_written(target, error) from error

    def _prepared(
        self, client: int, purpose: str, training: str, said_by: Callable[[str], str]
    ) -> tuple[str, Arrays] | None:
        """What a training has left and is not settled; None if there is nothing, or if its label says another one."""
        name = purpose + _NEXT
        label = self._held[client, name][0] if (client, name) in self._held else self.label(client, name)
        return self.get(client, name) if label is not None and said_by(label) == training else None

    def _remove(self, client: int, purpose: str) -> None:
        """Removes tensors, if there are any; raises RunError if that fails."""
        self._held.pop((client, purpose), None)
        path = self._path(client, purpose)
        if path is not None:
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                raise not_written(path, error) from error

    def _path(self, client: int, purpose: str) -> Path | None:
        if self.directory is None:
            return None
        return self.directory / f"{self._run_id}-client-{client}.{purpose}.safetensors"


def _make_writable(directory: Path) -> None:
    """Makes a state directory if there is none; one that cannot be written is reported before the first training."""
    there = directory.exists()
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            pass
    except OSError as error:
        raise DataError(
            f"--state-dir {directory} cannot be used: {error.strerror}",
            "give a directory that can be written",
        ) from None
    if not there:
        tell_if_open("--state-dir", directory, "without that, this node cannot be started again")


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[Any]:
    try:
        check_regular(path)
        with safetensors.safe_open(path, framework="numpy") as file:
            yield file
    except (OSError, MemoryError, safetensors.SafetensorError) as error:
        raise DataError(f"{path} cannot be read: {error}", _REMEDY) from None


def optimizer_of(run: str) -> str:
    """The purpose for which the state of optimisers is kept. A run does not use the states of its local run."""
    return OPTIMIZER_ALONE if is_local(run) else OPTIMIZER


def round_of(label: str) -> str:
    """The round in the label of what a training has left. A version before this one wrote no training behind it."""
    return label.partition(" ")[0]


def _training_of(label: str) -> str:
    return label.partition(" ")[2].partition(_MADE_BY)[0]


def _maker_of(label: str) -> str:
    return label.partition(" ")[2].rpartition(_MADE_BY)[2]


def _is_before(label: str, round_number: int) -> bool:
    """Whether a label is that of an earlier round. A run that was resumed may be two rounds behind its nodes."""
    return not round_of(label).isdecimal() or int(round_of(label)) < round_number
