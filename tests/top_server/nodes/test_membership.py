from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import top_server.nodes.membership
from fedgsp.errors import RunError
from fedgsp.messages import (
    Additions,
    AttachTo,
    Failure,
    FailureCode,
    Hello,
    HostedClient,
    Leave,
    Member,
    RelayMode,
    TensorSpec,
    Welcome,
)
from fedgsp.scoring import Scoring
from tests.support.callers import ANYBODY
from tests.support.hellos import bare, hello, membership
from tests.support.weights import TENSORS
from top_server.nodes.declared import lacked_by_all, scoring_of
from top_server.nodes.membership import MOST_OFFENCES, Membership
from top_server.nodes.node import Node
from top_server.record.audit import Audit

FINISHED = Leave(True, "the run is finished")


async def admitted(members: Membership, said: Hello) -> Node:
    node = await members.admit(said, ANYBODY)
    assert isinstance(node, Node), node
    return node


async def refused(members: Membership, said: Hello) -> Failure:
    before = members.clients, members.nodes
    failure = await members.admit(said, ANYBODY)
    assert isinstance(failure, Failure)
    assert (members.clients, members.nodes) == before
    return failure


# --- who takes part


async def test_a_node_and_its_clients_become_part_of_the_run() -> None:
    members, recorder = membership()
    node = await admitted(members, hello(clients=(5, 2)))
    assert bare(node.outbox.get_nowait()) == Welcome("run-1")
    assert members.nodes == 1
    assert list(members.clients) == [2, 5]
    assert members.member(5) == Member(5, "n0", "127.0.0.1:7000", 15, node_clients=2, node_samples=37)
    assert (members.tensors, members.standard.num_classes, members.standard.training_flop) == (TENSORS, 10, 1000)
    (joined,) = recorder.of_kind("node_joined")
    assert joined.items() >= {"node": "n0", "clients": 2, "address": "127.0.0.1:7000"}.items()


async def test_a_training_that_adds_tensors_is_told_to_nodes_and_its_tensors_belong_to_the_model() -> None:
    members, _ = membership(additions=Additions("fedfusion", {"operator": "multi"}))
    node = await admitted(members, hello(features=TensorSpec("5", "float32", (64,))))
    assert bare(node.outbox.get_nowait()) == Welcome("run-1", Additions("fedfusion", {"operator": "multi"}))
    assert members.tensors == (*TENSORS, TensorSpec("fusion_gamma", "float32", (64,)))
    without, _ = membership(additions=Additions("fedfusion"))
    await admitted(without, hello())
    assert (without.standard.features, without.tensors) == (None, TENSORS)


async def test_before_the_first_node_nothing_is_known() -> None:
    members, _ = membership()
    assert (members.tensors, members.standard.num_classes, members.standard.training_flop) == ((), 0, 0)
    assert members.standard.features is None
    assert members.clients == {}
    assert members.member(0) is None


async def test_clients_of_a_node_that_left_are_gone() -> None:
    members, recorder = membership()
    node = await admitted(members, hello())
    await admitted(members, hello("n1", (2,)))
    await members.leave(node, "its stream was lost")
    assert list(members.clients) == [2]
    assert members.member(0) is None
    assert recorder.events[-1] == {"event": "node_left", "node": "n0", "reason": "its stream was lost"}


async def test_a_node_may_come_back_and_its_old_stream_ends_without_harm() -> None:
    members, recorder = membership()
    old = await admitted(members, hello())
    await members.leave(old, "its stream was lost")
    await admitted(members, hello())
    await members.leave(old, "its stream was lost")
    assert members.member(0) is not None
    assert members.nodes == 1
    assert len(recorder.of_kind("node_left")) == 1


class FullDisk(Audit):
    def note(self, what: str, **fields: Any) -> None:
        if what == "left":
            raise RunError("audit.jsonl cannot be written")


async def test_a_node_that_is_dismissed_leaves_also_if_no_line_about_it_can_be_written() -> None:
    members, _ = membership(audit=FullDisk())
    first, second = await admitted(members, hello()), await admitted(members, hello("n1", clients=(2,)))
    with pytest.raises(RunError):  # while the run goes on, this line must not be missing
        await members.leave(first, "its stream was lost")
    await members.dismiss(FINISHED, 0.0)
    await members.leave(second, "its stream was lost")
    assert members.nodes == 0


async def test_a_node_gets_the_address_of_a_manager_at_every_call() -> None:
    members, _ = membership()
    manager = AttachTo("m0", "127.0.0.1:7001")
    node = await admitted(members, hello())
    for _ in range(2):
        members.attach("n0", manager)
    assert [bare(node.outbox.get_nowait()) for _ in range(node.outbox.qsize())] == [Welcome("run-1"), manager, manager]


