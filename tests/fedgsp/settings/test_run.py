from __future__ import annotations

import dataclasses
import re
import tempfile
import types
import typing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgsp.errors import ConfigError
from fedgsp.settings.checks import check, choices
from fedgsp.settings.fields import described
from fedgsp.settings.files import dump, load
from fedgsp.settings.run import RunConfig
from top_server.choosing import NAMES

FIELDS = described(RunConfig)
TYPES = typing.get_type_hints(RunConfig)
BY_TYPE: dict[Any, st.SearchStrategy[Any]] = {
    bool: st.booleans(),
    int: st.integers(-(2**63), 2**63 - 1),
    float: st.floats(allow_nan=False, allow_infinity=False),
    str: st.text(),
    Path: st.text("abc/. é", min_size=1).map(Path),
    dict[str, str]: st.dictionaries(st.text(), st.text(), max_size=3),
    tuple[str, ...]: st.lists(st.text(), max_size=3).map(tuple),
    types.NoneType: st.none(),
}


def values(annotation: Any) -> st.SearchStrategy[Any]:
    if annotation in BY_TYPE:
        return BY_TYPE[annotation]
    return st.one_of(*(BY_TYPE[part] for part in typing.get_args(annotation)))


CONFIGS = st.builds(RunConfig, **{name: values(TYPES[name]) for name in FIELDS})


def loaded(text: str | bytes) -> RunConfig:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "settings.toml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return load(RunConfig, path)


@given(CONFIGS)
@settings(deadline=None, max_examples=50)
def test_settings_survive_the_way_through_a_file(config: RunConfig) -> None:
    assert loaded(dump(config)) == config


def test_the_defaults_can_be_used() -> None:
    check(RunConfig(), NAMES)


@pytest.mark.parametrize("name", FIELDS)
def test_every_setting_says_what_it_is_for(name: str) -> None:
    assert FIELDS[name].help
    assert FIELDS[name].metadata["panel"]


#: Settings that take a name out of a table, and no other value.
NAMED = [name for name, one in FIELDS.items() if choices(one, NAMES) and not one.metadata.get("other_names")]


@pytest.mark.parametrize("name", NAMED)
def test_every_known_name_can_be_used_and_others_cannot(name: str) -> None:
    value: Any
    for value in choices(FIELDS[name], NAMES):
        more: dict[str, Any] = {"workers": 1} if name == "place" else {}
        check(dataclasses.replace(RunConfig(), **{name: value}, **more), NAMES)
    almost: Any = choices(FIELDS[name], NAMES)[0] + "x"
    with pytest.raises(ConfigError, match=f"--{name.replace('_', '-')} cannot be '{almost}'; did you mean") as error:
        check(dataclasses.replace(RunConfig(), **{name: almost}), NAMES)
    assert all(known in error.value.remedy for known in choices(FIELDS[name], NAMES))


@pytest.mark.parametrize(
    ("name", "value", "remedy"),
    [
        ("alpha", 0.0, "above 0"),
        ("alpha", float("nan"), "above 0"),
        ("alpha", float("inf"), "above 0"),
        ("beta", 0, "at least 1"),
        ("sampling_rate", 0.0, "above 0 and of at most 1"),
        ("sampling_rate", 1.01, "above 0 and of at most 1"),
        ("learning_rate", -0.1, "above 0"),
        ("rounds", 0, "at least 1"),
        ("local_epochs", 0, "at least 1"),
        ("batch_size", 0, "at least 1"),
        ("evaluate_every", 0, "at least 1"),
        ("min_nodes", 0, "at least 1"),
        ("min_clients", 0, "at least 1"),
        ("join_timeout", 0.0, "above 0"),
        ("stall_timeout", -1.0, "above 0"),
        ("lost_after", 0.9, "at least 1 and of at most 30"),
        ("lost_after", 30.5, "at least 1 and of at most 30"),
        ("lost_after", float("nan"), "at least 1 and of at most 30"),
        ("local_nodes", -1, "at least 0"),
        ("threads", 0, "at least 1"),
        ("threads", 3_000_000_000, "at most 1024"),
        ("seed", -1, "at least 0"),
        ("task", "", "module:factory"),
        ("listen", "7000", "host:port"),
        ("listen", "::1:7000", "[::1]:7000"),
        ("manager_ports", "7199-7100", "7100-7199"),
        ("manager_ports", "0-5", "7100-7199"),
        ("manager_ports", "7100-70000", "7100-7199"),
        ("manager_ports", "7100", "7100-7199"),
        ("grouping", "grpc://nowhere", "host:port"),
    ],
)
def test_a_value_out_of_range_is_refused_with_its_flag_and_a_remedy(name: str, value: Any, remedy: str) -> None:
    with pytest.raises(ConfigError) as error:
        check(dataclasses.replace(RunConfig(), **{name: value}), NAMES)
    assert f"--{name.replace('_', '-')}" in error.value.what
    assert remedy in error.value.remedy


@pytest.mark.parametrize(
    "config",
    [
        RunConfig(sampling_rate=1.0),
        RunConfig(grouping="grpc://127.0.0.1:7300"),
        RunConfig(listen="[::1]:0"),
        RunConfig(manager_ports="7100-7100"),
        RunConfig(local_nodes=1),
        RunConfig(local_nodes=3, clients=3),
        RunConfig(place="local", workers=3, clients=3),
    ],
)
def test_a_value_at_the_edge_is_taken(config: RunConfig) -> None:
    check(config, NAMES)


