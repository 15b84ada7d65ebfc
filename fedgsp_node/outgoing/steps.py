"""Takes the outgoing steps of an order, and makes what the client reveals of its update on the way."""

import dataclasses
import hashlib
import hmac
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fedgsp.errors import UserError
from fedgsp.messages import Failure, FailureCode, OrderKey, OutgoingStep, Train, Trained
from fedgsp.outgoing import HEAD, OUTGOING, Step
from fedgsp.seeds import derive, stream
from fedgsp.tensors.weights import Weights, check_finite, check_same_tensors, without_head
from fedgsp_node.kept.learned import Learned
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
    #: Id of the model for which it was trained; empty in what an earlier version has published.
    training: str = ""


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
                start = learned.before.part(model.tensors) if one.step.needs_start else None
                rng = stream(settings.seed, f"outgoing-{one.step.name}", key.round, client)
                outgoing = Outgoing(client, key.round, model, start, rng, b"")
                if not one.step.repeatable:
                    own = _own_bytes(secret(), one, outgoing, settings.seed)
                    outgoing = dataclasses.replace(outgoing, secret=own)
                model = _take(one, outgoing)
            return model

        protected = taken(learned.after, after_reveal=False)
        update = self._revealed(learned, protected)
        return Published(taken(protected, after_reveal=True), update, report, self._work.produces)

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


def _own_bytes(secret: bytes, one: _Chosen, outgoing: Outgoing, seed: int) -> bytes:
    """The secret bytes of one step on one model: HMAC-SHA256, which looks random to all who lack the node's secret.

    They follow from everything that the step is given. If one thing could differ while they are the same, such as the
    scale of noise, two results would have the same noise in two sizes, and their difference would tell the model.
    If all is the same, the result is the same, and the second one tells nothing new. So the run counts for nothing.
    """
    model, start = outgoing.model, outgoing.start
    given = {
        "step": one.step.name,
        "options": one.options,
        "client": outgoing.client,
        "round": outgoing.round,
        "seed": seed,
        "tensors": model.tensors,
        "bfloat16": model.bfloat16,
        "model": model.digest.hex(),
        "start": start.digest.hex() if start is not None else None,
    }
    return hmac.digest(secret, json.dumps(given, sort_keys=True, default=_as_json).encode(), hashlib.sha256)


def _as_json(value: Any) -> Any:
    """Options are objects of a dataclass, and may have values of any type in them."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return repr(value)


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
