"""Updates: how alike the clients' last updates are (HCCT, sections 3.1 to 3.4 and 3.10)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedgsp.errors import ConfigError
from fedgsp.messages import Failure, Reveal, TensorSpec
from fedgsp.updates import LENGTH_BYTES, SKETCH_BYTES, trainable_size
from fedgsp.weights import Weights, total_bytes, without_head
from top_server.evidence import Evidence
from top_server.grouping.options import Options
from top_server.groups.task import GroupTask
from top_server.models import INITIAL
from top_server.profiles.base import Profile
from top_server.record.directory import RunDirectory
from top_server.reveals import layer_scores
from top_server.reveals.gram import SketchSpool, UpdateSpool
from top_server.run import Run

logger = logging.getLogger(__name__)

SIMILARITIES = ("exact", "layer", "sketch")
DEFAULT_SKETCH = "16384"
#: Options that only one similarity reads.
_OF_SIMILARITY = {"sketch_bytes": "sketch", "layer_score": "layer"}


class UpdateOptions(NamedTuple):
    """Options of --grouping-option that say how updates are compared, and where newcomers start."""

    similarity: str
    similarity_of: str
    layer_score: str
    sketch_bytes: int
    newcomer_start: str


class Updates:
    """What clients revealed last: `length` numbers each, all of one view."""

    def __init__(self, spool: UpdateSpool | SketchSpool, length: int, max_bytes: int) -> None:
        self.spool = spool
        self.max_bytes = max_bytes
        #: Held by whoever uses the spool, which is for one thread at a time.
        self.lock = asyncio.Lock()
        #: The round whose updates are coming in.
        self.round = 1
        self.length = length
        #: Client -> the round of its update, for those that have one.
        self.rounds: dict[int, int] = {}

    def put(self, client: int, shown: Weights) -> str:
        """Takes one client's vector; the reason if it is not usable, or nothing."""
        vector: NDArray[Any] | None = shown.arrays.get("update")
        if vector is None or len(shown.arrays) != 1 or vector.ndim != 1 or vector.dtype != self.spool.dtype:
            return f"what it revealed is not one {self.spool.dtype} vector named update"
        return self.keep(client, vector)

    def keep(self, client: int, vector: NDArray[Any]) -> str:
        """The same with the vector itself."""
        if len(vector) != self.length:
            return f"what it revealed has {len(vector)} numbers, not {self.length}"
        try:
            self.spool.put(client, vector)
        except ValueError as error:
            return str(error)
        self.rounds[client] = self.round
        return ""

    def forget(self, client: int) -> None:
        """Nothing is known of a client any more."""
        self.spool.forget(client)
        self.rounds.pop(client, None)

    def came(self, client: int) -> bool:
        """Whether a client has shown its update of this round."""
        return self.rounds.get(client) == self.round

    def forget_older(self) -> None:
        """A client that revealed nothing in this round is as good as unknown: what it showed before is out of date."""
        for client in self.spool.clients:
            if not self.came(client):
                self.forget(client)


def most_bytes(tensors: tuple[TensorSpec, ...], sketch: int) -> int:
    """What a client may bring: a model, an update, which is float32 whatever the model is, or a sketch."""
    return max(total_bytes(tensors), 4 * trainable_size(tensors), LENGTH_BYTES + sketch) + 8


