"""Tickets cannot be forged, changed, used for another thing, or used after their round."""

from __future__ import annotations

import dataclasses

from hypothesis import given
from hypothesis import strategies as st

from fedgsp.identity import TOP_SERVER, manager, node
from fedgsp.security.tickets import Door, Issuer, Ticket, Verb, issue, new_key, read

KEY = new_key()
TICKET = Ticket(Verb.FETCH, "run/3/0/relay/1.0", node("hospital-a"), "run", 3, 2)
THINGS = st.text(max_size=30)


@given(
    thing=THINGS.filter(lambda thing: "\n" not in thing),
    round_number=st.integers(0, 2**31),
    verb=st.sampled_from(Verb),
)
def test_what_was_written_is_read(thing: str, round_number: int, verb: Verb) -> None:
    ticket = Ticket(verb, thing, node("n0"), "run", round_number, 1)
    assert read(KEY, issue(KEY, ticket)) == ticket


@given(shown=st.binary(max_size=300))
def test_what_nobody_issued_is_no_ticket(shown: bytes) -> None:
    assert read(KEY, shown) is None


@given(place=st.integers(0, len(issue(KEY, TICKET)) - 1), change=st.integers(1, 255))
def test_no_byte_can_be_changed(place: int, change: int) -> None:
    shown = bytearray(issue(KEY, TICKET))
    shown[place] ^= change
    assert read(KEY, bytes(shown)) is None


@given(cut=st.integers(1, len(issue(KEY, TICKET))), more=st.binary(min_size=1, max_size=50))
def test_nothing_can_be_cut_off_or_put_on(cut: int, more: bytes) -> None:
    shown = issue(KEY, TICKET)
    assert read(KEY, shown[:-cut]) is None
    assert read(KEY, shown + more) is None
    assert read(KEY, more + shown) is None


@given(thing=THINGS)
def test_a_name_with_line_breaks_gives_no_other_meaning(thing: str) -> None:
    found = read(KEY, issue(KEY, dataclasses.replace(TICKET, thing=f"{thing}\n{thing}")))
    assert found is None


def test_a_ticket_that_is_too_long_is_not_looked_at() -> None:
    assert read(KEY, issue(KEY, dataclasses.replace(TICKET, thing="m" * 3000))) is None


def test_a_ticket_for_one_process_is_none_for_another() -> None:
    issuer = Issuer(new_key())
    holders = [node("a"), node("b"), manager("m0"), manager("m1"), manager("a"), TOP_SERVER]
    for holder in holders:
        shown = issuer.ticket(holder, TICKET)
        assert [read(issuer.key_of(other), shown) is not None for other in holders] == [
            other == holder for other in holders
        ]


def test_the_key_of_a_node_makes_no_ticket_for_others() -> None:
    issuer = Issuer(new_key())
    own = issuer.key_of(node("mallory"))
    forged = [issue(own, TICKET), Issuer(own).ticket(node("victim"), TICKET), issue(bytes(32), TICKET), b""]
    assert [read(issuer.key_of(node("victim")), shown) for shown in forged] == [None] * 4


def test_a_closed_door_opens_to_nobody() -> None:
    assert Door().read(issue(b"", TICKET)) is None
    assert Door().read(issue(bytes(32), TICKET)) is None


def test_a_ticket_ends_with_its_round() -> None:
    door, shown = Door(KEY), issue(KEY, TICKET)
    door.reach("run", 3)
    assert door.read(shown) == TICKET
    door.reach("run", 2)  # a late order of an earlier round changes nothing
    assert door.read(shown) == TICKET
    door.reach("run", 4)
    assert door.read(shown) is None


def test_tickets_of_a_local_run_end_with_it_also_if_a_late_order_of_it_comes() -> None:
    door, alone, attach = Door(KEY), dataclasses.replace(TICKET, run="run.alone"), Ticket(Verb.ATTACH, "m0", node("a"))
    initial = dataclasses.replace(alone, round=0)
    door.reach("run.alone", 3)
    assert door.read(issue(KEY, TICKET)) == TICKET  # another node may ask before the first order of the run is here
    assert door.read(issue(KEY, alone)) == alone
    for run, number in (("run", 1), ("run.alone", 3), ("run", 2)):
        door.reach(run, number)
        assert [door.read(issue(KEY, old)) for old in (alone, initial)] == [None, None]
        assert door.read(issue(KEY, TICKET)) == TICKET
    assert door.read(issue(KEY, attach)) == attach


def test_rounds_begin_anew_with_another_key() -> None:
    door, other = Door(KEY), new_key()
    door.reach("run", 9)
    door.change(KEY)
    assert door.read(issue(KEY, TICKET)) is None
    door.change(other)  # the run was resumed from an earlier round
    assert door.read(issue(other, TICKET)) == TICKET
    assert door.read(issue(KEY, TICKET)) is None
