"""The loss of hosts is fatal by audit exactly when a plan fails after their files are deleted.

`tests.support.audit_law` tries it on more trees.
"""

from __future__ import annotations

import pytest

from tests.support.audit_law import try_law
from tests.support.examples import examples

TREES = examples(120)
MOST_LOSSES = 6
"""Losses of each tree that are tried."""


@pytest.mark.parametrize("first", range(0, TREES, 30))
def test_a_loss_is_fatal_exactly_when_a_plan_fails_after_it(first: int) -> None:
    found = [try_law(seed, MOST_LOSSES) for seed in range(first, min(first + 30, TREES))]
    tried = [one for one in found if one is not None]
    assert [text for one in tried for text in one.violations] == []
    assert any(one.differing for one in tried)
    assert sum(one.losses for one in tried) > 40
    assert 0 < sum(one.fatal for one in tried) < sum(one.losses for one in tried)


@pytest.mark.parametrize("seed", [120, 141, 255, 474, 588, 669, 722, 970])
def test_what_speaks_against_others_goes_with_a_loss(seed: int) -> None:
    """Holders of blocks alone call some loss of these fatal, after which a plan recovers: the other side goes too."""
    tried = try_law(seed)
    assert tried is not None
    assert tried.violations == ()
