"""How far the first bytes of a link are trusted: less once it has braked, and as before once it was only a pause."""

from __future__ import annotations

from fedgsp.transfers.trust import LITTLE_TRUST, TRUST, Trust


def after(carried: int, trust: Trust) -> int:
    trust.begin()
    trust.carried(carried)
    return trust.most


def test_a_link_is_trusted_by_what_it_has_carried_since_it_became_busy() -> None:
    trust = Trust()
    assert trust.most == 0
    assert after(1000, trust) == 1000 * TRUST
    trust.carried(500)
    assert trust.most == 1500 * TRUST
    assert after(10, trust) == 10 * TRUST


def test_a_link_that_has_braked_is_trusted_less_until_it_carries_as_much_without_being_late() -> None:
    trust = Trust()
    trust.carried(1000)
    trust.late(braked=True)
    assert trust.most == 1000 * LITTLE_TRUST
    trust.carried(4000)
    trust.late(braked=True)  # still the same queue
    assert after(900, trust) == 900 * LITTLE_TRUST
    assert after(5000, trust) == 5000 * LITTLE_TRUST  # 900 were not enough
    trust.late(braked=False)
    assert after(5000, trust) == 5000 * LITTLE_TRUST  # those were late again
    assert after(5000, trust) == 5000 * TRUST


def test_bytes_that_are_late_do_not_show_that_a_link_brakes() -> None:
    trust = Trust()
    trust.carried(1000)
    trust.late(braked=False)
    assert trust.most == 1000 * TRUST


def test_what_was_seen_is_forgotten() -> None:
    trust = Trust()
    trust.carried(1000)
    trust.late(braked=True)
    trust.forget()
    assert after(1000, trust) == 1000 * TRUST
