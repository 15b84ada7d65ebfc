"""Options that make short work of what the profiles of schemes do, or let it come to something."""

from __future__ import annotations

from fedgsp.settings.fields import described
from top_server.profiles import PROFILES
from top_server.schemes import SCHEMES

_OPTIONS = {"models": "2", "prior_epochs": "1", "exchanges": "2", "judge_every": "1"}


def short_profile(scheme: str) -> dict[str, str]:
    """Those of them that the profile of a scheme has."""
    read = {one.name for one in described(PROFILES[SCHEMES[scheme].profile].options).values()}
    return {name: value for name, value in _OPTIONS.items() if name in read}
