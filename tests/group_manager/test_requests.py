"""Which requests are refused before anything is begun; each case is a good one but for what it names."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from fedgsp.messages import MOST_CLIENT, MOST_SAMPLES, FinishedHop, Member, ModelRef, Part
from group_manager.requests import MOST_LOST, MOST_STALL_S, refusal
from tests.support.real_manager import request

MODEL, OTHER, NAMELESS = ModelRef("model"), ModelRef("other"), ModelRef("")
MEMBERS = (Member(0, "n0", "", 5), Member(1, "n1", "", 7))
OWN = tuple(replace(member, start=Part(OTHER, member.node, 1.0, member.client)) for member in MEMBERS)
HOP = FinishedHop(MEMBERS[0], MODEL)
RELAY = request("relay", members=MEMBERS, start=MODEL)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"stall_timeout_s": MOST_STALL_S},
        {"program": "describe", "start": None, "training": None},
        {"program": "evaluate", "training": None},
        {"program": "alone", "start": None, "members": OWN},
        {"program": "collect", "start": None, "members": OWN},
        {"parts": (Part(OTHER, "", 1.0),)},
        {"members": ()},
        {"members": (replace(MEMBERS[0], client=MOST_CLIENT),)},
        {"finished": (HOP,), "planned": (0, 1, 2), "attempt": MOST_LOST, "most_update_ratio": 3.0},
    ],
)
def test_a_request_that_can_be_run_is_not_refused(changes: dict[str, Any]) -> None:
    assert refusal(replace(RELAY, **changes)) == ""


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"stall_timeout_s": 0.0}, "cannot stall for 0.0 s"),
        ({"stall_timeout_s": math.nan}, "cannot stall for nan s"),
        ({"stall_timeout_s": 2 * MOST_STALL_S}, "cannot stall for"),
        ({"training": None}, "relay needs training settings"),
        ({"program": "initialise", "training": None}, "initialise needs training settings"),
        ({"start": None}, "relay needs a start"),
        ({"start": NAMELESS}, "relay needs a start"),
        ({"program": "parallel", "start": None, "members": (OWN[0], MEMBERS[1])}, "parallel needs a start"),
        ({"program": "parallel", "start": None, "members": OWN, "aggregation": "fednova"}, "parallel needs a start"),
        ({"program": "compare", "start": None, "members": OWN}, "compare needs a start"),
        ({"start": NAMELESS, "parts": (Part(OTHER, "", 1.0),)}, "the mean of the parts has no name"),
        ({"parts": (Part(NAMELESS, "", 1.0),)}, "a part has no name"),
        ({"parts": (Part(None, "", 1.0),)}, "a part has no name"),
        ({"members": (replace(OWN[0], start=Part(NAMELESS, "n0", 1.0)),)}, "a part has no name"),
        ({"parts": (Part(MODEL, "", 1.0),)}, "'model' cannot be a part of itself"),
        ({"program": "collect", "members": (OWN[0], MEMBERS[1])}, "a member has no model to collect"),
        ({"members": (replace(MEMBERS[0], client=MOST_CLIENT + 1),)}, f"no client has the id {MOST_CLIENT + 1}"),
        ({"members": (MEMBERS[0], MEMBERS[0])}, "a client is a member twice"),
        ({"program": "discriminate", "members": tuple(Member(i, "n0", "", 1) for i in range(5000))}, "too many"),
        ({"program": "parallel", "finished": (HOP,)}, "program parallel has no hops"),
        ({"finished": (FinishedHop(None, MODEL),)}, "has no member or no model"),
        ({"finished": (FinishedHop(MEMBERS[0], NAMELESS),)}, "has no member or no model"),
        ({"finished": (HOP, FinishedHop(MEMBERS[0], OTHER))}, "in the finished hops twice, or"),
        ({"finished": (HOP, FinishedHop(MEMBERS[1], MODEL))}, "a model is in the finished hops twice"),
        ({"finished": (FinishedHop(replace(MEMBERS[0], client=MOST_CLIENT + 1), MODEL),)}, "has no possible id"),
        ({"finished": (FinishedHop(replace(MEMBERS[0], samples=MOST_SAMPLES + 1), MODEL),)}, "more samples than"),
        ({"attempt": MOST_LOST + 1}, f"no group has lost {MOST_LOST + 1} managers"),
        ({"planned": (0,)}, "a member is not planned"),
        ({"planned": (0, 1, 1)}, "a client is planned twice"),
        ({"most_update_ratio": -1.0}, "cannot be -1.0 times"),
        ({"most_update_ratio": math.inf}, "cannot be inf times"),
        ({"most_update_ratio": math.nan}, "cannot be nan times"),
    ],
)
def test_a_request_that_cannot_be_run_is_refused_with_the_reason(changes: dict[str, Any], why: str) -> None:
    assert why in refusal(replace(RELAY, **changes))
