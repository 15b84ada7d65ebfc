"""How long an order may take although its node reports progress: slow is allowed, endless is not.

`Pace` notices a node that is silent. A node that reports progress is never silent, so that an order also has a
deadline, from the steps that it can need and the time that steps took so far.
"""

from collections import Counter, defaultdict
from dataclasses import dataclass
from statistics import median_high

from fedgsp.messages import Discriminate, Evaluate, Order, RunGroupRequest, Train
from group_manager.pace import COMPUTES, Whose

#: No order takes longer, in seconds. A node waits no longer for a promised model, either.
MOST_S = 24 * 3600.0
#: Lowest deadline, in stall timeouts: a machine may be busy for a while, and other managers may keep the node busy.
LEAST_STALLS = 5
#: The deadline is this many times what such steps took before: those of the client itself, or those of others.
OWN_FACTOR, OTHERS_FACTOR = 20.0, 100.0
#: A client that becomes slower gets no more time than `OTHERS_FACTOR` times what it first took, or what others take.
GROWTH = OTHERS_FACTOR / OWN_FACTOR
#: A node whose order was overdue may only be slower than all others, or others may have worked less than they said.
#: Its next order gets this many times the time, and so on for so many orders; then the node gets the shortest time.
#: It gets so many longer attempts in all, because a node could be late on purpose, and in time again.
PATIENCE, LONGER_ORDERS = 4.0, 2
#: A node may train and evaluate its clients at the same time, for several managers.
PASSES = 2
#: Progress reports that may come for one step: some trainings take many small steps on each batch.
REPORTS_PER_STEP = 64
#: Samples in a step of an order without a batch size, and bytes in one message of a model.
_BATCH, _CHUNK_BYTES = 32, 512 * 1024
#: Models that a node receives and sends for one client, at most: its start, its result, and what it reveals.
_MODELS = 4


@dataclass(frozen=True, slots=True)
class Need:
    """The steps of an order: batches of samples, and chunks of models."""

    #: Steps that the order itself has at least.
    least: int
    #: Upper bound of steps. It counts all clients of the node, because a node runs their orders in one thread.
    most: int
    #: Clients of the node, whose orders may come first.
    clients: int = 1
    #: Training samples of the client, as its node told when it joined; 0: unknown.
    samples: int = 0

    @property
    def reports(self) -> int:
        """Most reports of progress that can come until the order is done."""
        return REPORTS_PER_STEP * self.most


#: A kind of order, and a node.
Whom = tuple[str, str]
#: The need of an order about which nothing is known.
UNKNOWN = Need(1, 1 << 62)


