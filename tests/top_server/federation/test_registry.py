"""What the registry of a federation allows: pure changes."""

from __future__ import annotations

import dataclasses

import pytest

from fedgsp.errors import ConfigError
from top_server.federation.registry import EMPTY, Entry, NotAllowedError, State, dump, parse

A = Entry({"digits": "0-3"}, (), 100, "urn:uuid:a", State.INVITED, 10.0)
B = dataclasses.replace(A, clients={"digits": "4-7"}, enrolment="urn:uuid:b")
KEY = "fingerprint"


def test_a_client_belongs_to_one_node_while_its_invitation_lasts() -> None:
    registry = EMPTY.invited("a", A, 0.0)
    both = dataclasses.replace(B, clients={"digits": "3-4"})
    with pytest.raises(ConfigError, match="client 3 of task digits belongs to a"):
        registry.invited("b", both, 0.0)
    registry.invited("b", dataclasses.replace(both, clients={"other": "3-4"}), 0.0)  # another task
    registry.invited("b", both, 10.0)  # the invitation of a has ended
    enrolled = registry.enrolled("a", "urn:uuid:a", KEY, 0.0)
    with pytest.raises(ConfigError, match="belongs to a"):
        enrolled.invited("b", both, 10.0)
    enrolled.without("a", 1.0).invited("b", both, 1.0)


def test_who_comes_late_does_not_get_clients_that_others_have_meanwhile() -> None:
    registry = EMPTY.invited("a", A, 0.0).invited("b", dataclasses.replace(B, clients=A.clients), 11.0)
    with pytest.raises(NotAllowedError, match="has expired"):
        registry.enrolled("a", "urn:uuid:a", KEY, 11.0)


@pytest.mark.parametrize("enrolment", ["urn:uuid:b", ""])
def test_another_enrolment_is_none(enrolment: str) -> None:
    registry = EMPTY.invited("a", A, 0.0)
    with pytest.raises(NotAllowedError, match="a newer invitation of this node has replaced this one"):
        registry.enrolled("a", enrolment, KEY, 0.0)
    assert registry.enrolled("a", "urn:uuid:a", KEY, 0.0).member("a", enrolment) is None


def test_an_invitation_is_used_again_for_the_same_key_alone() -> None:
    registry = EMPTY.invited("a", A, 0.0).enrolled("a", "urn:uuid:a", KEY, 0.0)
    assert registry.enrolled("a", "urn:uuid:a", KEY, 9.0) == registry == parse(dump(registry))
    for key, now, why in (("other", 9.0, "was used already"), ("", 9.0, "was used already"), (KEY, 10.0, "expired")):
        with pytest.raises(NotAllowedError, match=why):
            registry.enrolled("a", "urn:uuid:a", key, now)


def test_an_enrolled_node_is_not_invited_over_and_a_revoked_one_can_be() -> None:
    registry = EMPTY.invited("a", A, 0.0).enrolled("a", "urn:uuid:a", KEY, 0.0)
    with pytest.raises(ConfigError, match="a is enrolled"):
        registry.invited("a", B, 0.0)
    revoked = registry.without("a", 0.0)
    assert revoked.member("a", "urn:uuid:a") is None
    again = revoked.invited("a", B, 0.0).enrolled("a", "urn:uuid:b", KEY, 0.0)
    assert again.member("a", "urn:uuid:b") is not None
    assert again.member("a", "urn:uuid:a") is None
    assert "urn:uuid:a" in again.revoked
    with pytest.raises(ConfigError, match="no node 'x' is invited or enrolled; known: a"):
        again.without("x", 0.0)


def test_a_revoked_enrolment_is_kept_while_a_certificate_of_it_may_be_good() -> None:
    revoked = EMPTY.invited("a", A, 0.0).without("a", 5.0)
    assert revoked.revoked["urn:uuid:a"] >= 5.0 + 100
    later = revoked.invited("b", B, 0.0).without("b", revoked.revoked["urn:uuid:a"] + 1)
    assert later.revoked.keys() == {"urn:uuid:b"}


def test_clients_are_assigned_by_task() -> None:
    registry = EMPTY.invited("a", A, 0.0).invited("b", B, 0.0).assigned("a", "other", "9", 0.0)
    assert registry.nodes["a"].ids("other") == {9}
    assert registry.nodes["a"].ids("digits") == {0, 1, 2, 3}
    assert registry.nodes["a"].ids("unknown") == frozenset()
    with pytest.raises(ConfigError, match="client 4 of task digits belongs to b"):
        registry.assigned("a", "digits", "0-4", 0.0)


def test_a_registry_can_be_written_and_read() -> None:
    registry = EMPTY.invited("a", A, 0.0).invited("b", B, 0.0).without("b", 3.0)
    assert parse(dump(registry)) == registry
