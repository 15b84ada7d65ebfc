"""Models by what they are for: the store holds what a slot names, and no more."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fedgsp.messages import ModelRef
from fedgsp.transfers.model_store import ModelStore
from tests.support.scripted import model, value_of
from top_server.models import Held, Models


async def test_a_model_is_kept_once_for_all_slots_and_until_none_names_it() -> None:
    store = ModelStore()
    models = Models(store)
    held = models.put(["a", "b"], "m1", model(1.0))
    assert held == Held(model(1.0).ref("m1"))
    assert models["a"] == models["b"] == held
    assert value_of(models.weights(held)) == 1.0
    models.put(["a"], "m2", model(2.0))
    assert "m1" in store
    models.put(["b"], "m3", model(3.0))
    assert "m1" not in store
    models.apply({"b": None})
    assert "m3" not in store
    assert "b" not in models
    models.apply({"b": None})
    assert len(store) == 1


def test_a_slot_may_name_a_model_that_a_client_holds() -> None:
    store = ModelStore()
    models = Models(store)
    models.put(["a"], "m1", model(1.0))
    models.apply({"a": Held(ModelRef("hers"), 3)})
    assert models["a"].client == 3
    assert len(store) == 0


_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.sets(st.sampled_from("abcd"), min_size=1), st.none()),
        st.tuples(st.just("point"), st.sets(st.sampled_from("abcd"), min_size=1), st.sampled_from("abcd")),
        st.tuples(st.just("away"), st.sets(st.sampled_from("abcd"), min_size=1), st.none()),
        st.tuples(st.just("drop"), st.sets(st.sampled_from("abcd"), min_size=1, max_size=1), st.none()),
    )
)


@given(_STEPS)
def test_the_store_holds_exactly_what_slots_of_this_process_name(
    steps: list[tuple[str, set[str], str | None]],
) -> None:
    store = ModelStore()
    models = Models(store)
    for number, (what, slots, other) in enumerate(steps):
        match what:
            case "put":
                models.put(slots, f"m{number}", model(number))
            case "point" if other is not None and other in models:
                models.apply(dict.fromkeys(slots, models[other]))
            case "away":
                models.apply(dict.fromkeys(slots, Held(ModelRef(f"m{number}"), 7)))
            case "drop":
                models.apply(dict.fromkeys(slots))
        named = {models[slot].ref.id for slot in "abcd" if slot in models and models[slot].client is None}
        assert {f"m{n}" for n in range(number + 1) if f"m{n}" in store} == named
