from __future__ import annotations

import numpy as np

from top_server.grouping import GROUPINGS, GroupingRequest

singletons = GROUPINGS["singletons"]


def test_everybody_is_alone_whatever_number_of_groups_is_wanted() -> None:
    plan = singletons(GroupingRequest(3, 1, 0, (4, 7, 9), np.ones(3, np.int64)))
    assert plan.groups == ((4,), (7,), (9,))
    assert plan.idle == ()
