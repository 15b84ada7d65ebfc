"""The table of who may call what has every RPC of the contract, and no other."""

from __future__ import annotations

import pytest

from fedgsp.security.access import RULES
from fedgsp.wire import MODULES

CALLS = {
    f"/{service.full_name}/{method.name}"
    for module in MODULES
    for service in module.DESCRIPTOR.services_by_name.values()
    for method in service.methods
}


def test_every_call_of_the_contract_has_a_rule_and_no_rule_is_left_over() -> None:
    assert RULES.keys() == CALLS


@pytest.mark.parametrize("method", sorted(RULES))
def test_no_call_is_for_everybody(method: str) -> None:
    assert RULES[method].roles