async def test_of_two_managers_at_an_address_a_node_is_told_the_last() -> None:
    """A new manager may get the port of a dead one: who dials both would cut one off for the other."""
    members, _ = membership()
    node = await admitted(members, hello())
    for name, port in (("m0", 7001), ("m1", 7002), ("m2", 7001)):
        members.attach("n0", AttachTo(name, f"127.0.0.1:{port}"))
    await members.leave(node, "its stream was lost")
    again = await admitted(members, hello())
    told = [bare(again.outbox.get_nowait()) for _ in range(again.outbox.qsize())]
    assert told == [Welcome("run-1"), AttachTo("m1", "127.0.0.1:7002"), AttachTo("m2", "127.0.0.1:7001")]


async def test_a_node_that_returns_gets_the_addresses_of_running_managers() -> None:
    members, _ = membership()
    node = await admitted(members, hello())
    managers = [AttachTo("m0", "127.0.0.1:7001"), AttachTo("m1", "127.0.0.1:7002")]
    for manager in managers * 2:
        members.attach("n0", manager)
    for _ in range(2):
        await members.leave(node, "its stream was lost")
        node = await admitted(members, hello())
        assert [bare(node.outbox.get_nowait()) for _ in range(node.outbox.qsize())] == [Welcome("run-1"), *managers]
    stranger = await admitted(members, hello("n1", (2,)))
    assert stranger.outbox.qsize() == 1


async def test_what_a_node_was_told_that_stays_away_is_not_kept_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(top_server.nodes.membership, "MOST_NODES", 1)
    members, _ = membership()
    for name in ("n0", "n1"):
        node = await admitted(members, hello(name))
        members.attach(name, AttachTo("m0", "127.0.0.1:7001"))
        await members.leave(node, "its stream was lost")
    told = []
    for name in ("n0", "n1"):
        node = await admitted(members, hello(name))
        told.append(node.outbox.qsize() - 1)
        await members.leave(node, "its stream was lost")
    assert told == [0, 1]


async def test_a_node_that_is_not_there_is_told_nothing() -> None:
    members, _ = membership()
    members.attach("n0", AttachTo("m0", "127.0.0.1:7001"))
    assert members.nodes == 0


# --- who does not, and what to do about it


async def test_a_refused_node_changes_nothing_and_is_recorded() -> None:
    members, recorder = membership(task_options={"partition": "shards"})
    await admitted(members, hello())
    for said, code in (
        (hello("n0", (2,)), FailureCode.NAME_TAKEN),
        (hello("n1", (2, 1)), FailureCode.CLIENT_TAKEN),
        (hello("n1", (2,), task_options={"partition": "iid"}), FailureCode.WRONG_TASK),
        (hello("n1", (2,), num_classes=9), FailureCode.WRONG_TASK),
    ):
        failure = await refused(members, said)
        assert failure.code is code
        last = recorder.events[-1]
        assert (last["event"], last["node"]) == ("node_refused", said.node)
        assert last["reason"].startswith(str(failure))
    direct, _ = membership(RelayMode.DIRECT)
    assert (await refused(direct, hello(peer_address=""))).code is FailureCode.CANNOT_BE_DIALLED


async def test_nobody_is_admitted_once_the_run_is_over_and_no_event_says_so() -> None:
    members, recorder = membership()
    await members.dismiss(FINISHED, 1)
    failure = await refused(members, hello())
    assert failure.code is FailureCode.RUN_OVER
    assert "join the next one" in failure.detail
    assert recorder.events == []


async def test_a_node_that_comes_while_the_run_is_being_stopped_is_told_to_wait_and_no_event_says_so() -> None:
    members, recorder = membership()
    await members.dismiss(Leave(False, "SIGTERM", resumable=True), 1)
    failure = await refused(members, hello())
    assert failure == Failure(FailureCode.RUN_STOPPED, "the top server is stopping: wait until the run is resumed")
    assert recorder.events == []


async def test_a_refused_node_sets_no_standard_for_others() -> None:
    members, _ = membership()
    await refused(members, hello(task="mnist", num_classes=3))
    await admitted(members, hello())
    assert members.standard.num_classes == 10


async def test_a_first_node_that_was_mistaken_can_be_corrected_before_work_began() -> None:
    members, _ = membership()
    mistaken = await admitted(members, hello(num_classes=62, tensors=TENSORS[:1]))
    await members.leave(mistaken, "its stream was lost")
    await admitted(members, hello())
    assert (members.tensors, members.standard.num_classes) == (TENSORS, 10)


async def test_a_model_that_was_worked_on_stays_the_model_of_the_run() -> None:
    members, _ = membership()
    first = await admitted(members, hello())
    members.attach("n0", AttachTo("m0", "127.0.0.1:7001"))
    await members.leave(first, "its stream was lost")
    assert members.tensors == TENSORS
    assert (await refused(members, hello(num_classes=62))).code is FailureCode.WRONG_TASK
    await admitted(members, hello())


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sets(st.integers(0, 5), max_size=3), st.booleans()), max_size=12))
@settings(deadline=None, max_examples=60)
async def test_a_client_always_belongs_to_one_node_that_is_there(steps: list[tuple[str, set[int], bool]]) -> None:
    members, _ = membership()
    there: dict[str, Node] = {}
    for name, clients, comes in steps:
        if comes:
            answer = await members.admit(hello(name, tuple(clients)), ANYBODY)
            free = not clients & members.clients.keys()
            if isinstance(answer, Node):
                there[name] = answer
            else:
                assert name in there or not clients or not free
        elif name in there:
            await members.leave(there.pop(name), "lost")
        hosted = [client.client for node in there.values() for client in node.hello.clients]
        assert sorted(hosted) == list(members.clients)
        assert members.nodes == len(there)
        for node_name, node in there.items():
            for client in node.hello.clients:
                assert members.member(client.client) == Member(
                    client.client,
                    node_name,
                    "127.0.0.1:7000",
                    client.train_samples,
                    node_clients=len(node.hello.clients),
                    node_samples=node.samples,
                )


