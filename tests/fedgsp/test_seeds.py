from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgsp.errors import ConfigError
from fedgsp.seeds import derive, stream

seeds = st.integers(0, 2**64 - 1)
keys = st.lists(st.integers(0, 2**64 - 1), max_size=3)


def draws(*arguments: int | str) -> list[int]:
    return stream(*arguments).integers(2**63, size=4).tolist()  # type: ignore[arg-type]


@given(seeds, st.text(max_size=20), keys)
def test_the_same_seed_purpose_and_keys_give_the_same_draws(seed: int, purpose: str, keys: list[int]) -> None:
    assert draws(seed, purpose, *keys) == draws(seed, purpose, *keys)


@pytest.mark.parametrize(
    "other",
    [
        (8, "sampling", 1, 2),
        (7, "client-order", 1, 2),
        (7, "sampling", 2, 1),
        (7, "sampling", 1, 3),
        (7, "sampling", 1),
        (7, "sampling"),
    ],
)
def test_another_seed_purpose_or_key_gives_other_draws(other: tuple[int | str, ...]) -> None:
    assert draws(7, "sampling", 1, 2) != draws(*other)


def test_streams_do_not_share_their_state() -> None:
    first, second = stream(1, "sampling"), stream(1, "sampling")
    first.integers(2**63, size=100)
    assert second.integers(2**63) == draws(1, "sampling")[0]


def test_draws_are_those_of_every_earlier_version() -> None:
    """A change here changes every run that is repeated from its settings."""
    assert draws(0, "client-order", 3, 1)[:2] == [1594245862712173725, 4311209531949361207]
    assert derive(0, "training", 3, 1) == 6132304877008123195


@given(seeds, keys)
def test_a_derived_seed_fits_what_libraries_take(seed: int, keys: list[int]) -> None:
    derived = derive(seed, "training", *keys)
    assert type(derived) is int
    assert 0 <= derived < 2**63
    assert derived == derive(seed, "training", *keys)


def test_global_numpy_state_is_left_alone() -> None:
    before = np.random.get_state(legacy=False)["state"]["key"].tolist()
    stream(0, "sampling").integers(10)
    assert np.random.get_state(legacy=False)["state"]["key"].tolist() == before


def test_a_negative_seed_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="seed is -1; give a whole number, 0 or more"):
        stream(-1, "partition")
