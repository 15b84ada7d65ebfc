"""Class histograms: which answers can be used, and what is recorded of the others."""

from __future__ import annotations

from typing import cast

import pytest

from fedgsp.messages import MOST_SAMPLES, Described, MemberDone
from tests.support.recorder import Recorder
from tests.support.surveyed import surveyed


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
