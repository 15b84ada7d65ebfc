"""Stands where orders enter a node: counts them, and refuses those that are beyond the policy of the node."""

import contextlib
import logging
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator

from fedgsp.messages import Failure, FailureCode, HostedClient, Order, TensorSpec
from fedgsp.run_ids import main_run
from fedgsp.seldom import MOST_CHARACTERS, SeldomLog
from fedgsp.settings.policy import UNLIMITED, Policy
from fedgsp.tensors.updates import trainable_size
from fedgsp.tensors.weights import total_bytes
from fedgsp.transfers.model_store import ModelStore
from fedgsp.words import counted
from fedgsp_node.connections.dialling import Dialling
from fedgsp_node.order_error import OrderError
from fedgsp_node.policies.epochs import epochs, is_training
from fedgsp_node.policies.policy import HARMLESS, Beyond, Known, Refused, is_evaluation, models_of, refusal, told

logger = logging.getLogger(__name__)

#: The guard counts orders for the latest 64 rounds of each client. `most_trainings` and `most_evaluations` also limit
#: a top server that invents more rounds.
REMEMBERED_ROUNDS = 64


class PolicyError(OrderError):
    """The policy of this node refuses an order."""

    def __init__(self, refused: Refused) -> None:
        super().__init__(Failure(FailureCode.POLICY, refused.why))
        self.refused = refused


class Guard:
    """Admits the orders of all managers of a node."""

    def __init__(
        self,
        hosted: Iterable[HostedClient],
        store: ModelStore,
        policy: Policy = UNLIMITED,
        dialling: Dialling | None = None,
        now: Callable[[], float] = time.monotonic,
        drop_last: bool = False,
    ) -> None:
        """`drop_last`: the task leaves out a short last batch."""
        self._drop_last = drop_last
        self.policy = policy
        self.dialling = dialling or Dialling(policy, "127.0.0.1:0")
        self._samples = {one.client: one.train_samples for one in hosted}
        self._store = store
        self._model_bytes = self._trainable = 0
        self._open = 0
        #: Models that orders in work fetch or make, with the number of these orders.
        self._coming: Counter[str] = Counter()
        #: (client, run, round) -> number of orders, of trainings, and of evaluations.
        self._orders: OrderedDict[tuple[int, str, int], list[int]] = OrderedDict()
        self._trainings: Counter[int] = Counter()  # of each client, in all
        self._evaluations: Counter[int] = Counter()  # the same
        self._epochs: Counter[int] = Counter()  # the same
        self._asked = 0  # orders that the policy has judged
        #: Key of the policy -> number of orders that it has refused, and the latest reason.
        self._refused: Counter[str] = Counter()
        self._example: dict[str, str] = {}
        self._refusals = SeldomLog(logger, logging.WARNING, "refusal", now)

    def expect(self, tensors: tuple[TensorSpec, ...]) -> None:
        """Notes the tensors of the run's model."""
        self._model_bytes, self._trainable = total_bytes(tensors), trainable_size(tensors)

    @contextlib.contextmanager
    def passing(self, order: Order) -> Iterator[None]:
        """A context in which an order is carried out; raises OrderError if the policy refuses the order."""
        models = set(models_of(order.work))
        self._open += 1
        try:
            self._asked += not isinstance(order.work, HARMLESS)
            if refused := refusal(order, self.policy, self._known(order, models)):
                raise PolicyError(refused)
            self._count(order)
            self._coming.update(models)
            try:
                yield
            finally:
                self._coming.subtract(models)
                for model in models:
                    if not self._coming[model]:
                        del self._coming[model]
        except PolicyError as error:
            self._note(order, error.refused)
            raise
        finally:
            self._open -= 1

    def check_size(self, size: int) -> None:
        """Raises PolicyError if the node may not hold a further model, or networks, of so many bytes."""
        for key, number in (("most_model_bytes", size), ("most_held_bytes", self._store.bytes + size)):
            if number > getattr(self.policy, key):
                beyond = Beyond(f"networks of {size} bytes would be held", str(number))
                raise PolicyError(Refused(key, told(key, self.policy, beyond)))

    def may_attach(self, manager: str, attached: Collection[str]) -> bool:
        """Whether the node may attach to one more manager; logs a refusal."""
        if len(attached) < self.policy.most_managers:
            return True
        needed = str(len(attached) + 1)
        self.log(told("most_managers", self.policy, Beyond(f"{manager[:100]!r} is manager {needed}", needed)))
        return False

    def sum_up(self) -> None:
        """Logs how many orders the policy has refused, and why most of them; nothing if it has refused none."""
        if self._refused:
            key, number = self._refused.most_common(1)[0]
            logger.warning(
                "the policy of this node refused %d of %s; for %s the reason was like this: %s",
                self._refused.total(),
                counted(self._asked, "order"),
                "all of them" if number == self._refused.total() else f"{number} of them",
                self._example[key][:MOST_CHARACTERS],
            )

    def _note(self, order: Order, refused: Refused) -> None:
        self._refused[refused.key] += 1
        self._example[refused.key] = refused.why
        _, _, number = _round_of(order)
        self._refusals.line(f"round={number} client={order.client} refused: {refused.why}")

    def log(self, why: str) -> None:
        """Logs why something was refused, unless there was such a line of late."""
        self._refusals.line(f"refused: {why}")

    def _known(self, order: Order, models: set[str]) -> Known:
        samples = self._samples.get(order.client)
        coming = sum(model not in self._store for model in models | self._coming.keys())
        orders, trainings, evaluations = self._orders.get(_round_of(order), (0, 0, 0))
        return Known(
            clients=max(1, len(self._samples)),
            samples=samples,
            trainable=self._trainable,
            model_bytes=self._model_bytes,
            held_models=len(self._store) + coming,
            held_bytes=self._store.bytes + coming * self._model_bytes,
            open_orders=self._open,
            orders_in_round=orders + 1,
            trainings_in_round=trainings + 1,
            evaluations_in_round=evaluations + 1,
            trainings=self._trainings[order.client] + 1,
            evaluations=self._evaluations[order.client] + 1,
            epochs=self._epochs[order.client] + epochs(order.work, samples),
            drop_last=self._drop_last,
            not_dialled=self.dialling.why_not,
        )

    def _count(self, order: Order) -> None:
        if isinstance(order.work, HARMLESS) or order.client not in self._samples:
            return
        counts = self._orders.setdefault(_round_of(order), [0, 0, 0])
        self._orders.move_to_end(_round_of(order))
        counts[0] += 1
        trains, evaluates = is_training(order.work), is_evaluation(order.work)
        counts[1] += trains
        counts[2] += evaluates
        self._trainings[order.client] += trains
        self._evaluations[order.client] += evaluates
        self._epochs[order.client] += epochs(order.work, self._samples[order.client])
        while len(self._orders) > REMEMBERED_ROUNDS * len(self._samples):
            self._orders.popitem(last=False)


def _round_of(order: Order) -> tuple[int, str, int]:
    key = order.key
    return (order.client, main_run(key.run), key.round) if key is not None else (order.client, "", 0)
