"""A node that carries out orders by arithmetic, on a session of a manager's real `Members`.

A model is one float64. Client c turns w into 0.9 w + c, unless a scene has another rule, so that what a program must
return can be computed by a plain loop.
"""

from __future__ import annotations

import asyncio
import dataclasses
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from fedgsp.messages import (
    Cancel,
    Describe,
    Described,
    Discriminate,
    Done,
    Evaluate,
    Evaluated,
    Failed,
    Failure,
    FailureCode,
    Fetched,
    Initialise,
    ModelRef,
    Order,
    OrderKey,
    OrderProgress,
    Progress,
    Recall,
    Recalled,
    Release,
    Result,
    SendUp,
    Source,
    SourceKind,
    Start,
    TensorSpec,
    Train,
    Trained,
)
from fedgsp.tensors.weights import Weights, WeightsError, check_finite
from fedgsp.transfers.model_store import ModelStore
from group_manager.sessions import Session
from tests.support.scripted_networks import Script

if TYPE_CHECKING:
    from tests.support.faults import Fault
    from tests.support.scene import Scene

TENSORS = (TensorSpec("w", "float64", (1,)),)
STALL_TIMEOUT_S = 30.0
#: How long the connection of a node is cut, in seconds: longer than `RETURN_S`, after which a node counts as gone.
CUT_S, RETURN_S = 3.0, 1.4


def model(value: float) -> Weights:
    return Weights.of({"w": np.array([value])}, TENSORS)


#: A model that is none of the run.
OTHER_TENSORS = Weights.of({"w": np.zeros(4)}, (TensorSpec("w", "float64", (4,)),))


def value_of(weights: Weights) -> float:
    return float(weights.arrays["w"][0])


def without_tickets(order: Order) -> Order:
    """The order as tests write it down."""
    work, start = order.work, getattr(order.work, "start", None)
    if start is not None:
        sources = tuple(dataclasses.replace(source, ticket=b"") for source in start.sources)
        work = dataclasses.replace(work, start=dataclasses.replace(start, sources=sources))  # type: ignore[type-var]
    if isinstance(work, Train | SendUp):
        work = dataclasses.replace(work, ticket=b"")
    return dataclasses.replace(order, work=work)


async def let_others_run() -> None:
    """Long enough for whatever waits for nothing but its turn."""
    for _ in range(20):
        await asyncio.sleep(0)


