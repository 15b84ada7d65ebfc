"""What tasks declare when their nodes join."""

from collections.abc import Collection, Iterable

from fedgsp.messages import Hello
from fedgsp.scoring import ACCURACY, CLASS_COUNTS, Scoring


def scoring_of(hello: Hello | None) -> Scoring:
    """How the task of a node combines its metrics, and what rates a model; by default accuracy does."""
    return Scoring(hello.score or ACCURACY, hello.combine) if hello is not None else Scoring()


def lacked_by_all(hellos: Collection[Hello]) -> dict[str, str]:
    """What the tasks of all these nodes lack -> the error by which one of them lacks it; empty if they simply do."""
    lacking = [set(hello.lacks) for hello in hellos]
    failed = ((hello.node, hello.class_counts_failed) for hello in hellos)
    why = next((f"node {node}: {failure.detail}" for node, failure in failed if failure is not None), "")
    by_all = sorted(set.intersection(*lacking)) if lacking else []
    return {what: why if what == CLASS_COUNTS else "" for what in by_all}


def names_of(hellos: Iterable[Hello]) -> dict[int, str]:
    """Client -> what people call it, by ascending client; only clients that have a name."""
    named = {hosted.client: hosted.name for hello in hellos for hosted in hello.clients if hosted.name}
    return dict(sorted(named.items()))
