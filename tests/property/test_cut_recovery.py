"""Several strikes at once on a tree without replicas: what layouts put together is right, or the plan refuses."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hypothesis import example, given, settings
from hypothesis import strategies as st

from ms_recover import api
from ms_recover.errors import MsRecoverError
from ms_recover.model.options import PlanOptions
from tests.property import test_recovery as plain
from tests.property.test_recovery import IN_THE_WAY, MEMORY, NONE, SAVED, SEALED, STEPS, Scene, Strike, recover
from tests.support import mishaps
from tests.support.cuts import make_struck_cut_tree
from tests.support.strategies import STRATEGY_DAMAGE

RANKS = range(6)
EXAMPLES = plain.EXAMPLES // 2
KINDS = {kind: strike for kind, strike in plain.KINDS.items() if "peer" not in kind} | STRATEGY_DAMAGE


BELIEVED = "rank lists that contradict the layouts"
"""Without manifests nothing says which is right where most lists do so; the plan goes by the lists and says it."""


class CutStrike(Strike):
    """A strike at a tree whose slices have no replica."""

    def mishap(self) -> mishaps.Mishap:
        return KINDS[self.kind]


@dataclass(frozen=True)
class CutScene(Scene):
    """A tree whose ranks are alone in their groups."""

    def group(self, rank: int) -> tuple[int, ...]:
        return (rank,)

    def whole(self) -> dict[str, bytes]:
        return whole_tree(self.evidence)


@functools.cache
def whole_tree(evidence: str) -> dict[str, bytes]:
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        return plain.backed(make_struck_cut_tree(Path(folder), STEPS), evidence)


@st.composite
def scenes(draw: st.DrawFn, evidence: str, kinds: Mapping[str, mishaps.Mishap] = KINDS, most: int = 6) -> CutScene:
    struck = draw(st.sampled_from([STEPS[2:], STEPS[2:], STEPS[1:]]))
    strikes = []
    for _ in range(draw(st.integers(0, most))):
        rank, step = draw(st.sampled_from(RANKS)), draw(st.sampled_from(struck[::-1]))
        kind = draw(st.sampled_from([*kinds]) | st.sampled_from([kind for kind in STRATEGY_DAMAGE if kind in kinds]))
        other = draw(st.sampled_from([one for one in STEPS if one != step]))
        stranger = draw(st.sampled_from([one for one in RANKS if one != rank]))
        strikes.append(CutStrike(kind, rank, step, other, stranger, ()))
    strikes.sort(key=lambda strike: strike.kind.startswith(IN_THE_WAY))
    gone = draw(st.sets(st.sampled_from(RANKS), max_size=2))
    return CutScene(6, 1, evidence, tuple(strikes), frozenset(gone), True)


LISTS_AFTER_SEALING = CutScene(
    6,
    1,
    SEALED,
    tuple(
        CutStrike(kind, 0, STEPS[2], STEPS[0], 1, ())
        for kind in (
            "bit flip in the first parameter",
            "all strategy files removed",
            "rank lists that contradict the layouts",
        )
    ),
    frozenset(),
    True,
)
"""Wrong rank lists beside slices whose manifests name their own ranks alone."""


WRONG_SIZE = CutScene(
    6,
    1,
    SAVED,
    tuple(
        CutStrike(kind, 0, STEPS[2], STEPS[0], 1, ())
        for kind in ("bit flip in the last byte", "manifest with another size")
    ),
    frozenset(),
    True,
)
"""A manifest that states the right contents, and a size that no such slice has."""


@settings(max_examples=EXAMPLES)
@given(scenes(SAVED))
@example(WRONG_SIZE)
def test_with_saved_manifests_what_is_put_together_is_the_truth(scene: CutScene) -> None:
    recover(scene)


@settings(max_examples=EXAMPLES)
@given(scenes(SEALED))
@example(LISTS_AFTER_SEALING)
def test_in_a_sealed_tree_what_is_put_together_is_the_truth(scene: CutScene) -> None:
    recover(scene)


@settings(max_examples=EXAMPLES)
@given(scenes(NONE, {kind: strike for kind, strike in KINDS.items() if kind != BELIEVED}))
def test_without_manifests_a_recovery_is_complete(scene: CutScene) -> None:
    recover(scene)


TWO_SHORT = CutScene(
    6,
    1,
    NONE,
    tuple(CutStrike("a record missing", rank, STEPS[2], STEPS[0], 1, ()) for rank in (0, 2)),
    frozenset({1}),
    True,
)
"""Two slices lack the same parameter, which has no layout, and a third is lost."""
ANOTHER_MATRIX = CutScene(
    6,
    1,
    NONE,
    (
        CutStrike("bit flip in the first byte", 1, STEPS[2], STEPS[0], 0, ()),
        CutStrike("all strategy files of another matrix", 0, STEPS[2], STEPS[0], 1, ()),
        CutStrike("bit flip in the first byte", 2, STEPS[2], STEPS[0], 0, ()),
    ),
    frozenset({3}),
    True,
)
"""Wrong strategy files that only slices of another step contradict."""
MATRIX_AND_CUT = CutScene(
    6,
    1,
    NONE,
    (
        CutStrike("all strategy files of another matrix", 0, STEPS[2], STEPS[0], 1, ()),
        CutStrike("bit flip in the first byte", 3, STEPS[2], STEPS[0], 0, ()),
        CutStrike("all strategy files cut otherwise", 0, STEPS[2], STEPS[0], 1, ()),
    ),
    frozenset({1, 5}),
    True,
)
"""The same, where other ranks agree by chance in what the lost rank contradicts."""
SHOWN = {**plain.STRUCTURE, **mishaps.LOSSES, **STRATEGY_DAMAGE}
for unknowable in (BELIEVED, "the part of another rank"):
    del SHOWN[unknowable]


@settings(max_examples=EXAMPLES)
@given(scenes(NONE, SHOWN))
@example(TWO_SHORT)
@example(ANOTHER_MATRIX)
@example(MATRIX_AND_CUT)
def test_a_wrong_strategy_file_puts_nothing_wrong_together(scene: CutScene) -> None:
    """Also without manifests: where slices are whole or visibly damaged, only how they are cut can be mistaken."""
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        root = Path(folder)
        truth = scene.make(root)
        try:
            plan = api.plan(api.scan(root), PlanOptions(world_size=scene.size))
            api.check(plan)
            outcome = api.apply(plan)
        except MsRecoverError:
            return
        for result in outcome.results:
            if result.status in ("composed", "copied"):
                assert (root / result.target).read_bytes() == truth[f"ckpt_dir{result.rank}/test-{plan.step}.ckpt"]