def need(request: RunGroupRequest, node: str, order: Order) -> Need:
    """The steps of an order to a node, in the group of a request."""
    here = [member for member in request.members if member.node == node] or list(request.members)
    if not here:
        return UNKNOWN
    clients = max(len(here), *(member.node_clients for member in here))
    samples = max(sum(member.samples for member in here), *(member.node_samples for member in here))
    own = told = next((member.samples for member in here if member.client == order.client), 0)
    match order.work:
        case Train(settings=settings) | Evaluate(settings=settings) if settings is not None:
            rounds, batch = max(1, settings.local_epochs), max(1, settings.batch_size)
        case Discriminate(others=others, settings=settings) if settings is not None:
            # Every client trains its networks for some steps, and judges them on its samples.
            rounds, batch = max(1, settings.steps) * max(1, len(others)), max(1, settings.batch_size)
            samples, own = max(samples, clients * batch), min(own, batch)
        case _:
            rounds, batch = 1, _BATCH
    chunks = _MODELS * (2 + request.max_model_bytes // _CHUNK_BYTES)
    least = 1 + rounds * _parts(own, batch) if isinstance(order.work, Train) else 1 + _parts(own, batch)
    return Need(least, clients * chunks + PASSES * rounds * (clients + _parts(samples, batch)), clients, told)


def _parts(samples: int, batch: int) -> int:
    return -(-samples // batch)


class Paces:
    """The longest times of orders that ended well, by client, as far as they count.

    A time counts no more than `GROWTH` times the first time of its client, or `GROWTH` times what is typical of other
    nodes. So a node that is late on purpose, again and again, does not get more time each time.
    """

    def __init__(self) -> None:
        self._first: dict[Whose, float] = {}
        self._longest: dict[Whose, float] = {}
        self._of_nodes: defaultdict[str, dict[str, float]] = defaultdict(dict)  # by kind of order, then by node

    def note(self, whose: Whose, seconds: float) -> None:
        """An order took so long, or each step of it."""
        kind, node, _ = whose
        most_s = GROWTH * max(self._first.setdefault(whose, seconds), self._typical_of_others(whose) or 0.0)
        of_kind, counted = self._of_nodes[kind], min(seconds, most_s)
        self._longest[whose] = max(self._longest.get(whose, 0.0), counted)
        of_kind[node] = max(of_kind.get(node, 0.0), counted)

    def allowed(self, whose: Whose) -> float | None:
        """The most time that the next order, or each step of it, may take; None if no such order ended well yet."""
        kind, node, _ = whose
        if whose in self._longest:
            return OWN_FACTOR * self._longest[whose]
        typical = self._typical_of_others(whose) or self._of_nodes[kind].get(node)
        return None if typical is None else OTHERS_FACTOR * typical

    def _typical_of_others(self, whose: Whose) -> float | None:
        """The median of the longest times of all other nodes: a minority of nodes cannot choose it."""
        kind, node, _ = whose
        others = [seconds for other, seconds in self._of_nodes[kind].items() if other != node]
        return median_high(others) if others else None


class Deadlines:
    """Until when an order has to end, from the time that orders of its kind took so far."""

    def __init__(self) -> None:
        self._steps, self._orders = Paces(), Paces()  # seconds per step, and of whole orders
        self._overdue: Counter[Whom] = Counter()  # since one ended well
        self._longer: Counter[Whom] = Counter()  # longer attempts, in all
        self._forgiven: set[str] = set()

    def note(self, whose: Whose, seconds: float, need: Need) -> None:
        """An order ended well; it took so long, the wait for other orders of its node not counted."""
        self._steps.note(whose, seconds / need.least)
        self._orders.note(whose, seconds)
        del self._overdue[whose[:2]]

    def note_overdue(self, whose: Whose) -> None:
        """An order did not end in time although its node reported progress."""
        self._overdue[whose[:2]] += 1
        self._longer[whose[:2]] += 1

    def forget(self, node: str) -> None:
        """A node attached; perhaps it was restarted. Its overdue orders are forgiven once."""
        known = [whom for whom in self._longer if whom[1] == node]
        if known and node not in self._forgiven:
            for whom in known:
                del self._overdue[whom], self._longer[whom]
            self._forgiven.add(node)

    def deadline_s(self, whose: Whose, need: Need, stall_timeout_s: float, computes: bool = False) -> float:
        """Seconds after which this order is overdue, from the moment when it could begin.

        `computes`: the node reports no progress, but its training uses the processor. Then one long batch has its time
        beside the rest, unless an order of the node was overdue.
        """
        whom = whose[:2]
        least_s, overdue = LEAST_STALLS * stall_timeout_s, self._overdue[whom]
        if computes and not overdue:
            least_s += COMPUTES * stall_timeout_s
        step_s, whole_s = self._steps.allowed(whose), self._orders.allowed(whose)
        measured = step_s is not None and whole_s is not None
        if overdue > (LONGER_ORDERS if measured else 0):
            return least_s
        # Without any measurement: no step takes longer than the stall timeout.
        most_s = min(MOST_S, need.most * stall_timeout_s)
        if step_s is not None and whole_s is not None:
            # The number of steps follows from what the node itself has told; whole orders of other nodes do not.
            given_s = min(step_s * need.most, PASSES * need.clients * whole_s)
            patience = PATIENCE**overdue if self._longer[whom] <= LONGER_ORDERS else 1.0
            most_s = min(most_s, max(least_s, given_s) * patience)
        return max(least_s, most_s)
