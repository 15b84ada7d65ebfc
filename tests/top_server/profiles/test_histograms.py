"""Class histograms: which answers can be used, and what is recorded of the others."""

from __future__ import annotations

from typing import cast

import pytest

from fedgsp.messages import MOST_SAMPLES, Described, MemberDone
from tests.support.recorder import Recorder
from tests.support.surveyed import surveyed
from top_server.managers.pool import Manager


async def test_a_client_that_comes_back_with_other_data_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[int] = []  # samples of the first class
    async with surveyed(monkeypatch, 2) as surveys:
        surveys.answers["describe"] = lambda task: surveys.outcome(
            task, done=tuple(MemberDone(client, 0, Described((told[-1], *[0] * 9))) for client in task.clients)
        )
        profile, members = surveys.stage.profile("histograms"), surveys.stage.context.membership
        node = await surveys.join("n7", c7=30)
        for number, samples, first in ((1, 30, 30), (2, 30, 9), (3, 24, 20)):
            told.append(first)
            await members.leave(node, "its stream was lost")
            node = await surveys.join("n7", c7=samples)
            evidence = await profile.gather(number)
        assert [task.clients for task in surveys.of("describe")] == [(0, 1, 7), (7,)]
        assert evidence.histograms is not None
        assert evidence.histograms[:, 0].tolist() == [30, 30, 20]


async def test_a_client_that_comes_back_with_other_data_while_others_are_asked_is_asked_in_the_next_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with surveyed(monkeypatch, 1) as surveys:
        surveys.answers["describe"] = lambda task: surveys.outcome(
            task, done=tuple(MemberDone(client, 0, Described((30, *[0] * 9))) for client in task.clients)
        )
        profile, managers = surveys.stage.profile("histograms"), surveys.stage.context.managers
        node = await surveys.join("n7", c7=30)
        await profile.gather(1)
        await surveys.stage.context.membership.leave(node, "its stream was lost")
        ensure = managers.ensure

        async def meanwhile(count: int) -> list[Manager]:
            await surveys.join("n7", c7=24)
            monkeypatch.setattr(managers, "ensure", ensure)
            return await ensure(count)

        monkeypatch.setattr(managers, "ensure", meanwhile)
        await surveys.join("n8", c8=5)
        assert (await profile.gather(2)).clients == (0, 8)
        assert (await profile.gather(3)).clients == (0, 7, 8)
        assert [task.clients for task in surveys.of("describe")] == [(0, 7), (8,), (7,)]


async def test_who_tells_no_histogram_is_left_out_and_recorded_like_all_who_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    good = (1, *[0] * 9)
    told = [Described(good), Described((1, 2)), Described((0,) * 10), Described((MOST_SAMPLES, *good[:9])), None]
    async with surveyed(monkeypatch, len(told)) as surveys:
        done = tuple(MemberDone(client, 0, answer) for client, answer in enumerate(told))
        surveys.answers["describe"] = lambda task: surveys.outcome(task, done=done)
        evidence = await surveys.stage.profile("histograms").gather(3)
        events = cast("Recorder", surveys.stage.context.journal).of_kind("client_skipped")
    assert evidence.clients == (0,)
    assert evidence.histograms is not None
    assert evidence.histograms.tolist() == [list(good)]
    assert [(event["client"], event["program"], event["code"]) for event in events] == [
        (client, "describe", "BAD_ORDER") for client in (1, 2, 3, 4)
    ]
    assert [event["reason"].partition(", the task ")[0] for event in events] == [
        f"its class histogram has {entries} entries with {samples} samples"
        for entries, samples in [(2, 3), (10, 0), (10, MOST_SAMPLES + 1), (0, 0)]
    ]
    assert all(
        event["reason"].endswith("10 classes: let class_counts() count the samples of each") for event in events
    )


async def test_a_client_whose_new_histogram_cannot_be_used_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    async with surveyed(monkeypatch, 1) as surveys:
        told = [Described((3, *[0] * 9)), Described((1, 2)), Described((4, *[0] * 9))]
        surveys.answers["describe"] = lambda task: surveys.outcome(
            task, done=tuple(MemberDone(client, 0, told[0]) for client in task.clients if client)
        )
        profile, members = surveys.stage.profile("histograms"), surveys.stage.context.membership
        found = []
        for number, samples in ((1, 30), (2, 24), (3, 24)):
            node = await surveys.join("n7", c7=samples)
            found.append((await profile.gather(number)).clients)
            await members.leave(node, "its stream was lost")
            del told[0]
        assert found == [(7,), (), (7,)]


@pytest.mark.parametrize("older", [False, True])
async def test_counts_that_are_not_those_of_the_samples_are_asked_for_once(
    older: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as counts with noise, of which a second draw would tell more; also by a state of an older version."""
    async with surveyed(monkeypatch, 1) as surveys:
        surveys.answers["describe"] = lambda task: surveys.outcome(
            task, done=(MemberDone(0, 0, Described((77, *[0] * 9))),)
        )
        first, again = surveys.stage.profile("histograms"), surveys.stage.profile("histograms")
        await first.gather(1)
        await first.gather(2)
        saved = first.save()
        again.restore({"known": saved["known"]} if older else saved)
        await again.gather(3)
        assert len(surveys.of("describe")) == 1