@pytest.mark.parametrize(
    ("config", "what"),
    [
        (RunConfig(clients=3), "--clients"),
        (RunConfig(local_nodes=2), "--local-nodes 2"),
        (RunConfig(local_nodes=4, clients=3), "--local-nodes 4 is more than --clients 3"),
        (RunConfig(place="local", workers=4, clients=3), "--workers 4 is more than --clients 3"),
        (RunConfig(local_nodes=2, clients=4, place_managers=True, insecure=True), "with --insecure anybody"),
        (RunConfig(place_managers=True), "--place-managers needs the machines of nodes"),
        (
            RunConfig(local_nodes=2, clients=4, place_managers=True, manager_ports="7100-7199"),
            "--manager-ports is for managers beside the top server",
        ),
        (RunConfig(place="local", workers=2), "--workers 2 is given without the number of clients"),
        (RunConfig(place="local"), "--place local is given without the number of nodes.*give --workers"),
        (RunConfig(workers=2, clients=2), "--workers 2 is given without a place"),
        (RunConfig(place="local", workers=2, local_nodes=2, clients=2), "--local-nodes 2 is short for --place local"),
    ],
)
def test_the_nodes_that_a_run_starts_and_their_clients_must_fit(config: RunConfig, what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        check(config, NAMES)


@pytest.mark.parametrize(
    ("config", "what"),
    [
        (RunConfig(listen="127.0.0.1:7", metrics="127.0.0.1:7"), "--listen and --metrics are both 127.0.0.1:7"),
        (RunConfig(web="127.0.0.1:7", metrics="127.0.0.1:7"), "--web and --metrics are both 127.0.0.1:7"),
        (RunConfig(federation=Path("f"), tls_ca=Path("x")), "--federation and --tls flags are given"),
    ],
)
def test_two_flags_that_want_the_same_are_both_named(config: RunConfig, what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        check(config, NAMES)


def test_manager_ports_include_both_ends() -> None:
    assert RunConfig(manager_ports="7100-7199").manager_port_range == range(7100, 7200)
    assert RunConfig().manager_port_range is None


def test_a_run_in_a_cluster_begins_with_a_part_of_its_workers_if_it_is_told_how_many_clients_are_enough() -> None:
    config = RunConfig(place="ray", workers=4, clients=24)
    assert (config.nodes_to_wait_for, config.clients_to_wait_for) == (4, 24)
    early = RunConfig(place="ray", workers=4, clients=24, min_clients=6)
    assert (early.nodes_to_wait_for, early.clients_to_wait_for) == (1, 6)
    local = RunConfig(local_nodes=4, clients=24, min_clients=6)
    assert (local.nodes_to_wait_for, local.clients_to_wait_for) == (4, 24)


def test_a_run_waits_for_all_of_its_local_nodes() -> None:
    for config in (RunConfig(local_nodes=4, clients=24), RunConfig(place="local", workers=4, clients=24)):
        assert (config.nodes_to_wait_for, config.clients_to_wait_for) == (4, 24)
        assert config.placed == "local"
    config = RunConfig(min_nodes=5, min_clients=7)
    assert (config.nodes_to_wait_for, config.clients_to_wait_for) == (5, 7)


def test_a_file_may_hold_whole_numbers_and_plain_options() -> None:
    config = loaded('alpha = 3\nrun_dir = "here"\n[task_option]\nclients = 8\niid = true\nalpha = 0.5\nname = "x"\n')
    assert config.alpha == 3.0
    assert isinstance(config.alpha, float)
    assert config.run_dir == Path("here")
    assert config.task_option == {"clients": "8", "iid": "true", "alpha": "0.5", "name": "x"}


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("roundz = 3", "'roundz'; did you mean 'rounds'?"),
        ("rounds = 3.0", "rounds is 3.0; give a whole number"),
        ("rounds = true", "rounds is True; give a whole number"),
        ("alpha = true", "alpha is True; give a number"),
        ('alpha = "2"', "alpha is '2'; give a number"),
        ("task = 3", "task is 3; give text"),
        ("run_dir = 3", "run_dir is 3; give a path"),
        ('task_option = "a=b"', "task_option is 'a=b'; give a table"),
        ("[task_option.deep]", "task_option is {'deep': {}}; give a table"),
        ("rounds = ", "is not TOML: "),
        (b"\xff", "cannot be read: "),
    ],
)
def test_a_broken_file_is_refused_by_name_and_key(text: str | bytes, what: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(what)) as error:
        loaded(text)
    assert "settings.toml" in error.value.what


def test_a_missing_file_or_a_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.toml: there is no such file"):
        load(RunConfig, tmp_path / "nowhere.toml")
    with pytest.raises(ConfigError, match="cannot be read"):
        load(RunConfig, tmp_path)


def test_the_learning_rate_decays_from_round_to_round_as_published() -> None:
    """HCCT's 0.1 * 0.995^t, t from 0 (algorithms 3.3)."""
    config = RunConfig(learning_rate=0.1, learning_rate_decay=0.995)
    found = [config.learning_rate_in(number) for number in (1, 2, 20, 50)]
    assert found == pytest.approx([0.1, 0.0995, 0.090916, 0.078222], abs=5e-7)
    assert config.learning_rate_in(0) == 0.1
    assert RunConfig(learning_rate=0.1).learning_rate_in(50) == 0.1
