"""Inner products of the clients' last updates (HCCT, sections 3.1 to 3.4 and 3.10)."""

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedgsp.errors import ConfigError
from fedgsp.messages import Failure, Reveal, TensorSpec
from fedgsp.tensors.updates import LENGTH_BYTES, trainable_size
from fedgsp.tensors.weights import Weights, without_head
from top_server.evidence import Evidence
from top_server.grouping.request import listed
from top_server.groups.run import is_last, run_again, survey
from top_server.groups.taking import take
from top_server.groups.task import GroupOutcome, GroupTask
from top_server.managers.client import BrokenOff, or_reason
from top_server.models import INITIAL
from top_server.profiles.base import Profile
from top_server.profiles.options import UpdateOptions
from top_server.record.events.evidence import LayerChosen, Newcomers, NewcomersWait
from top_server.reveals import layer_scores
from top_server.reveals.spool import SketchSpool, UpdateSpool
from top_server.reveals.updates import Reveals, Updates, most_bytes

logger = logging.getLogger(__name__)

DEFAULT_SCORE = "robust"


@dataclass(eq=False)
class UpdateProfile(Profile[UpdateOptions]):
    """Takes the updates that clients reveal when they train, and computes their inner products before each round."""

    def __post_init__(self) -> None:
        self._without_head = self.options.similarity_of == "shared"
        self._sketch = self.options.sketch
        self._sketched = self.options.similarity == "sketch"
        self._view = self.options.first_view
        self._met: set[int] = set()
        length = whole = trainable_size(self._tensors)
        if not whole:
            raise ConfigError(
                "nothing of the model outside its head is trained, and updates are compared without that",
                "give --profile-option similarity_of=all",
            )
        if self.options.similarity == "layer":
            layer_scores.layers(self._tensors)  # refuses a model without layers to choose from
        if self._sketched:
            length = LENGTH_BYTES + self._sketch
            if length >= 4 * whole:
                logger.warning("sketches of %d bytes are no smaller than whole updates of %d", length, 4 * whole)
        self.updates = self._fresh(length)

    def save(self) -> dict[str, Any]:
        """What is known about the updates (rounds, length, clients). `write` puts the updates into files."""
        return {
            "met": sorted(self._met),
            "view": self._view,
            "length": self.updates.length,
            "round": self.updates.round,
            "rounds": self.updates.rounds,
        }

    def restore(self, saved: Mapping[str, Any]) -> None:
        """The same."""
        self._met, self._view = set(saved["met"]), saved["view"]
        self.updates.spool.close()
        self.updates = self._fresh(saved["length"])
        self.updates.round = saved["round"]
        self.updates.rounds = {int(client): number for client, number in saved["rounds"].items()}

    @property
    def reveals(self) -> Reveals:
        """The updates of this round."""
        return self.updates

    def write(self, folder: Path) -> None:
        """Writes the updates."""
        self.updates.spool.save(folder)

    def load(self, folder: Path) -> None:
        """The same; raises ValueError if updates are missing."""
        self.updates.spool.load(folder)
        if missing := set(self.updates.rounds) - set(self.updates.spool.clients):
            raise ValueError(f"the updates of clients {listed(missing)} are missing")

    async def gather(self, round_number: int) -> Evidence:
        """The Gram matrix (N, N) of the last updates, with NaN for clients without one. In round 1 there is none."""
        present = tuple(self.context.membership.clients)
        # A client whose model was lost may have its group's model by now.
        slots = self.context.models.slots
        self._met -= {client for client in self.progress.afresh if self.merging.untrained(client, slots)}
        newcomers = tuple(client for client in present if client not in self._met and not self._has_model(client))
        self._met.update(present)
        if round_number == 1:
            return Evidence(present, reveal=Reveal(self._view, self._without_head))
        async with self.updates.lock:
            self.updates.forget_older()
            if self.options.similarity == "layer" and self._view == "exact" and self.updates.spool.clients:
                # HCCT-E: once, the layer whose updates differ most is chosen, and only its part of the updates kept.
                whole = self.updates
                self.updates, chosen, scores = await asyncio.to_thread(self._cut, whole)
                self._view = f"layer:{chosen}"
                whole.spool.close()
                self.context.journal.record(LayerChosen(layer=chosen, scores=scores))
        updates, reveal = self.updates, Reveal(self._view, self._without_head)
        if newcomers and (missing := await self._welcome(round_number, newcomers, reveal)):
            # They miss this round, since they have nothing to start from, and are newcomers in the next one.
            self.context.journal.record(
                NewcomersWait(round=round_number, clients=list(newcomers), reason=str(missing))
            )
            self.silent.update(dict.fromkeys(newcomers, missing))
            self._met.difference_update(newcomers)
            present, newcomers = tuple(client for client in present if client not in newcomers), ()
        updates.round = round_number
        async with updates.lock:
            gram = await asyncio.to_thread(updates.spool.gram, present)
        return Evidence(present, pairwise={"gram": gram}, newcomers=newcomers, reveal=reveal)

    def close(self) -> None:
        """Gives back the spool's memory and disk."""
        self.updates.spool.close()

    @property
    def _tensors(self) -> tuple[TensorSpec, ...]:
        """The tensors whose updates are compared."""
        tensors = self.context.membership.tensors
        return without_head(tensors) if self._without_head else tensors

    def _fresh(self, length: int) -> Updates:
        assert self.context.config.run_dir is not None
        spool = (SketchSpool if self._sketched else UpdateSpool)(self.context.config.run_dir)
        return Updates(spool, length, most_bytes(self.context.membership.tensors, self._sketch))

    def _cut(self, updates: Updates) -> tuple[Updates, str, dict[str, float]]:
        """The chosen layer's part of the updates, the name of the layer, and the scores of all layers."""
        tensors = self._tensors
        layers, clients = layer_scores.layers(tensors), updates.spool.clients
        reading = self.options.layer_score or DEFAULT_SCORE
        scores = layer_scores.scores(reading, tensors, lambda columns: updates.spool.blocks(clients, columns))
        chosen = layer_scores.choose(scores)
        cut = self._fresh(layers[chosen].stop - layers[chosen].start)
        cut.round = updates.round
        for client in clients:
            cut.keep(client, updates.spool.vector(client, layers[chosen]))
        return cut, chosen, {name: float(score) for name, score in scores.items()}

    def _has_model(self, client: int) -> bool:
        """Whether a client has a model of its own, such as that of a group with which it trained as it had to wait."""
        return any(slot in self.context.models for slot in self.merging.welcome((client,)))

    async def _welcome(self, round_number: int, newcomers: tuple[int, ...], reveal: Reveal) -> Failure | None:
        """Lets newcomers train once, only for their updates, from the mean of the others' models.

        They keep this mean as their own model. Returns the reason if it could not be had.
        """
        context, merging = self.context, self.merging
        if merging.shared:
            return None  # they start from the global model and reveal their updates as they train
        others = tuple(client for client in context.membership.clients if client not in newcomers)
        starts = self.start(others) if self.options.newcomer_start == "mean" else ()
        starts = starts or ((context.models[INITIAL], 1.0),)
        task = GroupTask(0, "alone", newcomers, starts, reveal=reveal)
        outcome = await survey(context, self.progress, round_number, task, reveals=self.updates)
        slots = merging.welcome(newcomers)
        if len(starts) == 1 and starts[0][0].client is None:
            context.models.apply(dict.fromkeys(slots, starts[0][0]))
        elif slots:
            mean = await self._mean_of(round_number, outcome)
            if isinstance(mean, Failure):
                return mean
            context.models.put(slots, f"{context.run_id}/{round_number}/newcomers", mean)
        context.journal.record(Newcomers(round=round_number, clients=list(newcomers)))
        return None

    async def _mean_of(self, round_number: int, outcome: GroupOutcome) -> Weights | Failure:
        """The mean from which newcomers have trained; if its manager does not give it, it is made again elsewhere."""
        context = self.context
        while isinstance(mean := await take(context, outcome), BrokenOff) and not is_last(outcome.trace):
            outcome = await run_again(context, self.progress, round_number, outcome, mean.lost, self.updates)
        if isinstance(mean, BrokenOff) and mean.lost:
            await context.managers.discard(outcome.manager)
        return or_reason(mean)
