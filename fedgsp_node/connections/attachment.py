"""The work of a node for one manager: orders come in and reports go out, by one connection after the other."""

import asyncio
import functools
import logging
import secrets
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Sequence

import grpc.aio

from fedgsp import wire
from fedgsp.connections.channels import Line, describe
from fedgsp.errors import UserError
from fedgsp.limits.answers import Unreadable, stream
from fedgsp.messages import (
    Attached,
    Cancel,
    Done,
    Failed,
    Failure,
    FailureCode,
    Fetched,
    NodeReport,
    Order,
    OrderKey,
    OrderProgress,
    Progress,
    Train,
    Trained,
)
from fedgsp.run_ids import ALONE
from fedgsp.security.access import shown
from fedgsp.security.proofs import UnprovenError, prove
from fedgsp.security.tickets import Door
from fedgsp.seldom import SeldomLog
from fedgsp.tensors.weights import Weights, WeightsError
from fedgsp.transfers.model_calls import upload
from fedgsp.v1 import order_pb2
from fedgsp.within import within
from fedgsp.words import counted
from fedgsp_node.order_error import OrderError, failure_of
from fedgsp_node.policies.policy import models_of
from fedgsp_node.receipts import Receipts
from fedgsp_node.running import Running
from fedgsp_node.worker import Worker

logger = logging.getLogger(__name__)

PROGRESS_INTERVAL_S = 1.0
#: Least processor time, in seconds, that is reported.
LEAST_COMPUTED_S = 0.1
#: Number of reports that are kept for orders that come a second time.
REMEMBERED_REPORTS = 256
#: Most bytes of reports that a manager has not read yet, and most characters of a name in an order.
MOST_UNREAD_BYTES, MOST_NAME = 64 << 20, 500
_CALLED_OFF = Failure(FailureCode.CANCELLED, "called off")
#: How often an upload is tried by one connection to a manager, and the pause between two tries in seconds.
UPLOADS, AGAIN_AFTER_S = 3, 0.5
#: How often an upload may be cut off after `LONG_TRY_S` seconds or more, and how often in all. Some proxies end every
#: connection after some minutes: that for orders, too, so that an upload which takes longer would begin anew by each
#: next connection, and the run would wait for it for hours. What is cut off sooner may meet a better moment.
MOST_LONG, LONG_TRY_S, MOST_UPLOADS = 5, 10.0, 25
#: How long a manager may take to answer who it is, in seconds. It does so at once, unless it was frozen.
ANSWER_TIMEOUT_S = 60.0
#: Why a connection is given up whose other end does not know the key of this node.
TAKEN = "the process at its address is not the manager: another one has taken its port"
#: Failures after which an upload is tried again.
UPLOAD_AGAIN = (FailureCode.UNREACHABLE, FailureCode.STALLED)


