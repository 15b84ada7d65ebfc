"""The chain of a relay: which members have trained, which are still to train, and what follows from a failure.

A chain is one list of hops in relay order. The first `done` hops are its trail: their members have trained. All others
are still to be made. A hop that is skipped leaves the list.

    WAITING --declare--> DECLARED --judge, finish--> FINISHED

    back to WAITING   lose: the result is lost with its node, and the node is attached again
                      refuse of an earlier hop: this hop was trained from a bad model, or would be
                      again: its order failed because a connection ended for a moment
    out of the chain  refuse: the order failed, or the model or its update is bad
                      lose: the node is not attached, or has lost MOST_LOSSES results

If the run limits the lengths of updates, the trail is judged as soon as enough lengths are known: those of earlier
rounds, and those of the trail. Until then no model is released, since the chain may have to return to any of them.
Whether the trail is judged follows from these lengths alone. So hops that have left the chain have no influence, and
another manager, which knows only the trail, comes to the same verdicts as this one.

Every method that changes the course of the chain returns a `Decision`: what the caller has to do, and why.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from fedgsp.messages import Failure, FailureCode, Member, RunGroupRequest
from fedgsp.seeds import stream
from group_manager.norm_limit import LEAST, Lengths

#: A member is skipped when its node has lost so many of its results or orders in a round: it must not stop the others.
MOST_LOSSES = 3


class HopState(Enum):
    """How far a hop is."""

    WAITING = auto()  # its member is to be ordered to train
    DECLARED = auto()  # its member was ordered to train
    FINISHED = auto()  # its member has trained


@dataclass(slots=True, eq=False)
class Hop:
    """One member's turn."""

    member: Member
    state: HopState = HopState.WAITING
    model_id: str = ""  # of its result; another one for every declaration
    digest: bytes = b""  # of its result, as its node reported it
    start: bytes = b""  # digest of what its node has fetched from the node of the hop before
    samples: int = 0
    length: float = 0.0  # of its update, if it was measured
    losses: int = 0  # results, orders and transfers of this round that were lost with its node


@dataclass(frozen=True, slots=True)
class Decision:
    """What has to be done after a change of the chain."""

    #: (member, reason): a failure if the member is skipped, a text if it trains from another model than declared.
    reports: tuple[tuple[Member, Failure | str], ...]
    #: Ids of models that nobody needs any more.
    release: tuple[str, ...] = ()


def client_order(clients: Sequence[int], shuffle: bool, seed: int, round_number: int, group: int) -> list[int]:
    """A group's clients in relay order: shuffled in every round (FedGSP, section 1.1), or in the given order."""
    if not shuffle:
        return list(clients)
    return [clients[i] for i in stream(seed, "client-order", round_number, group).permutation(len(clients))]


