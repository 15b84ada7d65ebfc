"""A top server, or one of its managers, orders what harms a site: a node with the default policy refuses it."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from fedgsp import wire
from fedgsp.connections.channels import Channels
from fedgsp.identity import TOP_SERVER, Identity
from fedgsp.identity import node as node_of
from fedgsp.messages import (
    Attached,
    AttachTo,
    Describe,
    Described,
    Evaluate,
    Evaluated,
    Failure,
    FailureCode,
    Initialise,
    Leave,
    Order,
    OrderKey,
    Recall,
    Release,
    Reveal,
    SendUp,
    Source,
    SourceKind,
    Start,
    TopServerMessage,
    Train,
    Trained,
    TrainingSettings,
    Welcome,
    Work,
)
from fedgsp.settings.run import NodeSettings
from fedgsp.v1 import membership_pb2_grpc, order_pb2, order_pb2_grpc
from fedgsp_node import server
from fedgsp_node.connections import attachment
from fedgsp_node.connections.attachment import Attachment
from group_manager.members import Members
from group_manager.server import OrderServicer
from tests.support.callers import ISSUER
from tests.support.processes import node, top_server
from tests.support.serving import serving

SETTINGS = TrainingSettings("sgd", 1, 5, 0.1, seed=3)
CLIENTS = 4
HERE = (Source(SourceKind.LOCAL, "n0"),)
#: The fewest numbers that the key of a policy takes, so that models are few.
FEW = 3


class TopServer(membership_pb2_grpc.MembershipServiceServicer):
    """Says whatever it is told to say."""

    def __init__(self) -> None:
        self.says: asyncio.Queue[Any] = asyncio.Queue()

    async def Join(self, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:  # noqa: N802
        await anext(aiter(requests))
        yield wire.encode(TopServerMessage(Welcome("run", key=ISSUER.key_of(node_of("n0")))))
        while True:
            kind = await self.says.get()
            yield wire.encode(TopServerMessage(kind))


@dataclass
class Attack:
    """A real node, and what its enemies can say to it."""

    top: TopServer
    members: Members
    manager: str
    #: Targets that the node gave to gRPC, in this order.
    dialled: list[str] = field(default_factory=list)
    serial: int = 0

    async def order(self, work: Work, client: int = 0, round_number: int = 1) -> Any:
        """The answer of the node to an order."""
        self.serial += 1
        key = OrderKey(round_number, "some", 0, self.serial, 0, "run")
        ticket = self.members.submit("n0", Order(key, client, work))
        return await self.members.outcome(ticket, 20)

    async def refused(self, work: Work, key: str) -> None:
        """Sends an order, and expects a refusal that names this key."""
        answer = await self.order(work)
        assert isinstance(answer, Failure), answer
        assert answer.code is FailureCode.POLICY
        assert f"{key} of the policy of this node is" in answer.detail
        assert f"(--allow {key}=" in answer.detail

    async def is_useful(self) -> None:
        """Whether the node still does what it should."""
        assert isinstance(await self.order(Initialise("start", 1)), Trained)
        assert isinstance(await self.order(Train(Start("start", HERE), f"end {self.serial}", SETTINGS)), Trained)
        assert isinstance(await self.order(Describe()), Described)


@asynccontextmanager
async def attack(monkeypatch: pytest.MonkeyPatch, **allow: str) -> AsyncIterator[Attack]:
    """A node with the default policy, attached to a manager that orders whatever it is told to order."""
    members, top, dialled = Members(), TopServer(), []
    dial: Callable[..., Awaitable[grpc.aio.Channel]] = Channels._dial

    async def noted(self: Channels, key: tuple[str, bool], who: Identity) -> grpc.aio.Channel:
        dialled.append(key[0])
        return await dial(self, key, who)

    def register_top(s: grpc.aio.Server) -> None:
        membership_pb2_grpc.add_MembershipServiceServicer_to_server(top, s)

    def register_orders(s: grpc.aio.Server) -> None:
        order_pb2_grpc.add_OrderServiceServicer_to_server(OrderServicer(members, "m0", "run", "", ISSUER), s)

    async with serving(register_top) as there, serving(register_orders) as manager:
        monkeypatch.setattr(Channels, "_dial", noted)
        settings = NodeSettings(
            insecure=True,
            top_server=there.address,
            task="tests.support.blobs_task:Blobs",
            task_option={"clients": str(CLIENTS)},
            name="n0",
            allow=allow,
        )
        living = asyncio.create_task(server.run(settings))
        top.says.put_nowait(AttachTo("m0", manager.address))
        assert await members.wait_for({"n0"}, 20) == set()
        yield Attack(top, members, manager.address, dialled)
        top.says.put_nowait(Leave(True, "done"))
        await living


async def test_orders_beyond_the_default_policy_are_refused_by_name_and_the_node_stays_useful(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def training(reveal: Reveal | None = None, **changes: Any) -> Train:
        settings = dataclasses.replace(SETTINGS, **changes)
        return Train(Start("start", HERE), "crafted", settings, reveal)

    async with attack(monkeypatch) as a:
        assert isinstance(await a.order(Initialise("start", 1)), Trained)
        await a.refused(training(local_epochs=2**32 - 1), "most_epochs")
        adapting = dataclasses.replace(SETTINGS, algorithm="finetune", options={"steps": "8000"})
        await a.refused(Evaluate(Start("start", HERE), settings=adapting, personalised=True), "most_epochs")
        await a.refused(training(Reveal("exact")), "reveal")
        await a.refused(training(Reveal("layer:0")), "reveal")
        await a.refused(training(Reveal("sketch:131072")), "reveal")
        await a.refused(training(batch_size=1), "least_batch_size")
        await a.refused(training(learning_rate=1e6), "most_learning_rate")
        await a.is_useful()
    logged = [record.getMessage() for record in caplog.records if record.name == "fedgsp_node.policies.guard"]
    assert len(logged) == 2  # the others came within seconds
    assert "refused 7 of " in logged[1]  # at the end of the node
    assert "most_epochs of the policy of this node is 1000" in logged[0]


async def test_a_node_keeps_no_more_models_than_its_policy_says_and_makes_others_when_some_are_released(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with attack(monkeypatch, most_held_models=str(FEW)) as a:
        answers = [await a.order(Initialise(f"model {number}", number)) for number in range(3 * FEW * CLIENTS)]
        made = [answer for answer in answers if isinstance(answer, Trained)]
        assert len(made) == FEW * CLIENTS
        await a.refused(Initialise("one more", 1), "most_held_models")
        assert isinstance(await a.order(Describe()), Described)
        await a.order(Release(tuple(f"model {number}" for number in range(FEW * CLIENTS))))
        await a.is_useful()


async def test_a_training_that_takes_too_long_is_stopped_after_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    async with attack(monkeypatch, most_epochs=str(2**32), most_total_epochs=str(2**33), most_seconds="0.2") as a:
        assert isinstance(await a.order(Initialise("start", 1)), Trained)
        endless = dataclasses.replace(SETTINGS, local_epochs=2**32 - 1, learning_rate=0.001)
        await a.refused(Train(Start("start", HERE), "endless", endless), "most_seconds")
        await a.is_useful()


async def test_a_node_evaluates_models_of_others_no_more_often_than_its_policy_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of chosen models, the answers tell single samples: the fewer answers, the fewer samples."""
    async with attack(monkeypatch, most_evaluations=str(FEW)) as a:
        assert isinstance(await a.order(Initialise("start", 1)), Trained)
        answers = [await a.order(Evaluate(Start("start", HERE)), round_number=number) for number in range(2 * FEW)]
        assert [isinstance(answer, Evaluated) for answer in answers] == [True] * FEW + [False] * FEW
        assert all("most_evaluations" in answer.detail for answer in answers[FEW:])


