from __future__ import annotations

from pathlib import Path

from fedgsp.settings.flags import arguments_of
from fedgsp.settings.managers import ManagerSettings
from fedgsp.settings.run import NodeSettings, RunConfig


def test_a_child_is_told_paths_that_mean_the_same_anywhere() -> None:
    settings = ManagerSettings(tls_ca=Path("-a"), tls_cert=Path("b/c.pem"), tls_key=Path("/d"))
    here = Path.cwd()
    assert arguments_of(settings) == ["--tls-ca", f"{here}/-a", "--tls-cert", f"{here}/b/c.pem", "--tls-key", "/d"]


def test_a_child_is_told_only_what_is_not_the_default_and_every_option() -> None:
    settings = NodeSettings(top_server="h:1", task_option={"a": "b=c", "d": ""}, lost_after=5.0, threads=1)
    assert arguments_of(settings) == [
        *("--top-server", "h:1"),
        *("--task-option", "a=b=c", "--task-option", "d="),
        *("--lost-after", "5.0"),
    ]


def test_children_deal_with_their_peers_as_their_parent_does() -> None:
    config = RunConfig(lost_after=5.0, hand_over="network", rounds=3)
    children = ManagerSettings(**config.for_children, name="m0")
    assert (children.lost_after, children.hand_over, children.name) == (5.0, "network", "m0")
