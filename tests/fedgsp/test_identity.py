import pytest

from fedgsp.identity import Identity, Role, identity_in, is_name


@pytest.mark.parametrize(
    "identity", [Identity(Role.NODE, "hospital-a"), Identity(Role.TOP_SERVER), Identity(Role.MANAGER, "m0")]
)
def test_an_identity_is_read_from_its_uri(identity: Identity) -> None:
    assert identity_in([identity.uri, "https://example.org"]) == identity


@pytest.mark.parametrize(
    "uris",
    [
        [],
        ["fedgsp://node"],
        ["fedgsp://node/"],
        ["fedgsp://node/a b"],
        ["fedgsp://node/a/b"],
        ["fedgsp://node/a\n"],
        ["fedgsp://king/a"],
        ["FEDGSP://node/a"],
        ["fedgsp://node/" + "a" * 64],
        ["fedgsp://node/a", "fedgsp://top-server"],
        ["fedgsp://node/a", "fedgsp://node/b"],
    ],
)
def test_a_certificate_without_one_clear_identity_has_none(uris: list[str]) -> None:
    assert identity_in(uris) is None


@pytest.mark.parametrize(("text", "fits"), [("a", True), ("A.b_c-9", True), ("", False), ("-a", False), ("ä", False)])
def test_names_are_of_a_limited_alphabet(text: str, fits: bool) -> None:
    assert is_name(text) is fits
