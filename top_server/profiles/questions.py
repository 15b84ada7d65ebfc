"""Profiles that ask the clients nothing, about their data, or how the models of the run do on their training data."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedgsp.messages import MOST_SAMPLES, Described, Evaluated, Failure, FailureCode, MemberDone
from fedgsp.parts import NoOptions
from fedgsp.seeds import stream
from top_server.evidence import Evidence
from top_server.grouping.cheapest_model import choices
from top_server.groups.initial import make_initial
from top_server.groups.lost import AllLostError
from top_server.groups.task import GroupTask
from top_server.models import Held, cluster_slot
from top_server.profiles.base import Answers, Profile
from top_server.profiles.options import LossOptions, ModelOptions
from top_server.record.events.evidence import ClustersChosen
from top_server.record.events.rounds import ClientSkipped, ModelLost
from top_server.remembered import remembered


class Nothing(Profile[NoOptions]):
    """The profile that asks the clients nothing: a grouping knows only their ids and their numbers of samples."""

    async def gather(self, round_number: int) -> Evidence:
        """Evidence with the ids of the present clients, and nothing else."""
        return Evidence(tuple(self.context.membership.clients))


@dataclass(eq=False)
class Histograms(Profile[NoOptions]):
    """Asks each client for the class histogram of its training part: raw counts per class (FedGSP, sec. 1.3).

    A client is asked once, and again if its number of training samples is another one: then its data have changed.
    """

    _known: dict[int, tuple[int, ...]] = remembered(tuple)
    #: Client -> training samples when it was asked.
    _samples: dict[int, int] = remembered()

    @property
    def histograms(self) -> Mapping[int, tuple[int, ...]]:
        """The usable histograms so far, shape (classes,) each."""
        return self._known

    async def gather(self, round_number: int) -> Evidence:
        """Histograms of shape (N, classes), of the clients that gave a usable one."""
        now = {client: member.train_samples for client, member in self.context.membership.clients.items()}
        unknown = tuple(
            client
            for client, samples in now.items()
            if client not in self._known or self._samples.setdefault(client, samples) != samples
        )
        if unknown:
            outcome = await self.ask(round_number, GroupTask(0, "describe", unknown))
            for done in outcome.done:
                self._samples[done.client] = now[done.client]
                self._take(round_number, done)
        known = tuple(  # a client that has come back with other data meanwhile is asked again in the next round
            client
            for client, member in self.context.membership.clients.items()
            if client in self._known and self._samples.get(client, member.train_samples) == member.train_samples
        )
        return Evidence(known, np.array([self._known[client] for client in known], np.int64) if known else None)

    def restore(self, saved: Mapping[str, Any]) -> None:
        """The same; states of older versions do not have the numbers of samples."""
        super().restore({"samples": {}, **saved})
        of = {len(counts) for counts in self._known.values()}
        if len(of) > 1 or not all(0 < sum(counts) <= MOST_SAMPLES for counts in self._known.values()):
            raise ValueError(f"class histograms count nothing, too much, or {sorted(of)} classes")

    def _take(self, round_number: int, done: MemberDone) -> None:
        counts = done.result.class_counts if isinstance(done.result, Described) else ()
        classes = self.context.membership.standard.num_classes
        if len(counts) == classes and 0 < sum(counts) <= MOST_SAMPLES:
            self._known[done.client] = counts
            return
        self._known.pop(done.client, None)
        reason = (
            f"its class histogram has {len(counts)} entries with {sum(counts)} samples, the task {classes} classes:"
            " let class_counts() count the samples of each"
        )
        self.silent[done.client] = Failure(FailureCode.BAD_ORDER, reason)
        self.context.journal.record(
            ClientSkipped(
                round=round_number,
                group=0,
                program="describe",
                client=done.client,
                code=FailureCode.BAD_ORDER.name,
                reason=reason,
            )
        )


class TrainingAccuracy(Profile[NoOptions]):
    """Asks every client in every round for the training accuracy of the global model (FedFA as in HCCT, section 4)."""

    async def gather(self, round_number: int) -> Evidence:
        """Column `train_accuracy` of accuracies in 0..1, of the clients that answered."""
        everyone = tuple(self.context.membership.clients)
        answers = await self.evaluate(round_number, "evaluate-training", everyone, self.start(everyone))
        clients = tuple(sorted(client for client in answers if answers[client].judged))
        accuracies = [[answers[client].correct / answers[client].judged] for client in clients]
        return Evidence(clients, figures={"train_accuracy": np.array(accuracies).reshape(-1, 1)})


class Losses(Profile[LossOptions]):
    """Training loss of every cluster's model on each client (IFCA and FLSC, section 4).

    The models begin with different weights: with equal weights all clients would choose the first model. The result
    depends much on these weights, and IFCA's authors start several times. Event `clusters_chosen` has the training
    loss, by which restarts can be compared without the test parts.
    """

    async def gather(self, round_number: int) -> Evidence:
        """Matrix `costs` (N, models) of mean losses, of the clients that evaluated all models on training samples."""
        count = self.options.models
        hosted = self.context.membership.clients
        everyone = tuple(hosted)
        columns, _ = await _of_each_model(
            self, round_number, "evaluate-training", everyone, first=self.options.restart * count
        )
        clients = tuple(client for client in everyone if all(client in column for column in columns))
        losses = [[column[client].loss_sum / column[client].samples for column in columns] for client in clients]
        costs = np.array(losses).reshape(-1, count)
        if clients:
            chosen = choices(costs)
            least = costs[np.arange(len(costs)), chosen]
            known = np.isfinite(least)  # a client without a finite loss is in no group
            sizes = np.array([hosted[client].train_samples for client in clients])
            self.context.journal.record(
                ClustersChosen(
                    round=round_number,
                    clients=np.bincount(chosen[known], minlength=count).tolist(),
                    train_loss=np.average(least[known], weights=sizes[known]) if known.any() else None,
                )
            )
        return Evidence(clients, figures={"costs": costs})


class ModelDistances(Profile[ModelOptions]):
    """Distances between the clusters' models and the models that clients trained last (FeSEM, section 6).

    The models begin with different weights; a client without a model of its own draws one at random. A client that is
    lost, or that could not be asked, is left out, and keeps its model.
    """

    async def gather(self, round_number: int) -> Evidence:
        """Matrix `costs` (N, models): squared distances. Without a model of its own a client has 0 for one, else 1."""
        count = self.options.models
        clients = tuple(self.context.membership.clients)
        own = {client: held for client, held in self.progress.local_models.items() if client in clients}
        columns, refused = await _of_each_model(self, round_number, "distance", own, own)
        rng = stream(self.context.config.seed, "model-distances", round_number)
        costs = (rng.integers(count, size=len(clients))[:, None] != np.arange(count)).astype(np.float64)
        compared = {client for client in own if all(client in column for column in columns)}
        away = own.keys() - compared - refused
        for row, client in enumerate(clients):
            if client in compared:
                costs[row] = [column[client].squared_distance for column in columns]
        for client in sorted(refused):
            why = "it cannot be compared with the models of the clusters"
            self.context.journal.record(ModelLost(round=round_number, client=client, reason=why))
        if clients and away.issuperset(clients):
            what = "no client could compare its model with those of the clusters"
            raise AllLostError(what, "see events.jsonl for the reasons")
        evidence = Evidence(clients, figures={"costs": costs}, retain=True, without_model=tuple(sorted(refused)))
        return evidence.of([client for client in clients if client not in away])


async def _of_each_model(
    profile: Profile[LossOptions] | Profile[ModelOptions],
    round_number: int,
    program: str,
    clients: Collection[int],
    own_starts: Mapping[int, Held] | None = None,
    first: int = 0,
) -> tuple[list[Mapping[int, Evaluated]], set[int]]:
    """For each cluster's model, the answers by client; and the clients that refused one, though they were there.

    Models that are missing are made, numbered from `first` on.
    """
    given, refused = list[Mapping[int, Evaluated]](), set[int]()
    for cluster in range(profile.options.models):
        slot = cluster_slot(cluster)
        if slot not in profile.context.models:
            await make_initial(profile.context, profile.progress, slot, first + cluster)
        start = ((profile.context.models[slot], 1.0),)
        answers = Answers()
        if clients:
            answers = await profile.answers(round_number, program, clients, start, own_starts)
        given.append(answers.given)
        refused |= answers.refused
    return given, refused
