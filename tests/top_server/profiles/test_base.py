"""What profiles ask, when nobody answers: all lost, perhaps with a network, or each for a reason of its own."""

from __future__ import annotations

import pytest

from fedgsp.messages import Described, Failure, FailureCode, MemberDone, MemberSkipped
from tests.support.surveyed import Surveys, surveyed
from top_server.groups.lost import AllLostError
from top_server.groups.task import GroupOutcome, GroupTask

LOST, STALLED, RAISED = FailureCode.NODE_LOST, FailureCode.STALLED, FailureCode.TASK_RAISED


def answering(
    surveys: Surveys, codes: tuple[FailureCode, ...], result: FailureCode | None, answered: tuple[int, ...]
) -> None:
    """The first clients fail like this, and these answer."""
    skipped = tuple(MemberSkipped(client, Failure(code, "")) for client, code in enumerate(codes))
    done = tuple(MemberDone(client, 0, Described((1, 2))) for client in answered)
    outcome = {"skipped": skipped, "done": done, **({} if result is None else {"result": Failure(result, "")})}
    surveys.answers["describe"] = lambda task: surveys.outcome(task, **outcome)


async def asked(
    monkeypatch: pytest.MonkeyPatch,
    clients: tuple[int, ...],
    codes: tuple[FailureCode, ...],
    result: FailureCode | None = None,
    answered: tuple[int, ...] = (),
) -> GroupOutcome:
    """A question to these of three clients; the first ones fail like this."""
    async with surveyed(monkeypatch, 3) as surveys:
        answering(surveys, codes, result, answered)
        return await surveys.stage.current.ask(1, GroupTask(0, "describe", clients))


@pytest.mark.parametrize(
    ("codes", "result"),
    [
        ((LOST, STALLED, LOST), None),
        ((LOST, RAISED, RAISED), None),
        ((), FailureCode.UNREACHABLE),
        ((RAISED,), FailureCode.UNSPECIFIED),  # a full manager, for example
    ],
)
async def test_where_nobody_answers_and_some_are_lost_or_could_not_be_asked_it_is_to_be_asked_again(
    monkeypatch: pytest.MonkeyPatch, codes: tuple[FailureCode, ...], result: FailureCode | None
) -> None:
    with pytest.raises(AllLostError, match=r"no client reported its profile \(describe\)"):
        await asked(monkeypatch, (0, 1, 2), codes, result)


@pytest.mark.parametrize(
    ("clients", "codes", "answered"),
    [
        ((0, 1, 2), (RAISED, RAISED, RAISED), ()),
        ((0, 1, 2), (LOST, LOST), (2,)),
        ((0, 1), (LOST, LOST), ()),
        ((0, 1, 2), (), ()),
    ],
    ids=["other reasons", "one answers", "others are there", "no reason"],
)
async def test_otherwise_what_came_is_all_there_is(
    monkeypatch: pytest.MonkeyPatch,
    clients: tuple[int, ...],
    codes: tuple[FailureCode, ...],
    answered: tuple[int, ...],
) -> None:
    outcome = await asked(monkeypatch, clients, codes, answered=answered)
    assert [done.client for done in outcome.done] == list(answered)


@pytest.mark.parametrize(
    ("codes", "result", "expected"),
    [
        ((FailureCode.POLICY,), None, {0: FailureCode.POLICY, 1: FailureCode.UNSPECIFIED, 2: FailureCode.UNSPECIFIED}),
        ((LOST,), STALLED, {0: LOST, 1: STALLED, 2: FailureCode.UNSPECIFIED}),
    ],
)
async def test_of_each_client_that_is_there_the_reason_is_known_why_there_may_be_no_evidence_about_it(
    monkeypatch: pytest.MonkeyPatch,
    codes: tuple[FailureCode, ...],
    result: FailureCode | None,
    expected: dict[int, FailureCode],
) -> None:
    async with surveyed(monkeypatch, 3) as surveys:
        profile = surveys.stage.current
        profile.begin_gathering()
        answering(surveys, codes, result, answered=(2,))
        await profile.ask(1, GroupTask(0, "describe", (0, 1, 2)))
        assert {client: failure.code for client, failure in profile.silent.items()} == expected
        profile.begin_gathering()
        assert {failure.code for failure in profile.silent.values()} == {FailureCode.UNSPECIFIED}