# --- waiting


async def test_a_node_is_admitted_in_one_step_so_that_hanging_up_leaves_no_member_without_a_stream() -> None:
    members, _ = membership()
    with pytest.raises(StopIteration):  # it has not waited for anything
        members.admit(hello("n0"), ANYBODY).send(None)
    assert not any(isinstance(kept, asyncio.Condition) for kept in vars(members).values())  # others can hold its lock


async def test_waiting_ends_with_the_last_node_and_client_that_was_missing() -> None:
    members, _ = membership()
    waiting = asyncio.create_task(members.wait_for(2, 3, 30))
    await admitted(members, hello())
    await asyncio.sleep(0)
    assert not waiting.done()
    await admitted(members, hello("n1", (2,)))
    assert await waiting


async def test_nodes_without_enough_clients_are_not_enough() -> None:
    members, _ = membership()
    await admitted(members, hello())
    assert await members.wait_for(1, 2, 0.01)
    assert not await members.wait_for(1, 3, 0.01)
    assert not await members.wait_for(2, 1, 0.01)


async def test_dismissed_nodes_are_told_and_waited_for() -> None:
    members, recorder = membership()
    node = await admitted(members, hello())
    dismissing = asyncio.create_task(members.dismiss(FINISHED, 30))
    assert [bare(await node.outbox.get()) for _ in range(3)] == [Welcome("run-1"), FINISHED, None]
    assert not dismissing.done()
    await members.leave(node, "its stream was lost")
    await dismissing
    assert recorder.events[-1] == {"event": "node_left", "node": "n0", "reason": "dismissed"}


async def test_a_node_that_does_not_go_is_not_waited_for_forever() -> None:
    members, _ = membership()
    await admitted(members, hello())
    await members.dismiss(FINISHED, 0.01)
    assert members.nodes == 1


async def test_a_client_is_left_out_after_several_offences_and_stays_so() -> None:
    members, recorder = membership()
    node = await admitted(members, hello("n1", (1, 2)))
    for _ in range(MOST_OFFENCES):
        assert set(members.clients) == {1, 2}
        members.note_offence(1)
    assert set(members.clients) == {2}
    assert recorder.events[-1]["event"] == "client_left_out"
    await members.leave(node, "its stream was lost")
    await admitted(members, hello("n1", (1, 2)))
    assert set(members.clients) == {2}
    assert await members.wait_for_all([1, 2], 60) == set()  # nobody waits for the one


async def test_those_that_do_not_come_back_in_time_are_named() -> None:
    members, _ = membership()
    waiting = asyncio.create_task(members.wait_for_all([1, 2], 60))
    await admitted(members, hello("n1", (1,)))
    await admitted(members, hello("n2", (2,)))
    assert await waiting == set()
    assert await members.wait_for_all([1, 9], 0.01) == {9}


async def test_names_of_clients_are_recorded_when_their_node_joins_and_free_when_it_left() -> None:
    members, recorder = membership()
    ghent = (HostedClient(0, 5, 5, "Ghent"), HostedClient(1, 5, 5))
    first = await members.admit(dataclasses.replace(hello("n0"), clients=ghent), ANYBODY)
    assert isinstance(first, Node)
    (joined,) = recorder.of_kind("node_joined")
    assert joined["names"] == {0: "Ghent"}
    other = dataclasses.replace(hello("n1"), clients=(HostedClient(2, 5, 5, "Ghent"),))
    assert isinstance(await members.admit(other, ANYBODY), Failure)
    await members.leave(first, "gone")
    assert isinstance(await members.admit(other, ANYBODY), Node)


async def test_a_run_lacks_only_what_all_nodes_lack() -> None:
    hellos = [hello("n0", lacks=("accuracy", "class counts")), hello("n1", (2, 3), lacks=("class counts",))]
    assert lacked_by_all(hellos) == {"class counts": ""}
    assert lacked_by_all([]) == {}
    failed = Failure(FailureCode.TASK_RAISED, "NameError")
    hellos.append(hello("n2", (4,), lacks=("class counts", "accuracy"), class_counts_failed=failed))
    assert lacked_by_all(hellos) == {"class counts": "node n2: NameError"}
    assert lacked_by_all(hellos[::2]) == {"accuracy": "", "class counts": "node n2: NameError"}
    assert scoring_of(None) == Scoring("accuracy", {})
    ways = {"rmse": "root-mean-square"}
    assert scoring_of(hello(score="-mae", combine=ways)) == Scoring("-mae", ways)