class OrderLog:
    """Logs the trainings and the failures of all orders of a node, of each at most one line in some seconds."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._trainings = SeldomLog(logger, logging.INFO, "training", now)
        self._failures = SeldomLog(logger, logging.WARNING, "failure", now)
        #: Number of trainings since the node started.
        self.trainings = 0

    def trained(self, key: OrderKey, client: int, trained: Trained) -> None:
        """Counts a training of a client, and logs it if the last line is old enough."""
        self.trainings += 1
        self._trainings.line(
            f"round={key.round} group={key.group} client={client} trained on {counted(trained.samples, 'sample')}"
            f" in {trained.seconds:.1f} s, loss {trained.loss:.4f}"
        )

    def failed(self, key: OrderKey, client: int, why: object, exc_info: bool = False) -> None:
        """Logs why an order failed, if the last line is old enough; `exc_info` adds the traceback of a bug."""
        self._failures.line(f"round={key.round} group={key.group} client={client} failed: {why}", exc_info)

    def ignored(self) -> None:
        """Logs that an order was ignored, if the last line about a failure is old enough."""
        self._failures.line("an order without a key was ignored")


class Attachment:
    """Carries out the orders of one manager. Orders run concurrently; only the training slot serialises them.

    Orders outlast a connection. When the node has another one, the manager sends again the orders that it still waits
    for. What was done meanwhile is then reported.
    """

    def __init__(
        self,
        channel: grpc.aio.Channel,
        attached: Attached,
        worker: Worker,
        log: OrderLog | None = None,
        ticket: bytes = b"",
        door: Door | None = None,
        receipts: Receipts | None = None,
        line: Line | None = None,
        process: str = "",
        running: Running | None = None,
    ) -> None:
        """`ticket` is what the manager asks for; the `door` of this node follows the rounds of the orders.

        With a door, the manager must show that it knows the key of that door: otherwise another process could take the
        port of a manager that has died, and give orders in its place.

        `receipts` signs results and keeps what was signed. Models are uploaded by `line`, or else by the channel for
        orders. By the name of this `process`, the manager knows it when it comes back. `running` has the orders of all
        managers.
        """
        self._process = process
        self._all_running = running or Running()
        self._receipts = receipts or Receipts()
        self._line = line or Line.of(channel)
        self._channel = channel
        self._attached = attached
        self._worker = worker
        self._ticket = ticket
        self._door = door or Door()
        self._must_answer = door is not None
        self._log = log or OrderLog()
        self._reports: asyncio.Queue[order_pb2.NodeReport | None] = asyncio.Queue()  # None ends the stream
        self._unread_bytes = 0
        self._running: dict[OrderKey, asyncio.Task[None]] = {}
        self._reported: OrderedDict[OrderKey, order_pb2.NodeReport] = OrderedDict()
        #: Set while there is a connection with the manager itself, as far as is known.
        self._connected = asyncio.Event()
        self._connections = 0
        #: Whether the last connection came about, and brought nothing that is wrong.
        self.reached = False

    def use(self, channel: grpc.aio.Channel, receipts: Receipts, line: Line) -> None:
        """Goes on with another channel, and what belongs to it."""
        self._channel, self._receipts, self._line = channel, receipts, line

    async def serve(self) -> tuple[bool, str]:
        """Takes orders by one connection, as `stay`, and ends with it."""
        try:
            return await self.stay()
        finally:
            await self.close()

    async def stay(self) -> tuple[bool, str]:
        """Takes orders until the stream ends; returns whether the manager ended it, and the reason."""
        self._reports, self._unread_bytes, self.reached = asyncio.Queue(), 0, False
        self._connections += 1
        self._report(self._attached)
        attach = stream(self._channel, "/fedgsp.v1.OrderService/Attach", order_pb2.Order)
        question = secrets.token_hex(16)
        is_manager: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        reports = self._outgoing(self._reports, is_manager)
        call = attach(reports, metadata=shown(self._ticket, self._process, question))
        progress = asyncio.create_task(self._report_progress())
        progress.add_done_callback(_note_end)
        try:
            messages = aiter(call)
            if self._must_answer:
                is_answer = functools.partial(self._door.is_proven, self._attached.manager, question)
                await within(ANSWER_TIMEOUT_S, prove(call, messages, is_answer))
            is_manager.set_result(True)
            self._connected.set()
            async for proto in messages:
                self.reached = True
                if isinstance(proto, Unreadable):
                    self.reached = False
                    return False, f"its order {proto.why}"
                order = wire.decode(Order, proto)
                if flaw := self._flaw(order):
                    self.reached = False
                    return False, flaw
                self._take(order)
            return True, "the manager closed the stream"
        except UnprovenError:
            return False, TAKEN
        except TimeoutError:
            return False, f"it did not show within {ANSWER_TIMEOUT_S:.0f} s that it is the manager"
        except grpc.aio.AioRpcError as error:
            return False, describe(error)
        except asyncio.CancelledError:
            if (task := asyncio.current_task()) is None or task.cancelling():
                raise
            return False, "its channel was closed"  # gRPC cancels the calls of a channel that is closed
        finally:
            self._connected.clear()
            progress.cancel()
            if not is_manager.done():
                is_manager.set_result(False)
            self._reports.put_nowait(None)
            call.cancel()
            await asyncio.gather(progress, return_exceptions=True)

    async def close(self) -> None:
        """Ends all orders of this manager."""
        running = list(self._running.values())
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    async def _outgoing(
        self, reports: asyncio.Queue[order_pb2.NodeReport | None], is_manager: asyncio.Future[bool]
    ) -> AsyncIterator[order_pb2.NodeReport]:
        """Reports: the first says who attaches, and the others go to the manager itself and to nobody else."""
        while (report := await reports.get()) is not None:
            self._unread_bytes -= report.ByteSize()
            yield report
            if not await asyncio.shield(is_manager):
                return

    def _flaw(self, order: Order) -> str:
        """Why a manager is left: what it sends would fill the memory of this node. Empty if nothing is wrong."""
        key = order.key
        names = (*((key.run, key.task) if key is not None else ()), *models_of(order.work))
        if any(len(name) > MOST_NAME for name in names):
            return f"a name in its order has more than {MOST_NAME} characters"
        if self._unread_bytes > MOST_UNREAD_BYTES:
            return f"it has left {self._unread_bytes / 1e6:.0f} MB of reports unread"
        return ""

    def _send(self, report: order_pb2.NodeReport) -> None:
        self._unread_bytes += report.ByteSize()
        self._reports.put_nowait(report)

    def _take(self, order: Order) -> None:
        key = order.key
        if key is None:
            self._log.ignored()
        elif isinstance(order.work, Cancel):
            if key in self._running:
                self._running[key].cancel()
        elif key.run not in (self._attached.run_id, self._attached.run_id + ALONE):
            wrong = f"an order of run {key.run!r}, not of {self._attached.run_id!r}"
            self._send(self._failed(key, order, Failure(FailureCode.BAD_ORDER, wrong)))
        elif key in self._reported:  # an order that comes twice is answered twice and carried out once
            self._send(self._reported[key])
        elif key not in self._running:
            self._door.reach(key.run, key.round)
            task = asyncio.create_task(self._carry_out(key, order), name=f"{order.client}:{key}")
            self._running[key] = task
            self._all_running.begin(key, task)
            task.add_done_callback(functools.partial(self._ended, key, order))

    def _ended(self, key: OrderKey, order: Order, task: asyncio.Task[None]) -> None:
        del self._running[key]
        if task.cancelled():  # before its first step
            self._send(self._failed(key, order, _CALLED_OFF))

    async def _carry_out(self, key: OrderKey, order: Order) -> None:
        receipt = b""

        def trained(result: Trained) -> None:
            nonlocal receipt
            self._log.trained(key, order.client, result)
            receipt = self._receipts.answer(self._attached, key, order, result)

        def came(digest: bytes) -> None:
            self._report(Fetched(key, digest))

        try:
            result = await self._worker.carry_out(order, self._upload, trained, came)
            if not isinstance(order.work, Train):
                receipt = self._receipts.answer(self._attached, key, order, result)
            # A report that cannot be encoded fails this order, not the stream.
            report = wire.encode(NodeReport(Done(key, result, receipt)))
        except (OrderError, WeightsError) as error:
            report = self._failed(key, order, error.failure)
            if error.failure.code is not FailureCode.POLICY:  # the guard has logged it, and not too often
                self._log.failed(key, order.client, error.failure)
        except asyncio.CancelledError:
            report = self._failed(key, order, _CALLED_OFF)
        except UserError as error:
            self._log.failed(key, order.client, error)
            report = self._failed(key, order, failure_of(error))
        except Exception as error:  # the manager must learn of a bug; it would wait otherwise
            failure = Failure(FailureCode.UNSPECIFIED, f"{type(error).__name__}: {error}")
            self._log.failed(key, order.client, failure, exc_info=True)
            report = self._failed(key, order, failure)
        self._reported[key] = report
        while len(self._reported) > REMEMBERED_REPORTS:
            self._reported.popitem(last=False)
        self._send(report)

    def _failed(self, key: OrderKey, order: Order, failure: Failure) -> order_pb2.NodeReport:
        """The report of an order that was not carried out; the receipts of this node keep it, too."""
        self._receipts.failed(self._attached, key, order, failure)
        report: order_pb2.NodeReport = wire.encode(NodeReport(Failed(key, failure)))
        return report

    def _report(self, kind: Attached | Fetched | Progress) -> None:
        self._send(wire.encode(NodeReport(kind)))

    async def _upload(self, model_id: str, weights: Weights, ticket: bytes, receiver: str) -> None:
        """Uploads a model. If the connection is lost, the upload waits for the next one.

        An upload that has stalled is tried again, too: perhaps this process or the receiver was frozen. It fails after
        `MOST_LONG` tries that took long, and after `MOST_UPLOADS` in all.
        """
        tries, connection, lasted, loop = 0, self._connections, list[float](), asyncio.get_running_loop()
        while True:
            await self._connected.wait()  # else another process could have the manager's port by now
            begin = loop.time()
            try:
                return await self._try_upload(model_id, weights, ticket, receiver)
            except WeightsError as error:
                tries = tries + 1 if connection == self._connections else 1
                lasted.append(loop.time() - begin)
                if error.failure.code not in UPLOAD_AGAIN or tries == UPLOADS:
                    raise
                if len(lasted) == MOST_UPLOADS or sum(one >= LONG_TRY_S for one in lasted) == MOST_LONG:
                    raise _cut_off(model_id, lasted, error.failure) from None
            connection = self._connections
            await asyncio.sleep(AGAIN_AFTER_S)

    async def _try_upload(self, model_id: str, weights: Weights, ticket: bytes, receiver: str) -> None:
        try:
            channel = await self._line.dial()
        except UserError as error:
            raise WeightsError(FailureCode.UNREACHABLE, str(error)) from None
        await upload(
            channel, model_id, weights, self._worker.chunk_went, receiver, ticket, self._line.way, self._worker.bases
        )

    async def _report_progress(self) -> None:
        """Reports progress once a second. An order that waits progresses with the slot and the network.

        Processor time is no progress, but shows that the node is in a long batch and does not wait in vain.
        """
        last_mark, last_s = -1, 0.0
        while True:
            await asyncio.sleep(PROGRESS_INTERVAL_S)
            ready = self._channel.get_state() is grpc.ChannelConnectivity.READY
            self.reached |= ready and self._connected.is_set()
            mark, computed_s = self._worker.mark, self._worker.computed_s
            if (mark != last_mark or computed_s >= last_s + LEAST_COMPUTED_S) and self._running:
                self._report(Progress(tuple(OrderProgress(key, mark, computed_s) for key in self._running)))
                last_s = computed_s
            last_mark = mark


def _cut_off(model_id: str, lasted: Sequence[float], last: Failure) -> WeightsError:
    return WeightsError(
        last.code,
        f"model {model_id!r} was cut off {len(lasted)} times on its way, after {max(lasted):.0f} s at most: perhaps a"
        f" proxy or a firewall limits how long a connection may last ({last.detail})",
    )


def _note_end(progress: asyncio.Task[None]) -> None:
    if not progress.cancelled() and (error := progress.exception()) is not None:
        logger.error("progress is not reported any more, so the manager takes this node for silent", exc_info=error)
