"""Strategy files that are damaged, stale or contradicted beside slices that are rebuilt by them."""

from pathlib import Path

import pytest

from ms_recover import api
from ms_recover.model.options import PlanOptions
from ms_recover.model.steps import Step
from ms_recover.testing.trees import make_tree, save_manifests
from tests.support.cuts import make_struck_cut_tree
from tests.support.damage import STRUCK, STRUCK_PIECES, struck_layout_bytes
from tests.support.mishaps import Victim
from tests.support.strategies import STRATEGY_DAMAGE

STEP, OLDER = Step(2, 8), Step(1, 8)


def slice_of(tree: Path, rank: int) -> Path:
    return tree / f"ckpt_dir{rank}" / f"test-{STEP}.ckpt"


@pytest.fixture
def cut_tree(tmp_path):
    """Six ranks without replicas, of which rank 0 lost its newer slice."""

    def make(*, manifests: bool = False) -> tuple[Path, bytes]:
        tree = make_struck_cut_tree(tmp_path / "tree", [OLDER, STEP])
        if manifests:
            save_manifests(tree)
        truth = slice_of(tree, 0).read_bytes()
        for path in slice_of(tree, 0).parent.glob(f"test-{STEP}*"):
            path.unlink()
        return tree, truth

    return make


def strike(tree: Path, kind: str, *ranks: int) -> None:
    for rank in ranks:
        STRATEGY_DAMAGE[kind](Victim(tree, rank, STEP, OLDER, (rank + 1) % 6, ()))


@pytest.mark.parametrize("manifests", [False, True])
@pytest.mark.parametrize("kind", [kind for kind in STRATEGY_DAMAGE if kind.startswith("strategy file")])
def test_one_bad_strategy_file_harms_neither_this_recovery_nor_the_next(cut_tree, kind, manifests):
    tree, truth = cut_tree(manifests=manifests)
    strike(tree, kind, 2)
    assert api.apply(api.plan(api.scan(tree))).exit_code == 0
    assert slice_of(tree, 0).read_bytes() == truth
    assert not api.verify(api.scan(tree), PlanOptions(step=STEP)).wrong
    lost = slice_of(tree, 2).read_bytes()
    for path in slice_of(tree, 2).parent.glob(f"test-{STEP}*"):
        path.unlink()
    assert api.apply(api.plan(api.scan(tree))).exit_code == 0
    assert slice_of(tree, 2).read_bytes() == lost
    assert not api.plan(api.scan(tree)).actions


@pytest.mark.parametrize("manifests", [False, True])
@pytest.mark.parametrize("kind", ["all strategy files of another matrix", "all strategy files cut otherwise"])
def test_strategy_files_of_another_run_are_found_out(cut_tree, kind, manifests):
    """By the manifests, or where there are none because ranks that should hold the same do not."""
    tree, _ = cut_tree(manifests=manifests)
    strike(tree, kind, 0)
    plan = api.plan(api.scan(tree))
    assert plan.ranks[0].verdict != "compose" or plan.step == OLDER
    if manifests:
        assert plan.step == OLDER
    else:
        assert not plan.recoverable
        assert "it is not the strategy file of these slices, or they are damaged" in plan.disagreements[0]


def test_a_stale_strategy_file_is_not_found_out_where_nobody_holds_the_same(cut_tree):
    """What cannot be known without manifests: one survivor of each part contradicts nobody."""
    tree, _ = cut_tree()
    strike(tree, "all strategy files cut otherwise", 0)
    for rank in (2, 3, 5):
        slice_of(tree, rank).unlink()
    plan = api.plan(api.scan(tree), PlanOptions(step=STEP))
    assert plan.ranks[0].verdict in ("compose", "unrecoverable")


def test_the_json_form_says_the_same(cut_tree):
    tree, truth = cut_tree()
    strike(tree, "strategy file in JSON", 1)
    strike(tree, "strategy file removed", 0, 3, 4, 5)
    assert api.apply(api.plan(api.scan(tree))).exit_code == 0
    assert slice_of(tree, 0).read_bytes() == truth


def test_rank_lists_that_contradict_the_layouts_and_the_other_lists_are_not_used(cut_tree):
    tree, truth = cut_tree()
    strike(tree, "rank lists that contradict the layouts", 0)
    plan = api.plan(api.scan(tree))
    assert [action.evidence for action in plan.actions] == ["layout"]
    assert any(
        "by ckpt_dir0/strategy.ckpt and 4 rank lists or manifests; it is not used" in note.reason for note in plan.notes
    )
    assert api.apply(plan).exit_code == 0
    assert slice_of(tree, 0).read_bytes() == truth


@pytest.mark.parametrize("lists", ["all", "some"])
def test_a_slice_that_was_copied_by_layouts_does_not_speak_against_its_source(tmp_path, lists):
    """Without rank lists only the layouts tell that the ranks hold the same."""
    tree = make_tree(tmp_path, data_parallel=3, steps=[STEP], parameters=STRUCK, pieces=STRUCK_PIECES)
    for folder in tree.iterdir():
        (folder / "strategy.ckpt").write_bytes(struck_layout_bytes(3, 2))
        if lists == "all" or folder.name in ("ckpt_dir0", "ckpt_dir2", "ckpt_dir4"):
            (folder / "group_info.pb").unlink()
    truth = slice_of(tree, 0).read_bytes()
    slice_of(tree, 0).unlink()
    assert api.apply(api.plan(api.scan(tree))).exit_code == 0
    assert slice_of(tree, 0).read_bytes() == truth
    found = api.verify(api.scan(tree))
    assert not found.wrong
    assert not found.disagreements
    again = api.plan(api.scan(tree))
    assert not again.actions
    assert not again.group_files
