from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from hypothesis import given, settings
from hypothesis import strategies as st

from fedgsp.errors import ConfigError
from fedgsp.settings.fields import described
from fedgsp.settings.policy import NO_POLICY, UNLIMITED, Entries, Policy, written
from fedgsp_node.policies.policy_file import MOST_BYTES, dump, policy_of

KEYS = described(Policy)


def read(text: str | bytes, **allow: str) -> Policy:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "policy.toml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return policy_of(str(path), allow)


@pytest.mark.parametrize("policy", [Policy(), UNLIMITED])
def test_a_printed_policy_is_read_as_the_same(policy: Policy) -> None:
    assert read(dump(policy)) == policy


def test_without_a_file_there_is_the_default_one_and_none_forbids_nothing() -> None:
    assert policy_of(None, {}) == read("") == Policy()
    assert policy_of(NO_POLICY, {}) == UNLIMITED
    with pytest.raises(ConfigError, match="leave out one of them"):
        policy_of(NO_POLICY, {"reveal": "exact"})


def test_what_is_allowed_is_added_to_lists_and_replaces_numbers() -> None:
    found = read('hosts = ["10.0.0.0/8"]\nmost_epochs = 5\n', hosts="n1,n2", most_epochs="7", reveal="exact")
    assert (found.hosts, found.most_epochs) == (("10.0.0.0/8", "n1", "n2"), 7)
    assert found.reveal == (*Policy().reveal, "exact")


@pytest.mark.parametrize("key", ["require", "task_sha256"])
def test_what_would_forbid_more_is_not_written_as_allowed(key: str) -> None:
    with pytest.raises(ConfigError, match=f"--allow {key} would forbid more"):
        policy_of(None, {key: "ab" * 32})


@pytest.mark.parametrize(
    ("allow", "words"),
    [
        ({"optimizer_state": "fresh,kept"}, "optimizer_state of the policy is *"),
        ({"work": "train,evaluate"}, "work of the policy is train, retain"),
        ({"runs": "*"}, "runs of the policy is *"),
        ({"ports": "8443"}, "ports of the policy is 1024-65535"),
        ({"reveal": "sketch:8"}, "reveal of the policy is sketch:16384"),
    ],
)
def test_what_is_allowed_already_is_refused_since_it_does_not_forbid_the_rest(
    allow: dict[str, str], words: str
) -> None:
    with pytest.raises(ConfigError, match="allows nothing more") as refused:
        policy_of(None, allow)
    assert words in str(refused.value)
    assert "to allow less, write" in str(refused.value)
    assert "discriminate" in policy_of(None, {"work": "train,discriminate"}).work


@given(st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1).filter(lambda key: key not in KEYS))
@settings(deadline=None, max_examples=50)
def test_an_unknown_key_is_named(key: str) -> None:
    text = tomli_w.dumps({key: 1})
    with pytest.raises(ConfigError, match="there is no key") as caught:
        read(text)
    assert repr(key) in caught.value.what
    with pytest.raises(ConfigError, match="there is no key"):
        policy_of(None, {key: "1"})


ANYTHING: dict[type, st.SearchStrategy[Any]] = {
    bool: st.booleans(),
    int: st.integers(-(2**63), 2**63 - 1),
    float: st.floats(allow_nan=False, allow_infinity=False),
    str: st.text(st.characters(codec="utf-8", exclude_categories=["Cs"])),
    list: st.lists(st.integers() | st.booleans(), min_size=1, max_size=3),
    dict: st.dictionaries(st.sampled_from("ab"), st.integers(), max_size=2),
}


def wrong_types(kind: type) -> list[type]:
    right: dict[type, set[type]] = {int: {int}, float: {int, float}}
    return [other for other in ANYTHING if other not in right.get(kind, {str})]


@given(st.data(), st.sampled_from(sorted(KEYS)))
@settings(deadline=None, max_examples=100)
def test_a_value_of_the_wrong_type_is_named_with_its_key(data: st.DataObject, key: str) -> None:
    value = data.draw(st.sampled_from(wrong_types(KEYS[key].type)).flatmap(lambda kind: ANYTHING[kind]))
    with pytest.raises(ConfigError) as caught:
        read(tomli_w.dumps({key: value}))
    assert f": {key} is " in caught.value.what
    assert caught.value.remedy.startswith("give ")


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("work", "train,dance"),
        ("reveal", "sketch:9"),
        ("reveal", "all"),
        ("require", "a b"),
        ("hosts", "10.0.0.1/8"),
        ("hosts", "10.0.0"),
        ("hosts", "http://x"),
        ("hosts", "n1 n2"),
        ("ports", "http"),
        ("task_sha256", "AB" * 32),
        ("task_sha256", "ab"),
        ("most_epochs", "0"),
        ("most_epochs", "1e3"),
        ("most_seconds", "nan"),
        ("most_seconds", "inf"),
        ("most_learning_rate", "0"),
        ("runs", "two words"),
    ],
)
def test_a_value_that_means_nothing_is_refused(key: str, text: str) -> None:
    with pytest.raises(ConfigError, match=f"--allow: {key} is"):
        policy_of(None, {key: text})
    if issubclass(KEYS[key].type, Entries):
        with pytest.raises(ConfigError, match=f"{key} is"):
            read(tomli_w.dumps({key: text}))


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"\xff", "cannot be read"),
        (b"work = ", "is not TOML"),
        (b"work = " + b"[" * 50_000, "is not TOML"),
        (b"#" * (MOST_BYTES + 1), "has more than"),
    ],
)
def test_a_file_that_is_no_policy_is_refused_without_a_traceback(content: bytes, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        read(content)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    for path in (tmp_path / "none.toml", tmp_path):
        with pytest.raises(ConfigError, match=r"--policy .* cannot be read"):
            policy_of(str(path), {})


def test_the_page_of_the_policy_has_every_key_with_its_default() -> None:
    page = (Path(__file__).resolve().parents[3] / "docs" / "policy.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| `?([^`|]*?)`? \| ", page, re.MULTILINE)
    assert rows == [(key, text or "nothing") for key, text in written(Policy()).items()]


def test_a_policy_that_other_users_can_change_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "policy.toml"
    file.write_text("most_epochs = 5\n")
    file.chmod(0o666)
    with pytest.raises(ConfigError, match=r"--policy .* can be changed by every user of this machine"):
        policy_of(str(file), {})
    file.chmod(0o644)
    assert policy_of(str(file), {}).most_epochs == 5
