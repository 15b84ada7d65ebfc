"""Relay: the model travels from client to client, each trains it and hands it on.

The whole chain is declared at once: every order names the promised model it starts from, so the chain drives itself.
This program only watches, and steps in when a hop fails or stalls, or a model is refused.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from fedgsp.messages import Failure, FailureCode, GroupResult, Member, SourceKind, Start, Train, Trained
from fedgsp.weights import Weights
from group_manager.group import Group
from group_manager.members import Ticket
from group_manager.norms import Norms
from group_manager.order import client_order

#: A reader that could not fetch may have failed because the holder is gone.
HOLDER_GONE = (FailureCode.UNREACHABLE, FailureCode.CUT_SHORT, FailureCode.STALLED)
#: Or because what it was given is no model to train: then this process looks at it itself.
BAD_MODEL = (
    FailureCode.NO_SUCH_MODEL,
    FailureCode.CUT_SHORT,
    FailureCode.TOO_LONG,
    FailureCode.WRONG_DIGEST,
    FailureCode.WRONG_SHAPES,
    FailureCode.NOT_FINITE,
    FailureCode.BAD_STREAM,
)
#: How often a member trains in a round whose node loses the result; a node that always does must not stop the others.
MOST_TRIES = 3
#: Attempts of one manager; those of the next one have higher numbers.
ATTEMPTS = 1 << 16


@dataclass(frozen=True, slots=True)
class Hop:
    """A member that has trained, or is to, and the id of its result."""

    member: Member
    model_id: str


@dataclass(frozen=True, slots=True)
class Declared:
    """A hop on its way."""

    hop: Hop
    start: Start
    ticket: Ticket


async def run(group: Group) -> GroupResult | Failure:
    """Walks the chain; returns the last model, or why there is none. Members that fail are skipped."""
    chain = _Chain(group)
    await chain.recall()
    while chain.remaining or chain.trail:
        model = await chain.walk()
        if model is not None:
            return chain.result(model)
    return Failure(chain.reason.code, f"no member trained; the last reason: {chain.reason.detail}")


class _Chain:
    """The trail of finished hops, oldest first, and the members that remain, in order."""

    def __init__(self, group: Group) -> None:
        request = group.request
        assert request.training is not None
        self.group = group
        self.trail: list[Hop] = []
        self.samples: dict[int, int] = {}
        self.reason = Failure(FailureCode.NODE_LOST, "no member of the group is there")
        self._prefix = f"{request.run_id}/{request.round}/{request.group}/relay/"
        self._attempt = request.attempt * ATTEMPTS
        self._tries: Counter[int] = Counter()
        self._norms = Norms(group) if request.most_update_ratio else None
        #: Hops that were taken before there was anything to judge them by, and the lengths of their updates.
        self._unjudged: list[tuple[Hop, float]] = []
        members = {member.client: member for member in request.members}
        for finished in request.finished:
            if finished.member is not None and finished.model is not None:
                member = members.pop(finished.member.client, finished.member)
                self.trail.append(Hop(member, finished.model.id))
                self.samples[member.client] = finished.member.samples
        clients = request.planned or tuple(member.client for member in request.members)
        order = client_order(clients, request.shuffle, request.training.seed, request.round, request.group)
        self.remaining = [members[client] for client in order if client in members]

    async def recall(self) -> None:
        """Finds the last good model of a chain that another manager began."""
        if not self.group.request.attempt:
            return
        await self.group.recall(self._prefix, [(hop.member, hop.model_id) for hop in self.trail])
        self._roll_back()
        _let_go(self.group, self.trail)

    async def walk(self) -> Weights | None:
        """Declares the rest of the chain and watches it to its end, or until something fails: then who is at fault is
        passed over, and None returned.
        """
        group = self.group
        declared = self._declare()
        self._attempt += 1
        failed = await self._watch(declared)
        if failed is None:
            collected = await group.collect(self.trail[-1].model_id, group.request.tensors)
            if isinstance(collected, Weights):
                return collected
            failed = collected
        self.reason = failed
        for hop in declared[max(0, len(declared) - len(self.remaining)) :]:
            group.cancel(hop.ticket)
        if self.trail and failed.code in HOLDER_GONE:
            await group.check(self.trail[-1].member.node)
        if self._roll_back():
            return None
        refused = await self._refused(failed)
        if refused is not None:
            self._pass_over_the_last(refused)
        elif self.remaining:
            group.skipped(self.remaining.pop(0), failed)
        return None

    def result(self, model: Weights) -> GroupResult:
        """The end of the chain."""
        total = sum(self.samples[hop.member.client] for hop in self.trail)
        ref = model.ref(self.trail[-1].model_id)
        return GroupResult(ref, total, self.group.bytes_direct, self.group.bytes_relayed)

    def _declare(self) -> list[Declared]:
        """Orders the whole rest of the chain."""
        group, request = self.group, self.group.request
        last = self.trail[-1] if self.trail else None
        declared = []
        for position, member in enumerate(self.remaining, start=len(self.trail)):
            start = (
                group.start_of(member, keep=False)
                if last is None
                else group.start_from(last.model_id, last.member, member)
            )
            key = group.key("train", position, self._attempt)
            hop = Hop(member, f"{self._prefix}{position}.{self._attempt}")
            work = Train(start, hop.model_id, request.training, request.reveal)
            declared.append(Declared(hop, start, group.submit(member, key, work)))
            last = hop
        return declared

    async def _watch(self, declared: list[Declared]) -> Failure | None:
        """Takes hop after hop into the trail; why the next one cannot be."""
        group = self.group
        for hop in declared:
            outcome = await group.outcome(hop.ticket)
            if not isinstance(outcome, Trained) or outcome.ref is None:
                return outcome if isinstance(outcome, Failure) else _no_model(hop.hop.member)
            length = 0.0
            if self._norms is not None:
                found = await self._norms.measure(hop.start.model_id, hop.hop.model_id)
                refused = found if isinstance(found, Failure) else self._judge(self._norms, hop.hop, found)
                if refused is not None:
                    return refused
                assert isinstance(found, float)
                length = found
            member = self.remaining.pop(0)
            if outcome.source is not None and outcome.source.kind is SourceKind.MANAGER:
                group.by_way_of_here(hop.start.model_id)
            self.trail.append(hop.hop)
            self.samples[member.client] = outcome.samples
            group.done(member, len(self.trail) - 1, await group.with_update(outcome), length)
            if not self._unjudged:
                _let_go(group, self.trail)
        return None

    def _judge(self, norms: Norms, hop: Hop, length: float) -> Failure | None:
        """Why a hop's model is not gone on from; as soon as anything can be judged, hops before it are judged too.

        If one of these is refused, it and those after it are put back to the head of what remains.
        """
        self._unjudged.append((hop, length))
        usual = norms.usual([length for _, length in self._unjudged])
        if usual is None:
            return None
        unjudged, self._unjudged = self._unjudged, []
        for judged, length in unjudged:
            refused = norms.judge(length, usual)
            if refused is None:
                continue
            if judged is not hop:
                place = self.trail.index(judged)
                back = self.trail[place:]
                self.trail, self.remaining = self.trail[:place], [hop.member for hop in back] + self.remaining
                self.group.release([hop.model_id for hop in back])
                self.group.rerouted(self.remaining[1], _refused(judged, refused))
            return refused
        return None

    async def _refused(self, failed: Failure) -> Failure | None:
        """Why the last model of the trail is not to be gone on from; None if the fault is with who was to train it."""
        if not self.trail or (self.remaining and failed.code not in BAD_MODEL):
            return None
        if not self.remaining:
            return failed  # it was this process that could not have it
        # The reader's word is not enough: it may be the one that fails, or lies.
        seen = await self.group.collect(self.trail[-1].model_id, self.group.request.tensors)
        return seen if isinstance(seen, Failure) else None

    def _pass_over_the_last(self, refused: Failure) -> None:
        hop = self.trail.pop()
        self.group.release([hop.model_id])
        self.group.skipped(hop.member, refused)
        if self.remaining:
            self.group.rerouted(self.remaining[0], _refused(hop, refused))
        self._roll_back()

    def _roll_back(self) -> bool:
        """Cuts the trail back to the last model that is still held; whether there was something to cut.

        Members whose nodes are there train again, from an earlier model; the others are skipped.
        """
        group = self.group
        lost: list[Hop] = []
        while self.trail and not group.holds(self.trail[-1].model_id):
            lost.append(self.trail.pop())
        self._unjudged = [(hop, length) for hop, length in self._unjudged if hop in self.trail]
        for hop in lost:
            self._tries[hop.member.client] += 1
            if group.attached(hop.member.node) and self._tries[hop.member.client] < MOST_TRIES:
                self.remaining.insert(0, hop.member)
                group.rerouted(hop.member, "its result was lost with its node: it trains again")
            else:
                group.skipped(hop.member, Failure(FailureCode.NODE_LOST, "its result was lost with its node"))
        return bool(lost)


def _let_go(group: Group, trail: list[Hop]) -> None:
    """Releases what no recovery can need: all but the last model and the last one that another node holds."""
    held = [hop for hop in trail if group.holds(hop.model_id)]
    needed = held[-1:] + [hop for hop in held if hop.member.node != trail[-1].member.node][-1:]
    group.release([hop.model_id for hop in held if hop not in needed])


def _refused(hop: Hop, why: Failure) -> str:
    return f"client {hop.member.client}'s model was refused ({why}): from the last good one"


def _no_model(member: Member) -> Failure:
    return Failure(FailureCode.BAD_ORDER, f"node {member.node} reported no model for its training order")
