"""The list of outgoing steps: what the settings and the scheme make of it, and what is refused."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fedgsp.errors import ConfigError
from fedgsp.messages import OutgoingStep
from fedgsp.settings.checks import check
from fedgsp.settings.files import dump, parse
from fedgsp.settings.run import RunConfig
from tests.support.outgoing_steps import forget, install
from top_server.choosing import NAMES, choose
from top_server.outgoing import outgoing_steps


@pytest.fixture
def _installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    install(tmp_path, monkeypatch)
    yield
    monkeypatch.undo()
    forget()


def steps(**settings: Any) -> tuple[OutgoingStep, ...]:
    config = RunConfig(**settings)
    check(config, NAMES)
    return outgoing_steps(config, choose(config))


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({"scheme": "hcct"}, []),
        ({"scheme": "hcct-p"}, ["head"]),
        ({"scheme": "hcct", "wire_dtype": "bfloat16"}, ["rounding"]),
        ({"scheme": "hcct-p", "wire_dtype": "bfloat16"}, ["head", "rounding"]),
        ({"scheme": "hcct-p", "profile_option": {"similarity_of": "all"}}, ["head"]),
    ],
)
def test_the_scheme_and_the_dtype_on_the_wire_need_steps(settings: dict[str, Any], names: list[str]) -> None:
    assert [step.name for step in steps(**settings)] == names


@pytest.mark.usefixtures("_installed")
def test_the_users_steps_come_in_their_order_after_the_head_and_before_rounding() -> None:
    found = steps(
        scheme="hcct-p",
        wire_dtype="bfloat16",
        outgoing=("noise", "clip"),
        outgoing_option={"clip.norm": "2", "noise.scale": "0"},
    )
    assert found == (
        OutgoingStep("head"),
        OutgoingStep("noise", {"scale": "0"}),
        OutgoingStep("clip", {"norm": "2"}),
        OutgoingStep("rounding"),
    )


@pytest.mark.usefixtures("_installed")
@pytest.mark.parametrize(
    ("settings", "what", "remedy"),
    [
        ({"outgoing": ("clap",)}, "--outgoing cannot be 'clap'", "did you mean 'clip'?"),
        ({"outgoing": ("head",)}, "--outgoing cannot be 'head'", "clip"),
        ({"outgoing": ("clip", "clip")}, "--outgoing clip is given twice", "give it once"),
        (
            {"outgoing": ("clip",), "outgoing_option": {"clip.nrom": "1"}},
            "outgoing clip has no option 'nrom'",
            "did you mean 'norm'?",
        ),
        (
            {"outgoing": ("clip",), "outgoing_option": {"clip.norm": "-1"}},
            "outgoing clip: option norm is '-1'",
            "give a number above 0",
        ),
        (
            {"outgoing": ("clip", "mask"), "outgoing_option": {"noise.scale": "1"}},
            "--outgoing-option noise.scale is for no step of --outgoing",
            "write clip.KEY=VALUE or mask.KEY=VALUE",
        ),
        (
            {"outgoing_option": {"clip.norm": "1"}},
            "--outgoing-option clip.norm is for no step of --outgoing",
            "write --outgoing STEP too",
        ),
        (
            {"scheme": "hcct-p", "profile_option": {"similarity_of": "all"}, "outgoing": ("noise",)},
            "clients would reveal updates of their heads, which --outgoing noise does not see",
            "similarity_of=all",
        ),
    ],
)
def test_what_cannot_be_is_refused_before_the_run(settings: dict[str, Any], what: str, remedy: str) -> None:
    with pytest.raises(ConfigError) as error:
        steps(**settings)
    assert what in error.value.what
    assert remedy in error.value.remedy


@pytest.mark.usefixtures("_installed")
def test_a_scheme_whose_heads_travel_may_reveal_all_that_the_steps_have_seen() -> None:
    assert len(steps(scheme="hcct", profile_option={"similarity_of": "all"}, outgoing=("noise",))) == 1


def test_the_list_of_steps_is_written_to_a_file_and_read_back_and_other_values_are_refused(tmp_path: Path) -> None:
    config = RunConfig(outgoing=("b", "a"), outgoing_option={"a.x": "1"})
    assert parse(RunConfig, dump(config), tmp_path) == config
    for wrong in ('outgoing = "clip"', "outgoing = [1]"):
        with pytest.raises(ConfigError, match=r"give a list of texts"):
            parse(RunConfig, wrong, tmp_path)


@pytest.mark.e2e
@pytest.mark.usefixtures("_installed")
@pytest.mark.slow
def test_the_flags_name_the_steps_of_installed_packages() -> None:
    def told(*flags: str) -> str:
        command = [sys.executable, "-m", "top_server", *flags]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=None, check=False)
        return done.stdout + done.stderr

    shown = told("--help")
    assert "--outgoing-option" in shown
    assert "clip" in shown
    assert "--outgoing clip is given twice" in told("--outgoing", "clip", "--outgoing", "clip")
    wrong = told("--outgoing", "clip", "--outgoing-option", "clip.norm=-1")
    assert "outgoing clip: option norm is '-1'" in wrong
