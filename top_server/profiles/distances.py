"""Distances between the clients' data, estimated by networks that tell the data apart (FedCollab, section 5.1)."""

import json
import logging
import math
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedgsp.discriminators import most_bytes
from fedgsp.errors import ConfigError, RunError
from fedgsp.messages import Discrimination, DiscriminatorSettings, Failure, FailureCode, GroupResult
from fedgsp.tensors.weights import Weights
from top_server.evidence import Evidence
from top_server.groups.lost import unanswered
from top_server.groups.run import survey
from top_server.groups.task import GroupOutcome, GroupTask
from top_server.managers.client import or_reason
from top_server.profiles.base import Profile
from top_server.profiles.distance_file import Distance, Recorded, by_pair
from top_server.profiles.measurements import Measurement, measurements
from top_server.profiles.options import DistanceOptions
from top_server.record.directory import RunDirectory
from top_server.record.events.evidence import DistancesFound, NotCompared
from top_server.record.history import plain
from top_server.record.room import write_text
from top_server.remembered import kept, remembered

logger = logging.getLogger(__name__)

#: How often a client that fails every time is measured, at most; and one whose node is lost every time.
MOST_TRIES, MOST_LOSSES = 3, 10


def _to_json(known: Mapping[tuple[int, int], Distance]) -> Any:
    return [[*pair, *plain(list(distance))] for pair, distance in known.items()]


def _from_json(saved: Any) -> dict[tuple[int, int], Distance]:
    return {(one, other): Distance(found, math.nan if error is None else error) for one, other, found, error in saved}