class Chain:
    """Invariant: the first `done` hops are FINISHED, all others WAITING or DECLARED."""

    def __init__(self, request: RunGroupRequest) -> None:
        assert request.training is not None
        self._most_ratio = request.most_update_ratio  # 0: lengths are not limited
        self._lengths_before = request.update_lengths
        #: How the ids of all results begin.
        self.prefix = f"{request.run_id}/{request.round}/{request.group}/relay/"
        members = {member.client: member for member in request.members}
        self.hops = [
            Hop(
                members.get(hop.member.client, hop.member),
                HopState.FINISHED,
                hop.model.id,
                hop.model.digest,
                samples=hop.member.samples,
                length=hop.update_length,
            )
            for hop in request.finished
            if hop.member is not None and hop.model is not None
        ]
        self.done = len(self.hops)
        waiting = members.keys() - {hop.member.client for hop in self.hops}
        clients = request.planned or tuple(member.client for member in request.members)
        order = client_order(clients, request.shuffle, request.training.seed, request.round, request.group)
        self.hops += [Hop(members[client]) for client in order if client in waiting]

    @property
    def trail(self) -> list[Hop]:
        """Hops whose members have trained, oldest first."""
        return self.hops[: self.done]

    @property
    def last(self) -> Hop | None:
        """The last hop of the trail, from whose model the chain continues."""
        return self.hops[self.done - 1] if self.done else None

    @property
    def next(self) -> Hop | None:
        """The first hop that is still to be made."""
        return self.hops[self.done] if self.done < len(self.hops) else None

    def declare(self, attempt: int) -> list[tuple[int, Hop | None, Hop]]:
        """Declares the whole rest: (position, the hop before or None, hop), with a new model id for each."""
        declared = []
        for position in range(self.done, len(self.hops)):
            hop, before = self.hops[position], self.hops[position - 1] if position else None
            hop.state, hop.model_id, hop.start = HopState.DECLARED, f"{self.prefix}{position}.{attempt}", b""
            declared.append((position, before, hop))
        return declared

    @property
    def is_judged(self) -> bool:
        """Whether every hop of the trail is judged, or none is to be."""
        return not self._most_ratio or len(self._lengths_before) + self.done >= LEAST

    def judge(self, length: float) -> Decision | None:
        """Judges the next hop, whose update has this length, and the trail before it, as soon as that can be.

        Returns a decision if a hop is refused. Otherwise the next hop can be finished.
        """
        trail, hop = self.trail, self.hops[self.done]
        hop.length = length
        accepted, waiting = (trail, [hop]) if self.is_judged else ([], [*trail, hop])
        lengths = Lengths([*self._lengths_before, *(one.length for one in accepted)], self._most_ratio)
        usual = lengths.usual([one.length for one in waiting])
        if usual is None:
            return None
        for one in waiting:
            refused = lengths.judge(one.length, usual)
            if refused is not None:
                return self.refuse(one, refused)
        return None

    def finish(self, samples: int, digest: bytes) -> None:
        """The member of the next hop has trained on so many samples, and its model has this digest."""
        hop = self.hops[self.done]
        hop.samples, hop.digest, self.done = samples, digest, self.done + 1
        hop.state = HopState.FINISHED

    def refuse(self, hop: Hop, why: Failure) -> Decision:
        """Skips a hop of the trail, or the next hop. Hops that were trained from its model wait again."""
        place = self.hops.index(hop)
        release = tuple(made.model_id for made in self.hops[place : self.done])
        reports: list[tuple[Member, Failure | str]] = [(hop.member, why)]
        del self.hops[place]
        for later in self.hops[place:]:
            later.state = HopState.WAITING
        if release and place < len(self.hops):
            reason = f"client {hop.member.client}'s model was refused ({why}): from the last good one"
            reports.append((self.hops[place].member, reason))
        self.done = min(self.done, place)
        return Decision(tuple(reports), release)

    def again(self, hop: Hop, why: str, at_fault: Hop | None = None) -> Decision | None:
        """The order of the next hop, or to send the last model, is sent again; None if that was tried too often.

        `at_fault` is the hop whose node was away, if that is not the node of `hop`.
        """
        counts = at_fault or hop
        counts.losses += 1
        if counts.losses >= MOST_LOSSES:
            return None
        for later in self.hops[self.done :]:
            later.state = HopState.WAITING
        return Decision(((hop.member, f"{why}: it is asked again"),))

    def lose(self, holds: Callable[[str], bool], attached: Callable[[str], bool]) -> Decision | None:
        """Cuts the trail back to the last model that its node still holds; None if that is the last one.

        Members whose nodes are attached train again, from an earlier model; the others are skipped.
        """
        why = Failure(FailureCode.NODE_LOST, "its result was lost with its node")
        reports: list[tuple[Member, Failure | str]] = []
        while (hop := self.last) is not None and not holds(hop.model_id):
            self.done -= 1
            hop.state, hop.losses = HopState.WAITING, hop.losses + 1
            if attached(hop.member.node) and hop.losses < MOST_LOSSES:
                reports.append((hop.member, "no node has its result any more: it trains again"))
            else:
                del self.hops[self.done]
                reports.append((hop.member, why))
        return Decision(tuple(reports)) if reports else None

    def spare(self, holds: Callable[[str], bool]) -> list[str]:
        """Models that no recovery needs: all but the last one, and the last one at another node than that.

        When the node of the next hop has fetched the last model, two nodes have that one, and it is enough.
        """
        held = [hop for hop in self.trail if holds(hop.model_id)]
        elsewhere = [hop for hop in held if self.last is not None and hop.member.node != self.last.member.node]
        needed = held[-1:] if self._last_is_at_next else (*held[-1:], *elsewhere[-1:])
        return [hop.model_id for hop in held if hop not in needed] if self.is_judged else []

    @property
    def _last_is_at_next(self) -> bool:
        last, following = self.last, self.next
        return last is not None and following is not None and following.start == last.digest != b""
