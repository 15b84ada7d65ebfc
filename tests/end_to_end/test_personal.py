"""What stays with the clients: heads, and models of those who train alone; also when their node is restarted."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.cluster import play
from tests.support.coming_and_going import RESTARTED, play_with_a_restart
from tests.support.gated_task import ALPHA, gated_settings, host, oracle
from tests.support.managers_here import managers_here
from tests.support.reference_groups import assert_equals, assert_final_models
from top_server.record.model_files import load


@pytest.fixture(autouse=True)
def _managers(monkeypatch: pytest.MonkeyPatch) -> None:
    managers_here(monkeypatch)


@pytest.mark.parametrize(
    "scheme", ["hcct-p", *(pytest.param(name, marks=pytest.mark.slow) for name in ("hcct", "independent"))]
)
async def test_a_node_restarted_within_a_round_goes_on_where_it_was(tmp_path: Path, scheme: str) -> None:
    expected = {
        "hcct-p": lambda: oracle().play_hcct(personal=True),
        "hcct": lambda: oracle().play_hcct(),
        "independent": lambda: oracle().play_independent(),
    }[scheme]()
    options = {} if scheme == "independent" else ALPHA
    run = await play_with_a_restart(tmp_path, tmp_path / "state", scheme=scheme, grouping_option=options)
    assert_equals(run, expected)
    assert not run.of_kind("model_lost")


async def test_heads_never_leave_their_nodes(tmp_path: Path) -> None:
    config = gated_settings(tmp_path, scheme="hcct-p", grouping_option=ALPHA, rounds=2)
    run = await play(config, [host("n0", 0, 1, 2, state_dir=tmp_path / "a"), host("n1", 3, 4, 5)])
    saved = [load(path)[0] for path in run.directory.models.glob("*.safetensors")]
    head = {"3.weight", "3.bias"}
    assert saved
    assert not any(head & model.keys() for model in saved)
    kept = sorted(path.name.partition("-")[2] for path in (tmp_path / "a").glob("*.head.safetensors"))
    assert kept == [f"client-{client}.head.safetensors" for client in (0, 1, 2)]
    # of each client's model nothing but the update that was asked for goes up: 51 floats of head are 204 bytes
    whole = sum(array.nbytes for array in oracle().initial().values())
    travelling = sum(array.nbytes for array in saved[0].values())
    assert travelling == whole - 4 * (8 * 3 + 3)


async def test_a_client_whose_model_is_lost_with_its_node_starts_afresh(tmp_path: Path) -> None:
    run = await play_with_a_restart(tmp_path, None, scheme="independent")
    lost = run.of_kind("model_lost")
    assert [event["client"] for event in lost] == list(RESTARTED)
    assert [row["clients_trained"] for row in run.rows] == [6, 6, 3, 6]
    reference = oracle()
    models = dict(reference.play_independent()[-1].models)
    models.update({client: reference.train(reference.initial(), client, 4) for client in RESTARTED})
    assert_final_models(run, models)


async def test_a_head_that_is_lost_with_its_node_is_told(tmp_path: Path) -> None:
    run = await play_with_a_restart(tmp_path, None, scheme="hcct-p", grouping_option=ALPHA)
    heads = [event for event in run.of_kind("model_lost") if "keeps to itself" in event["reason"]]
    # at the end of the round in which the node was restarted, by the evaluation; and once
    assert sorted((event["round"], event["client"]) for event in heads) == [(2, client) for client in RESTARTED]


async def test_a_group_goes_on_without_a_model_that_was_lost_with_its_node(tmp_path: Path) -> None:
    """Alone in round 2, client 1 is to form a group with client 3 in round 3, when its model is gone."""
    expected = oracle(lost=[(3, 1)]).play_hcct()
    assert [1] in expected[1].partition
    assert [1, 3] in expected[2].partition
    run = await play_with_a_restart(tmp_path, None, scheme="hcct", grouping_option=ALPHA)
    assert [event["client"] for event in run.of_kind("model_lost")] == [1]
    assert [row["clients_trained"] for row in run.rows] == [6, 6, 6, 6]
    assert [row["partition"] for row in run.rows] == [played.partition for played in expected]
    assert_final_models(run, expected[-1].models)
