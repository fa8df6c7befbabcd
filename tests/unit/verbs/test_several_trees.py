"""Plans over this tree and others."""

import shutil

import pytest

from ms_recover import api
from ms_recover.errors import FormatError
from ms_recover.testing.trees import make_tree
from ms_recover.verbs.several_trees import SeveralTrees


@pytest.mark.parametrize(("left_out", "recovered"), [(False, [3]), (True, [])])
def test_a_rank_without_files_is_recovered_here_unless_it_may_live_on_a_node_that_is_left_out(
    tmp_path, left_out, recovered
):
    here, there = make_tree(tmp_path / "here"), make_tree(tmp_path / "there")
    for tree, ranks in ((here, (0, 2, 3)), (there, (1, 3))):
        for rank in ranks:
            shutil.rmtree(tree / f"ckpt_dir{rank}")
    with SeveralTrees([f"file://{there}"]) as trees:
        if left_out:
            trees.left_out.append(FormatError("another node sent no inventory"))
        plan = trees.plan(api.scan(here)).plan
    assert [action.rank for action in plan.actions] == recovered
    assert any("it is left out" in text for text in plan.warnings) == left_out
