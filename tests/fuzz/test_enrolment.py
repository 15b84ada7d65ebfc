"""Requests, tokens and registries that nobody has checked: each is read, or refused with the expected error."""

from __future__ import annotations

import base64
import zlib

from hypothesis import given
from hypothesis import strategies as st

from fedgsp.errors import ConfigError
from fedgsp.security.certificates import new_key, number_of, request_for
from fedgsp.security.invitation import invitation_in
from tests.support.fuzzing import fuzzed
from top_server.federation.authority import new_authority, public_key_in
from top_server.federation.registry import Entry, State, dump, new_enrolment, parse
from top_server.federation.registry import Registry as AllNodes

AUTHORITY = new_authority()
ENTRY = Entry({"digits": "0-3"}, ("localhost",), 60, new_enrolment(), State.INVITED, 2e9)
TOKEN = AUTHORITY.for_invitation("a", ENTRY).token
REQUEST = request_for(new_key())
REGISTRY = dump(AllNodes({"a": ENTRY}, {"urn:uuid:1": 5.0}))


@st.composite
def near(draw: st.DrawFn, good: bytes) -> bytes:
    """Bytes with some others in a place of good ones, or cut."""
    at, kept = draw(st.integers(0, len(good))), draw(st.integers(0, len(good)))
    return good[:at] + draw(st.binary(max_size=40)) + good[max(at, kept) :]


@given(message=near(REQUEST) | st.binary(max_size=200))
@fuzzed(200)
def test_a_request_has_a_key_or_is_refused(message: bytes) -> None:
    try:
        public_key_in(message)
    except ValueError:
        return


@given(token=near(base64.urlsafe_b64decode(TOKEN + "==")) | st.binary(max_size=200), text=st.text(max_size=60))
@fuzzed(200)
def test_a_token_is_an_invitation_or_is_refused(token: bytes, text: str) -> None:
    rightly_summed = token[:-4] + zlib.crc32(token[:-4]).to_bytes(4, "big")  # as somebody does who attacks the parser
    for one in (*(base64.urlsafe_b64encode(data).decode() for data in (token, rightly_summed)), text):
        try:
            found = invitation_in(one)
        except ConfigError:
            continue
        assert found.name
        assert number_of(found.key)


@given(text=near(REGISTRY.encode()))
@fuzzed(200)
def test_a_registry_is_read_or_refused(text: bytes) -> None:
    try:
        parse(text.decode(errors="replace"))
    except ValueError:
        return
