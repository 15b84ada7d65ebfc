"""Orders with any numbers, names and options: the policy of a node lets them pass or refuses them in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from fedgsp.messages import (
    Discriminate,
    DiscriminatorSettings,
    Evaluate,
    OptimizerSettings,
    OutgoingStep,
    Reveal,
    Train,
    TrainingSettings,
)
from fedgsp.optimizers import OPTIMIZERS
from fedgsp.outgoing import OUTGOING
from fedgsp.schedules import SCHEDULES
from fedgsp.settings.fields import described
from fedgsp.trainings import TRAININGS
from fedgsp_node.policies.policy import refusal
from tests.fedgsp_node.policies.test_policy import START, known, order, policy
from tests.support.fuzzing import fuzzed

FLOATS = st.floats() | st.sampled_from([0.0, 1e-300, 0.1, 0.5, 1.0, 2.0, 1e300])
COUNTS = st.integers(0, 20) | st.integers(0, 2**32 - 1)
VALUES = FLOATS.map(repr) | COUNTS.map(str) | st.sampled_from(["true", "kept", "x", ""])


def named(table: Mapping[str, Any]) -> st.SearchStrategy[tuple[str, dict[str, str]]]:
    """A name of a table, or another one, with some of its options."""

    def with_options(name: str) -> st.SearchStrategy[tuple[str, dict[str, str]]]:
        part = table.get(name)
        keys = sorted(described(part.options)) if part is not None and part.options is not None else ["x"]
        given = st.dictionaries(st.sampled_from(keys or ["x"]), VALUES, max_size=3)
        return st.tuples(st.just(name), given)

    return st.sampled_from([*sorted(table), "", "nobody"]).flatmap(with_options)


@st.composite
def optimizer_settings(draw: st.DrawFn) -> OptimizerSettings:
    (name, options), (schedule, schedule_options) = draw(named(OPTIMIZERS)), draw(named(SCHEDULES))
    state = draw(st.sampled_from(["", "kept", "relayed", "other"]))
    accumulate = draw(COUNTS)
    return OptimizerSettings(name, options, schedule, schedule_options, draw(FLOATS), accumulate, "", state)


@st.composite
def training_settings(draw: st.DrawFn) -> TrainingSettings:
    algorithm, options = draw(named(TRAININGS))
    optimizer = draw(st.none() | optimizer_settings())
    return TrainingSettings(algorithm, draw(COUNTS), draw(COUNTS), draw(FLOATS), 1, options, False, optimizer)


STEPS = named(OUTGOING).map(lambda pair: OutgoingStep(*pair))
NETWORKS = st.builds(
    DiscriminatorSettings, COUNTS, COUNTS, COUNTS, FLOATS, st.just(1), st.booleans(), FLOATS, st.integers(0, 1)
)
WORKS = st.one_of(
    st.builds(
        lambda settings, steps, reveal: Train(START, "end", settings, reveal, outgoing=tuple(steps)),
        st.none() | training_settings(),
        st.lists(STEPS, max_size=3),
        st.none() | st.just(Reveal("sketch:64")),
    ),
    st.builds(lambda settings: Evaluate(START, settings=settings, personalised=True), st.none() | training_settings()),
    st.builds(lambda settings: Discriminate(None, "nets", (1,), settings), st.none() | NETWORKS),
)
POLICIES = st.sampled_from(
    [policy(), policy(work="train,evaluate,discriminate", least_batch_size="8", require="rounding,rounding.x=1")]
)


@fuzzed(400)
@given(work=WORKS, samples=st.none() | st.integers(0, 30), drop_last=st.booleans(), theirs=POLICIES)
def test_any_order_passes_or_is_refused_in_words(work: Any, samples: int | None, drop_last: bool, theirs: Any) -> None:
    found = refusal(order(work), theirs, known(samples=samples, drop_last=drop_last))
    if found is not None:
        assert str(found).isprintable()
        assert f"{found.key} of the policy of this node is" in str(found)
