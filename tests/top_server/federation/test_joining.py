"""Why a node with an enrolment may not join a run: what it is told leads to the right remedy."""

from __future__ import annotations

import pytest

from fedgsp.identity import node
from tests.support.hellos import hello
from top_server.federation.joining import refusal
from top_server.federation.registry import EMPTY, Entry, State

ENTRY = Entry({"digits": "0-3"}, (), 100, "urn:uuid:a", State.INVITED, 10.0)
REGISTRY = EMPTY.invited("a", ENTRY, 0.0).enrolled("a", "urn:uuid:a", "fingerprint", 0.0)


@pytest.mark.parametrize(
    ("task", "clients", "told"),
    [
        (
            "digits",
            (3, 4),
            "client 4 of task 'digits' is not registered for it (registered: 0-3): correct its --clients",
        ),
        (
            "clinics:Clinics",
            (0,),
            "client 0 of task 'clinics:Clinics' is not registered for it, and no other client of this task is:"
            " correct its --task, or let `top-server assign` register it",
        ),
    ],
)
def test_a_wrong_task_is_not_taken_for_wrong_clients(task: str, clients: tuple[int, ...], told: str) -> None:
    found = refusal(REGISTRY, node("a"), "urn:uuid:a", hello("a", clients, task=task))
    assert found is not None
    assert found.failure.detail == told


def test_registered_clients_may_join() -> None:
    assert refusal(REGISTRY, node("a"), "urn:uuid:a", hello("a", (0, 3), task="digits")) is None