class ScriptedNode:
    """Takes orders from its session's outbox, reports by `Members.report`, and suffers the scene's faults."""

    def __init__(self, name: str, scene: Scene) -> None:
        self.name = name
        self.store = ModelStore()
        #: What it was ordered, without the tickets and with them.
        self.orders: list[Order] = []
        self.stamped: list[Order] = []
        self.most_held = 0
        self.gone = False
        self.called_off = asyncio.Event()
        #: Local steps that its clients report, by client.
        self.steps: dict[int, float] = {}
        #: Training accuracies that its clients report if they are asked, by client.
        self.accuracies: dict[int, float] = {}
        #: How its clients discriminate.
        self.script = Script()
        self._scene = scene
        self._session: Session | None = None
        self._reading: asyncio.Task[None] | None = None
        self._promised: set[str] = set()
        self._taken: set[OrderKey] = set()
        self._running: dict[OrderKey, asyncio.Task[None]] = {}

    async def attach(self) -> None:
        self.gone = False
        self._session = await self._scene.members.attach(self.name, process=f"process {id(self)}")
        self._reading = asyncio.create_task(self._read(self._session))

    @property
    def session(self) -> Session:
        """Its session with the manager."""
        assert self._session is not None
        return self._session

    async def leave(self) -> None:
        """Goes away with its models; nothing is reported any more."""
        self.lose_models()
        for task in self._running.values():
            if task is not asyncio.current_task():
                task.cancel()
        session, self._session = self._session, None
        if session is not None:
            await self._scene.members.detach(session)

    def lose_models(self) -> None:
        """Goes away for its peers: those who wait for its models hear of it."""
        self.gone = True
        self.store.clear()
        for model_id in self._promised:
            self.store.fail(model_id, Failure(FailureCode.UNREACHABLE, f"node {self.name} is gone"))

    async def settle(self) -> None:
        """Waits until the orders sent so far have been taken, and have ended."""
        if self._session is not None:
            last = Order(OrderKey(0, "settle", 0, next(self._scene.numbers)), 0, Release(()))
            await self._scene.members.submit(self.name, last).outcome
        await asyncio.gather(*self._running.values(), return_exceptions=True)

    def trainings(self) -> list[tuple[int, int]]:
        """Client and attempt of its training orders, as they came."""
        return [(o.client, o.key.attempt) for o in self.orders if isinstance(o.work, Train) and o.key]

    def cancelled(self) -> set[tuple[int, int]]:
        """Position and attempt of the training orders that were called off."""
        keys = [order.key for order in self.orders if isinstance(order.work, Cancel)]
        return {(key.position, key.attempt) for key in keys if key and key.task in ("train", "parallel", "alone")}

    async def _read(self, session: Session) -> None:
        while (stamped := await session.outbox.get()) is not None:
            self.stamped.append(stamped)
            order = without_tickets(stamped)
            self.orders.append(order)
            assert order.key is not None
            if isinstance(order.work, Cancel):
                self.called_off.set()
                if order.key in self._running:
                    self._running[order.key].cancel()
            elif self.gone:
                await self.leave()  # now the manager notices, too
            elif order.key not in self._taken:  # the manager repeats orders after a loss of the connection
                self._taken.add(order.key)
                task = asyncio.create_task(self._answer(session, order.key, order))
                self._running[order.key] = task
                task.add_done_callback(partial(self._forget, order.key))

    def _forget(self, key: OrderKey, _: object) -> None:
        self._running.pop(key, None)

    async def _answer(self, session: Session, key: OrderKey, order: Order) -> None:
        report = partial(self._scene.members.report, session)
        produces = getattr(order.work, "produces", "")
        self._promised.add(produces)
        try:
            with self._scene.counted(order):
                result, made = await self._carry_out(session, key, order)
        except (WeightsError, asyncio.CancelledError) as error:
            called_off = Failure(FailureCode.CANCELLED, "called off")
            failure = error.failure if isinstance(error, WeightsError) else called_off
            self.store.fail(produces, failure)
            report(Failed(key, failure))
            return
        fault = self._scene.faults.take("answered", order.client) if isinstance(order.work, Train) else None
        if made is not None and not (fault and fault.node == self.name):
            self.store.put(produces, made)
            self.most_held = max(self.most_held, len(self.store))
        report(Done(key, result))
        if result is not None:
            self._scene.answered[order.client].set()
        if fault is not None and fault.what == "repeat":
            report(Failed(key, Failure(FailureCode.UNSPECIFIED, "a report that comes late")))
        elif fault is not None:
            await self._suffer(fault)

    async def _suffer(self, fault: Fault) -> None:
        node = self._scene.nodes[fault.node]
        match fault.what:
            case "lose":
                await node.leave()
            case "restart":
                await node.leave()
                self._scene.nodes[fault.node] = again = ScriptedNode(fault.node, self._scene)
                again.orders = node.orders
                await again.attach()
            case "vanish":
                node.lose_models()

    async def _carry_out(
        self, session: Session, key: OrderKey, order: Order
    ) -> tuple[Result | Recalled | None, Weights | None]:
        client, scene = order.client, self._scene
        match order.work:
            case Train(Start() as start, produces, _, reveal, retain, _, bring):
                weights, source, size = await self._fetch(start)
                if source.kind is SourceKind.NODE:
                    scene.members.report(session, Fetched(key, weights.digest))
                await self._go_wrong(session, key, client)
                await let_others_run()  # training takes longer than hearing of it
                scene.trained.append(client)
                made = model(scene.rule(client, value_of(weights)))
                update = None
                if reveal is not None:
                    shown = model(value_of(weights) - value_of(made))
                    self.store.put(f"{produces}.update", shown)
                    update = shown.ref(f"{produces}.update")
                samples = scene.samples_of(client)
                steps = self.steps.get(client, 0.0)
                asked = order.work.measure_accuracy
                trained = Trained(
                    made.ref(produces),
                    samples,
                    source=source,
                    bytes=size,
                    update=update,
                    steps=steps,
                    train_accuracy=self.accuracies.get(client, 0.0) if asked else 0.0,
                    start=ModelRef(start.model_id, digest=weights.digest),
                )
                if bring:
                    await self._bring(client, produces, made)
                return trained, made if retain or not bring else None
            case Evaluate(Start() as start, training_part, compared_with, only_compare=only_compare):
                weights, source, size = await self._fetch(start)
                await self._go_wrong(session, key, client)
                if compared_with and only_compare and compared_with not in self.store:
                    raise WeightsError(FailureCode.NO_SUCH_MODEL, f"client {client} has no model {compared_with!r}")
                other = await self.store.get(compared_with) if compared_with else weights
                distance = (value_of(weights) - value_of(other)) ** 2
                if only_compare:
                    return Evaluated(0, 0, 0.0, source, size, squared_distance=distance), None
                samples = scene.samples_of(client) if training_part else 10
                return Evaluated(
                    min(client, samples),
                    samples,
                    value_of(weights),
                    source,
                    size,
                    squared_distance=distance,
                    judged=samples,
                ), None
            case Discriminate(start) as work:
                fetched = await self._fetch(start) if start is not None else (None, None, 0)
                await self._go_wrong(session, key, client)
                return await self.script.answer(client, work, *fetched)
            case Describe():
                await self._go_wrong(session, key, client)
                return Described((client, 1)), None
            case Initialise(produces, seed):
                await self._go_wrong(session, key, client)
                wrong = scene.faults.take("initialise", client)
                others = {"tensors": OTHER_TENSORS, "values": model(client + 0.5)}
                made = model(float(seed)) if wrong is None else others[wrong.what]
                return Trained(made.ref(produces), source=Source(SourceKind.LOCAL, "")), made
            case SendUp(model_id, earlier):
                if earlier and model_id not in self.store:
                    raise WeightsError(FailureCode.NO_SUCH_MODEL, f"this node has model {model_id!r} no more")
                await self._upload(model_id, await self.store.get(model_id))
            case Release(model_ids):
                self.store.release(model_ids)
            case Recall(prefix, model_ids):
                held = self.store.ids(prefix)
                self.store.release(set(held) - set(model_ids))
                return Recalled(tuple(sorted(set(held) & set(model_ids)))), None
            case _:
                raise AssertionError(f"unknown work {order.work}")
        return None, None

    async def _bring(self, client: int, model_id: str, weights: Weights) -> None:
        group, fault = self._scene.group, self._scene.faults.take("bring", client)
        assert group is None or group.ledger.expects(model_id)
        if fault is None:
            await self._upload(model_id, weights)
        elif fault.what == "another":
            await self._upload(model_id, model(1e6))

    async def _upload(self, model_id: str, weights: Weights) -> None:
        scene = self._scene
        scene.asked_of.append(self.name)
        scene.asked[self.name].set()
        fault = scene.faults.take("collect", self.name)
        if fault is not None and fault.what == "hold":
            await scene.asked[fault.node].wait()
            await let_others_run()  # if the manager asks further nodes, it does so now
        elif fault is not None and fault.what == "refuse":
            raise WeightsError(fault.code, f"node {self.name} was told to refuse")
        elif fault is not None and fault.what == "crawl":
            await self._crawl(self.session, *self._running)
        elif fault is not None and fault.what == "cut":
            await scene.members.detach(self.session, self.session.outbox)
            scene.clock.advance(CUT_S)
            await let_others_run()
            await self.attach()
        elif fault is not None and fault.what == "silent":
            await let_others_run()  # now the manager waits for this order, and its stall clock runs
            scene.clock.advance(3600)
            await asyncio.Event().wait()
        elif fault is not None and fault.what == "another":
            weights = model(1e6)
        elif fault is not None:
            await self._suffer(fault)
            raise asyncio.CancelledError
        check_finite(weights)  # as whoever takes an upload does
        group = scene.group
        if group is not None and not (group.ledger.expects(model_id) or model_id in group.models.landings):
            raise WeightsError(FailureCode.CANCELLED, f"model {model_id!r} is not wanted any more")
        scene.store.put(model_id, weights)
        scene.most_here = max(scene.most_here, len(scene.store))

    async def _go_wrong(self, session: Session, key: OrderKey, client: int) -> None:
        fault = self._scene.faults.take("order", client)
        if fault is None:
            return
        match fault.what:
            case "fail":
                raise WeightsError(fault.code, f"client {client} was told to fail")
            case "stall":
                if client > 0:
                    await self._scene.told[client - 1].wait()
                await let_others_run()  # now the manager waits for this order, and its stall clock runs
                self._scene.clock.advance(STALL_TIMEOUT_S + 1)
                await asyncio.Event().wait()
            case "crawl":
                await self._crawl(session, key)
            case "reset":
                await self.attach()
                raise WeightsError(FailureCode.UNREACHABLE, "the connection was reset")
            case "hold":
                self._scene.holding.set()
                await self._scene.answered[fault.until].wait()
            case "lose":
                await self._scene.nodes[fault.node].leave()
                raise asyncio.CancelledError

    async def _crawl(self, session: Session, *keys: OrderKey) -> None:
        """Takes longer than the stall timeout, and reports progress of these orders meanwhile."""
        for mark in range(4):
            await let_others_run()
            self._scene.clock.advance(STALL_TIMEOUT_S * 0.6)
            self._scene.members.report(session, Progress(tuple(OrderProgress(key, mark) for key in keys)))

    async def _fetch(self, start: Start) -> tuple[Weights, Source, int]:
        error = WeightsError(FailureCode.NO_SUCH_MODEL, "no source was named")
        for source in start.sources:
            try:
                if source.kind is SourceKind.OWN and start.model_id not in self.store:
                    raise WeightsError(FailureCode.NO_SUCH_MODEL, f"this node has model {start.model_id!r} no more")
                weights = await self._scene.deliver(source, start.model_id)
            except WeightsError as failed:
                error = failed
            else:
                if start.keep:
                    self.store.put(start.model_id, weights)
                at_home = source.kind in (SourceKind.LOCAL, SourceKind.OWN)
                return weights, source, 0 if at_home else weights.buffer.nbytes
        raise error
