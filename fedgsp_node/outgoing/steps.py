"""Takes the outgoing steps of an order, and makes what the client reveals of its update on the way."""

import hashlib
import hmac
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fedgsp.errors import UserError
from fedgsp.messages import Failure, FailureCode, OrderKey, OutgoingStep, Train, Trained
from fedgsp.outgoing import HEAD, OUTGOING, Step
from fedgsp.run_ids import main_run
from fedgsp.seeds import derive, stream
from fedgsp.weights import Weights, check_finite, check_same_tensors, without_head
from fedgsp_node.learned import Learned
from fedgsp_node.order_error import OrderError, failing
from fedgsp_node.outgoing.base import Outgoing, Take
from fedgsp_node.updates import reveal
from fedgsp_node.users_code import where


@dataclass(frozen=True, slots=True)
class Published:
    """What leaves the node after one training."""

    model: Weights
    #: What the client reveals of its update, if the order asks for it.
    update: Weights | None
    #: The report on the training, without references to model and update.
    report: Trained


@dataclass(frozen=True, slots=True)
class _Chosen:
    """One step of an order: its name, declaration, code and options."""

    step: Step
    take: Take
    options: Any


class Steps:
    """The outgoing steps of one training order."""

    def __init__(self, work: Train) -> None:
        """Raises OrderError for a step that this node lacks, or for options that the step does not have."""
        with failing(FailureCode.BAD_ORDER, UserError):
            self._chosen = [_chosen(asked) for asked in work.outgoing]
        self._work = work
        steps = [one.step for one in self._chosen]
        #: Whether a step, or what the client reveals, needs the model that the training started from.
        self.needs_start = work.reveal is not None or any(step.needs_start for step in steps)
        #: Whether all steps may be taken twice for one training.
        self.repeatable = all(step.repeatable for step in steps)
        self._changes_values = any(not (step.selects or step.after_reveal) for step in steps)
        if (
            work.start is not None
            and work.start.without_head
            and not any(one.step.name == HEAD for one in self._chosen)
        ):
            raise OrderError(Failure(FailureCode.BAD_ORDER, "the start has no head, and the result would have one"))

    def publish(
        self, client: int, key: OrderKey, learned: Learned, report: Trained, secret: Callable[[], bytes]
    ) -> Published:
        """Takes all steps; changes `learned.after`. Raises OrderError with the step's name.

        `secret` returns the node's secret; it is called only for steps that are not repeatable.
        """
        settings = self._work.settings
        assert settings is not None

        def taken(model: Weights, after_reveal: bool) -> Weights:
            for one in self._chosen:
                if one.step.after_reveal != after_reveal:
                    continue
                own = b""
                if not one.step.repeatable:
                    # HMAC-SHA256: without the secret these bytes look random.
                    purpose = (main_run(key.run), key.round, client, one.step.name, model.digest.hex())
                    own = hmac.digest(secret(), "\0".join(map(str, purpose)).encode(), hashlib.sha256)
                start = learned.before.part(model.tensors) if one.step.needs_start else None
                rng = stream(settings.seed, f"outgoing-{one.step.name}", key.round, client)
                model = _take(one, Outgoing(client, key.round, model, start, rng, own))
            return model

        protected = taken(learned.after, after_reveal=False)
        update = self._revealed(learned, protected)
        return Published(taken(protected, after_reveal=True), update, report)

    def _revealed(self, learned: Learned, model: Weights) -> Weights | None:
        """What the client reveals of its update, after all steps that protect it."""
        asked, settings = self._work.reveal, self._work.settings
        if asked is None or settings is None:
            return None
        before = learned.before
        # If values are as they were trained, the client may also reveal tensors that do not travel, such as its head.
        after = model if self._changes_values else learned.after
        if asked.without_head:
            shared = without_head(before.tensors)
            before, after = before.part(shared), after.part(shared)
        with failing(FailureCode.BAD_ORDER, ValueError):
            # All rounds have the same projection, so that updates of different rounds can be compared.
            return reveal(asked.view, before, after, settings.learning_rate, derive(settings.seed, "reveal"))


def _chosen(asked: OutgoingStep) -> _Chosen:
    step = OUTGOING[asked.name]
    return _Chosen(step, step.load(), step.read(asked.options))


def _take(one: _Chosen, outgoing: Outgoing) -> Weights:
    try:
        found = one.take(outgoing, one.options)
        if not isinstance(found, Weights):
            raise TypeError(f"it returned a {type(found).__name__}, not Weights")
        expected = outgoing.model.tensors
        if one.step.selects:
            expected = tuple(spec for spec in expected if spec in found.tensors)
        check_same_tensors(found.tensors, expected, "its result")
        if one.step.for_users:
            check_finite(found)
    except (Exception, SystemExit) as error:  # a step may be code of another package
        raise OrderError(
            Failure(FailureCode.TASK_RAISED, f"outgoing step {one.step.name} raised {where(error)}")
        ) from error
    return found