@dataclass(eq=False)
class Distances(Profile[DistanceOptions]):
    """Measures every pair of clients once, when the later client joins; records the result in the run directory."""

    _known: dict[tuple[int, int], Distance] = kept(dict, _to_json, _from_json, init=False)
    #: Clients that were measured.
    _met: set[int] = kept(set, sorted, set, init=False)
    #: Samples that clients train on; 0 before the first measurement.
    _samples: int = kept(int, int, int, init=False)
    _sizes: dict[int, int] = remembered()
    _failures: dict[int, int] = remembered()
    _losses: dict[int, int] = remembered()
    #: Seconds and bytes of all measurements.
    _spent: tuple[float, int] = kept(lambda: (0.0, 0), list, tuple, init=False)

    def __post_init__(self) -> None:
        self._recorded = self.options.distances or Recorded()
        self._known = dict(self._recorded.known)
        self._met = {client for pair in self._known for client in pair}

    def restore(self, saved: Mapping[str, Any]) -> None:
        """The same; states of older versions do not have the losses."""
        super().restore({"losses": {}, **saved})

    async def gather(self, round_number: int) -> Evidence:
        """Matrices `distances` (N, N), in -1..1, and `distance_errors` (N, N), their standard errors.

        Both are NaN for clients that could not be compared; an error is also NaN if a file of distances has none.
        Newcomers are those that were measured in this round, after the first: also clients that failed before. Clients
        whose nodes are away keep their distances; those to newcomers are not known.
        """
        hosted = self.context.membership.clients
        clients = tuple(hosted)
        if round_number == 1 and self._recorded.path and self._met.isdisjoint(clients):
            logger.warning("option distances: %s has none of this run's clients", self._recorded.path)
        self._check_sizes(round_number, {client: hosted[client].train_samples for client in clients})
        for client in clients:
            if self._sizes.get(client, hosted[client].train_samples) != hosted[client].train_samples:
                self._forget(client)  # it has come back with other data
        new = tuple(client for client in clients if client not in self._met)
        if new:
            await self._measure(round_number, clients, new)
        if new or not self._sizes.keys() >= set(clients):
            self._sizes.update((client, hosted[client].train_samples) for client in clients)
            self._record()
        newcomers = new if round_number > 1 else ()
        left_out = self.context.membership.left_out  # they do not come back
        others = {one: size for one, size in self._sizes.items() if one not in hosted and one not in left_out}
        everybody = tuple(sorted({*clients, *others}))
        distances, errors = self._matrices(everybody)
        pairwise = {"distances": distances, "distance_errors": errors}
        now = self.context.membership.clients  # measuring takes minutes, in which clients may have come back
        away = {one: size for one, size in others.items() if one not in now}
        return Evidence(everybody, pairwise=pairwise, newcomers=newcomers, away=away)

    def _check_sizes(self, round_number: int, sizes: Mapping[int, int]) -> None:
        """Refuses recorded distances of other data; a client that joins later is measured again instead."""
        for client in sorted((sizes.keys() & self._recorded.sizes.keys()) - self._sizes.keys()):
            before, now = self._recorded.sizes[client], sizes[client]
            if before == now:
                continue
            if round_number == 1:
                raise ConfigError(
                    f"option distances: {self._recorded.path} is of other data: client {client} had {before} training"
                    f" samples, and has {now}",
                    "give the distances.json of a run with the same task options, or leave the option out",
                )
            self._forget(client)

    def _forget(self, client: int) -> None:
        self._met.discard(client)
        self._failures.pop(client, None)
        self._losses.pop(client, None)
        self._known = {pair: distance for pair, distance in self._known.items() if client not in pair}

    async def _measure(self, round_number: int, clients: tuple[int, ...], new: tuple[int, ...]) -> None:
        hosted = self.context.membership.clients
        able = [client for client in clients if hosted[client].train_samples >= 2]  # a part to train on, one to judge
        arrived = [client for client in able if client in new]
        if len(able) >= 2 and arrived:
            await self._tell_apart(round_number, able, arrived)
        for client in set(new) - set(able):
            self._note(round_number, client, "it has less than 2 training samples")
            self._met.add(client)

    async def _tell_apart(self, round_number: int, able: Sequence[int], arrived: Sequence[int]) -> None:
        """Measures the arrived clients with all others. Notes nothing if no client's answer can be used."""
        context, begin = self.context, time.monotonic()
        sizes = {client: context.membership.clients[client].train_samples for client in able}
        before = [client for client in able if client not in arrived]
        # All clients train on equally many samples: as many as the smallest can spare. A smaller client that comes
        # later decides for its own pairs only.
        samples = self._samples or min(sizes[client] for client in before or able) // 2
        plan = measurements(sizes, arrived, samples)
        if self.options.shared:
            # A shared network has an output for everybody: newcomers make it learn again.
            plan = [Measurement(min(samples, min(sizes.values()) // 2), tuple(able))]
        logger.info("round=%d measuring the distances between the data of %d clients", round_number, len(able))
        outcomes: list[GroupOutcome] = []
        found: dict[tuple[int, int], Distance] = {}
        for measurement in plan:
            outcome = await survey(context, self.progress, round_number, self._task(measurement))
            taken = await self._take(outcome, len(measurement.clients))
            pairs = (pair for pair in taken if measurement.tells(pair) and not outcome.left_out.intersection(pair))
            found.update((pair, taken[pair]) for pair in pairs)
            outcomes.append(outcome)
        if all(len(outcome.left_out) == len(outcome.task.clients) for outcome in outcomes):
            failures = [failure for outcome in outcomes for failure in outcome.failures]
            raise unanswered(f"no client's data could be told apart from the others': {failures[-1]}", failures)
        self._known.update((pair, distance) for pair, distance in found.items() if set(arrived).intersection(pair))
        self._samples = samples
        left_out = set().union(*(outcome.left_out for outcome in outcomes))
        failed = left_out.intersection(arrived)
        for client in sorted(left_out.intersection(before)):
            self._note(round_number, client, "it was skipped; its distances to newcomers stay unknown")
        lost = set[int]().union(*(outcome.out_of_reach for outcome in outcomes))
        raised = set[int]().union(*(outcome.left_out - outcome.out_of_reach for outcome in outcomes))
        self._note_failures(round_number, failed, lost - raised)
        self._met.update(set(arrived) - failed)
        seconds, moved = round(time.monotonic() - begin, 3), sum(map(_bytes_moved, outcomes))
        self._spent = self._spent[0] + seconds, self._spent[1] + moved
        told = [client for client in able if client not in left_out]
        context.journal.record(DistancesFound(round=round_number, clients=told, seconds=seconds, bytes=moved))

    def _note_failures(self, round_number: int, clients: Iterable[int], lost: Collection[int]) -> None:
        """A client that fails is measured again in the next round, up to MOST_TRIES times; a lost one, MOST_LOSSES."""
        for client in sorted(clients):
            times, most = (self._losses, MOST_LOSSES) if client in lost else (self._failures, MOST_TRIES)
            times[client] = times.get(client, 0) + 1
            last = times[client] >= most
            if last:
                self._met.add(client)
            then = "is not asked again" if last else "is asked again in the next round"
            self._note(round_number, client, f"it was skipped, and {then}")

    def _note(self, round_number: int, client: int, reason: str) -> None:
        self.context.journal.record(NotCompared(round=round_number, client=client, reason=reason))

    def _task(self, measurement: Measurement) -> GroupTask:
        samples, clients, newcomers = measurement
        chosen = self.options
        settings = DiscriminatorSettings(
            samples,
            chosen.local_steps,
            chosen.discriminator_batch,
            chosen.discriminator_rate,
            self.context.config.seed,
            chosen.shared,
            chosen.feature_scale,
        )
        plan = Discrimination(
            settings, chosen.exchanges, chosen.judge_every, chosen.patience, newcomers, chosen.estimate
        )
        networks, outputs = (1, len(clients)) if chosen.shared else (len(clients) - 1, 1)
        most = most_bytes(networks, outputs, self.context.membership.standard.num_classes)
        return GroupTask(0, "discriminate", clients, discrimination=plan, max_bytes=most)

    async def _take(self, outcome: GroupOutcome, clients: int) -> dict[tuple[int, int], Distance]:
        """The distances that a group manager found, by pair; raises RunError if they cannot be used."""
        taken: Weights | Failure = Failure(FailureCode.NO_SUCH_MODEL, "the group ended without a result")
        if isinstance(outcome.result, Failure):
            taken = outcome.result
        elif outcome.result.ref is not None:
            most = 8 * (2 * clients + 1) * (clients + 1) + 192  # tensors are padded
            taken = or_reason(await outcome.manager.client.take(outcome.result.ref, None, most))
        if isinstance(taken, Failure):
            raise unanswered(f"how far the clients' data are apart was not found: {taken}", [taken])
        order, *matrices = (taken.arrays.get(name, np.empty(0)) for name in ("clients", "distances", "errors"))
        if order.ndim != 1 or {matrix.shape for matrix in matrices} != {(len(order), len(order))}:
            raise RunError("a group manager sent distances that cannot be used", "run the same version everywhere")
        distances, errors = (matrix.astype(np.float64) for matrix in matrices)
        return by_pair(order.tolist(), distances, errors)

    def _matrices(self, clients: Sequence[int]) -> NDArray[np.float64]:
        """The distances and their errors, shape (2, N, N)."""
        same, unknown = Distance(0.0, 0.0), Distance(math.nan, math.nan)
        known, count = self._known, len(clients)
        cells = [same if one == other else known.get((one, other), unknown) for one in clients for other in clients]
        return np.array(cells).reshape(count, count, 2).transpose(2, 0, 1)

    def _record(self) -> None:
        """Writes all distances into the run directory; option `distances` of another run reads that file."""
        assert self.context.config.run_dir is not None
        clients = sorted(self._sizes)
        distances, errors = self._matrices(clients)
        document = {
            "clients": clients,
            "distances": plain(distances),  # null for a pair that could not be compared
            "errors": plain(errors),
            "estimate": self.options.estimate,
            "sizes": [self._sizes.get(client, 0) for client in clients],
            "shared": self.options.shared,
            "seconds": round(self._spent[0], 3),
            "bytes": self._spent[1],
        }
        path = RunDirectory(self.context.config.run_dir).distances
        write_text(path, json.dumps(document) + "\n")


def _bytes_moved(outcome: GroupOutcome) -> int:
    result = outcome.result
    return result.bytes_direct + result.bytes_relayed if isinstance(result, GroupResult) else 0
