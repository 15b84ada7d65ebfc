"""Too few ports are told before the first round, refused where the number of groups is known."""

from __future__ import annotations

from typing import Any

import pytest

from fedgsp.errors import ConfigError
from fedgsp.settings.run import RunConfig
from top_server.choosing import choose
from top_server.managers import ports as manager_ports


def check(scheme: str, clients: int, ports: int | None, **changes: Any) -> None:
    config = RunConfig(scheme=scheme, manager_ports=f"7000-{6999 + ports}" if ports else None, **changes)
    manager_ports.check(config, choose(config), clients)


@pytest.mark.parametrize(
    ("scheme", "needed", "changes", "remedy"),
    [
        ("fedgsp", 4, {"beta": 10, "sampling_rate": 0.5}, "lower --sampling-rate, --beta or --rounds"),
        ("hcct", 3, {"grouping": "random", "beta": 3}, "lower --beta or --rounds"),
    ],
)
def test_groups_whose_number_is_known_need_as_many_ports(
    scheme: str, needed: int, changes: dict[str, Any], remedy: str, caplog: pytest.LogCaptureFixture
) -> None:
    check(scheme, 8, needed, **changes)
    what = f"comes to {needed} group managers, but .* has {needed - 1} ports"
    with pytest.raises(ConfigError, match=what) as caught:
        check(scheme, 8, needed - 1, **changes)
    assert caught.value.remedy == f"widen --manager-ports, or {remedy}"
    assert not caplog.records


@pytest.mark.parametrize(
    ("scheme", "most", "changes"),
    [
        ("hcct", 4, {}),  # three pairs, and one that trains alone
        ("fedcollab", 4, {}),
        ("ifca", 7, {}),
        ("flsc", 1, {}),
        ("independent", 1, {}),
        ("global", 1, {}),
        ("fedavg", 1, {"sampling_rate": 0.5}),
        ("fedgsp", 7, {"grouping": "grpc://127.0.0.1:7300"}),
    ],
)
def test_groups_that_clients_decide_are_warned_of(
    scheme: str, most: int, changes: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    check(scheme, 7, None, **changes)
    check(scheme, 7, most, **changes)
    assert not caplog.records
    if most > 1:
        check(scheme, 7, most - 1, **changes)
        assert f"--manager-ports has {most - 1} ports, and 7 clients may come to {most} group managers" in caplog.text