class UpdateProfile(Profile):
    """In every round clients reveal a view of their updates; before the next one their inner products are taken."""

    options = ("similarity", "similarity_of", "layer_score", "sketch_bytes", "newcomer_start")

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        chosen = self.read(run.options["profile"])
        self._similarity = chosen.similarity
        self._without_head = chosen.similarity_of == "shared"
        self._score = chosen.layer_score
        self._sketch = chosen.sketch_bytes
        self._newcomer_start = chosen.newcomer_start
        self._view = f"sketch:{self._sketch}" if self._similarity == "sketch" else "exact"
        self._met: set[int] = set()
        sketched = self._similarity == "sketch"
        length = whole = trainable_size(self._tensors)
        if not whole:
            raise ConfigError(
                "nothing of the model outside its head is trained, and updates are compared without that",
                "give --grouping-option similarity_of=all",
            )
        if sketched:
            length = LENGTH_BYTES + self._sketch
            if length >= 4 * whole:
                logger.warning("sketches of %d bytes are no smaller than whole updates of %d", length, 4 * whole)
        run.updates = self._fresh(length)

    @classmethod
    def read(cls, given: Mapping[str, str]) -> UpdateOptions:
        """How updates are compared."""
        options = Options("updates", given, cls.options, "profile")
        chosen = UpdateOptions(
            options.choice("similarity", SIMILARITIES),
            options.choice("similarity_of", ("all", "shared")),
            options.choice("layer_score", tuple(layer_scores.READINGS)),
            int(options.choice("sketch_bytes", SKETCH_BYTES, DEFAULT_SKETCH)),
            options.choice("newcomer_start", ("mean", "initial")),
        )
        for name, needed in _OF_SIMILARITY.items():
            if name in given and chosen.similarity != needed:
                raise ConfigError(
                    f"option {name} says nothing where similarity is {chosen.similarity}",
                    f"give similarity={needed} too",
                )
        return chosen

    def save(self) -> dict[str, Any]:
        """Which updates there are, and when they came."""
        updates = self._updates
        return {
            "met": sorted(self._met),
            "view": self._view,
            "length": updates.length,
            "round": updates.round,
            "rounds": updates.rounds,
        }

    def restore(self, saved: Mapping[str, Any]) -> None:
        """The same."""
        self._met, self._view = set(saved["met"]), saved["view"]
        self._updates.spool.close()
        self.run.updates = updates = self._fresh(saved["length"])
        updates.round = saved["round"]
        updates.rounds = {int(client): number for client, number in saved["rounds"].items()}

    def write(self, folder: Path) -> None:
        """The updates themselves."""
        self._updates.spool.save(folder)

    def load(self, folder: Path) -> None:
        """The same."""
        self._updates.spool.load(folder)

    async def gather(self, round_number: int) -> Evidence:
        """The Gram matrix of the last updates; rows of clients without one are NaN. None before the first round."""
        run, updates = self.run, self._updates
        present = tuple(run.membership.clients)
        # One whose model was lost may have its group's by now.
        self._met -= {client for client in run.merging.afresh if run.merging.untrained(client)}
        newcomers = tuple(client for client in present if client not in self._met)
        self._met.update(present)
        reveal = Reveal(self._view, self._without_head)
        if round_number == 1:
            return Evidence(present, reveal=reveal)
        async with updates.lock:
            updates.forget_older()
            if self._similarity == "layer" and self._view == "exact" and updates.spool.clients:
                await self._choose_layer(updates)
        updates, reveal = self._updates, Reveal(self._view, self._without_head)
        if newcomers:
            await self._welcome(round_number, newcomers, reveal)
        updates.round = round_number
        async with updates.lock:
            gram = await asyncio.to_thread(updates.spool.gram, present)
        return Evidence(present, pairwise={"gram": gram}, newcomers=newcomers, reveal=reveal)

    def close(self) -> None:
        """Gives back the spool's memory and disk."""
        self._updates.spool.close()

    @property
    def _tensors(self) -> tuple[TensorSpec, ...]:
        """What the updates consist of."""
        tensors = self.run.membership.tensors
        return without_head(tensors) if self._without_head else tensors

    @property
    def _updates(self) -> Updates:
        assert self.run.updates is not None
        return self.run.updates

    def _fresh(self, length: int) -> Updates:
        assert self.run.config.run_dir is not None
        spool = (SketchSpool if self._similarity == "sketch" else UpdateSpool)(
            RunDirectory(self.run.config.run_dir).path
        )
        return Updates(spool, length, most_bytes(self.run.membership.tensors, self._sketch))

    async def _choose_layer(self, updates: Updates) -> None:
        """HCCT-E: picks the layer whose updates differ most, once, and keeps that slice of what is known."""
        self.run.updates, chosen, scores = await asyncio.to_thread(self._cut, updates)
        self._view = f"layer:{chosen}"
        updates.spool.close()
        self.run.journal.record("layer_chosen", layer=chosen, scores=scores)

    def _cut(self, updates: Updates) -> tuple[Updates, str, dict[str, float]]:
        """One layer's part of the updates, its name, and the scores of all."""
        tensors = self._tensors
        layers, clients = layer_scores.layers(tensors), updates.spool.clients
        scores = layer_scores.scores(self._score, tensors, lambda columns: updates.spool.blocks(clients, columns))
        chosen = layer_scores.choose(scores)
        cut = self._fresh(layers[chosen].stop - layers[chosen].start)
        cut.round = updates.round
        for client in clients:
            parts = [block[0].copy() for block in updates.spool.blocks([client], layers[chosen])]
            cut.keep(client, np.concatenate(parts))
        return cut, chosen, {name: float(score) for name, score in scores.items()}

    async def _welcome(self, round_number: int, newcomers: tuple[int, ...], reveal: Reveal) -> None:
        """Lets newcomers train once, for their updates alone, from the mean of the others' models."""
        run, merging = self.run, self.run.merging
        if merging.shared:
            return  # they start from the global model and reveal their updates as they train
        others = tuple(client for client in run.membership.clients if client not in newcomers)
        starts = merging.start(others) if self._newcomer_start == "mean" else ()
        starts = starts or ((run.models[INITIAL], 1.0),)
        task = GroupTask(0, "alone", newcomers, starts, reveal=reveal)
        outcome = await run.survey(round_number, task)
        run.journal.record("newcomers", round=round_number, clients=list(newcomers))
        if len(starts) == 1 and starts[0][0].client is None:
            merging.welcome(newcomers, starts[0][0])
            return
        weights = await run.take(outcome)
        if isinstance(weights, Failure):
            logger.warning("round=%d the newcomers start from the initial model: %s", round_number, weights)
            return
        held = run.models.put([f"start of round {round_number}"], f"{run.run_id}/{round_number}/newcomers", weights)
        merging.welcome(newcomers, held)
        run.models.drop(f"start of round {round_number}")