async def test_a_node_trains_a_client_no_more_often_than_its_policy_says(monkeypatch: pytest.MonkeyPatch) -> None:
    async with attack(monkeypatch, most_trainings=str(FEW)) as a:
        assert isinstance(await a.order(Initialise("start", 1)), Trained)
        answers = [
            await a.order(Train(Start("start", HERE), f"end {number}", SETTINGS), round_number=number)
            for number in range(2 * FEW)
        ]
        assert [isinstance(answer, Trained) for answer in answers] == [True] * FEW + [False] * FEW
        assert all("most_trainings" in answer.detail for answer in answers[FEW:])
        other = await a.order(Train(Start("start", HERE), "other", SETTINGS), client=1)
        assert isinstance(other, Trained)


ELSEWHERE = [
    "10.1.2.3:8080",
    "192.168.0.1:8080",
    "169.254.169.254:80",
    "[fd00:ec2::254]:8080",
    "[fe80::1%lo]:8080",
    "db.internal:5432",
    "2130706433:6379",
    "127.1:6379",
    "unix-abstract:7",
    "vsock:7",
    "dns:7",
]


async def test_a_node_dials_no_host_but_that_of_its_top_server(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A process of the site listens at a socket of the file system, which gRPC would take for the host `unix`."""
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as internal:
        internal.bind("7777")
        internal.listen()
        internal.setblocking(False)
        async with attack(monkeypatch) as a:
            for number, address in enumerate(["unix:7777", *ELSEWHERE]):
                a.top.says.put_nowait(AttachTo(f"evil-{number}", address))
            for address in ["unix:7777", *ELSEWHERE]:
                far = Start(f"model of {address}", (Source(SourceKind.NODE, "n9", address),))
                answer = await a.order(Train(far, "end", SETTINGS))
                assert isinstance(answer, Failure)
                assert answer.code in (FailureCode.POLICY, FailureCode.UNREACHABLE)
            await a.is_useful()
            assert set(a.dialled) <= {a.manager, a.dialled[0]}
        with pytest.raises(BlockingIOError):
            internal.accept()


async def test_a_host_that_is_allowed_is_still_no_path_to_a_socket(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as internal:
        internal.bind("7777")
        internal.listen()
        internal.setblocking(False)
        async with Channels(insecure=True) as channels:
            call = (await channels.to("unix:7777", TOP_SERVER)).unary_unary("/fedgsp.v1.ModelService/Fetch")
            with pytest.raises(grpc.aio.AioRpcError):
                await call(b"", timeout=1.0)
        with pytest.raises(BlockingIOError):
            internal.accept()


async def test_a_node_attaches_to_no_more_managers_than_its_policy_says(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with attack(monkeypatch, most_managers="2") as a:
        for number in range(50):
            a.top.says.put_nowait(AttachTo(f"evil-{number}", f"127.0.0.1:{2000 + number}"))
        a.top.says.put_nowait(AttachTo("m0", a.manager))
        await a.is_useful()
        assert len(set(a.dialled)) <= 3  # the top server and two managers
    assert "most_managers of the policy of this node is 2" in caplog.text


async def test_orders_and_managers_that_fail_do_not_fill_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    flood: list[Callable[[int], Work]] = [
        lambda _: Recall("x" * 90, ()),
        lambda number: SendUp(f"m{number}", True),
        lambda _: Evaluate(None),
        lambda number: Evaluate(Start(f"m{number}", (Source(SourceKind.OWN, "n0"),))),
    ]
    async with attack(monkeypatch) as a:
        await a.is_useful()
        caplog.clear()
        caplog.set_level(logging.INFO)
        for work in flood:
            answers = await asyncio.gather(*(a.order(work(number), round_number=number) for number in range(50)))
            assert all(isinstance(answer, Failure) for answer in answers)
        for number in range(50):
            a.top.says.put_nowait(AttachTo(f"evil-{number}", "nowhere"))
            a.top.says.put_nowait(Welcome("run"))
        await a.is_useful()
    ours = [record for record in caplog.records if record.name.startswith("fedgsp")]
    assert 0 < len(ours) < 30, [record.getMessage() for record in ours]


@pytest.mark.e2e
@pytest.mark.timeout(180)
async def test_a_run_goes_on_without_the_node_that_refuses_and_tells_the_reason(tmp_path: Path) -> None:
    """Real processes. The refusals do not count against the node: it takes part in what it allows."""
    policy = tmp_path / "policy.toml"
    policy.write_text("most_epochs = 1\n")
    rounds, options = 4, ("--task-option", "clients=4")
    flags = ["--scheme", "global", "--rounds", str(rounds), "--local-epochs", "2", "--min-nodes", "2", *options]
    async with top_server(tmp_path, *flags) as run:
        address = (await run.event("listening"))["address"]
        strict = ("--policy", str(policy))
        async with (
            node(tmp_path, address, *options, "--clients", "0-1", name="willing") as willing,
            node(tmp_path, address, *options, "--clients", "2-3", *strict, name="strict") as refusing,
        ):
            for process in (run, willing, refusing):
                assert await process.ended(120) == 0, process.errors
    skipped = [event for event in run.events if event["event"] == "client_skipped"]
    assert {(event["client"], event["code"]) for event in skipped} == {(2, "POLICY"), (3, "POLICY")}
    assert len(skipped) == 2 * rounds
    reason = "it asks for 2 local epochs, and most_epochs of the policy of this node is 1"
    assert all(reason in event["reason"] for event in skipped)
    assert not [event for event in run.events if event["event"] == "client_left_out"]
    rows = [event for event in run.events if event["event"] == "round_finished"]
    assert [row["clients_trained"] for row in rows] == [2] * rounds
    assert all(set(row["accuracy_per_client"]) == set("0123") for row in rows)
    assert any(reason in line for line in refusing.lines)


# --- the memory of a node, outside of its policy


def attached() -> Attachment:
    nothing: Any = None
    return Attachment(nothing, Attached("run", "n0", "m0"), nothing)


def described(position: int = 0, run: str = "run", task: str = "some") -> Order:
    return Order(OrderKey(1, task, 0, position, 0, run), 0, Describe())


@pytest.mark.parametrize(
    "order",
    [
        described(run="run." + "x" * 1_000_000),
        described(task="x" * 1_000_000),
        Order(OrderKey(1, "some", 0, 0, 0, "run"), 0, Initialise("x" * 1_000, 1)),
    ],
    ids=["run", "task", "model"],
)
def test_a_manager_that_sends_names_of_megabytes_is_left(order: Order) -> None:
    assert attached()._flaw(order) == "a name in its order has more than 500 characters"
    assert attached()._flaw(described()) == ""


def test_a_manager_that_reads_no_reports_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attachment, "MOST_UNREAD_BYTES", 100_000)
    life, taken = attached(), 0
    while not (flaw := life._flaw(order := described(taken, "another run", "x" * 400))):
        life._take(order)
        taken += 1
    assert flaw == "it has left 0 MB of reports unread"
    assert 50 < taken < 250


async def test_an_order_with_millions_of_items_is_not_decoded() -> None:
    bomb = order_pb2.Order(client=0)
    bomb.key.CopyFrom(wire.encode(described()).key)
    bomb.train.outgoing.extend([order_pb2.OutgoingStep()] * 20_000)

    class Manager(order_pb2_grpc.OrderServiceServicer):
        async def Attach(self, reports: Any, context: Any) -> AsyncIterator[order_pb2.Order]:  # noqa: N802
            yield bomb
            await asyncio.Event().wait()

    def register(manager: grpc.aio.Server) -> None:
        order_pb2_grpc.add_OrderServiceServicer_to_server(Manager(), manager)

    nothing: Any = None
    async with serving(register) as served:
        ended, why = await Attachment(served.channel, Attached("run", "n0", "m0"), nothing).serve()
    assert not ended
    assert why == "its order is too large: train.outgoing has more than 10,000 items"
