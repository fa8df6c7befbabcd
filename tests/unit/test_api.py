"""How the verb `plan` reads, and `explain` goes by the plan."""

from dataclasses import replace

import pytest

from ms_recover import api
from ms_recover.errors import UsageError
from ms_recover.model.contents import Contents
from ms_recover.model.options import PlanOptions
from ms_recover.scanning.read import read_contents
from ms_recover.testing.trees import make_tree
from tests.support.cuts import make_struck_cut_tree
from tests.support.inventories import OLDER


@pytest.fixture
def inventory(tmp_path):
    tree = make_tree(tmp_path / "tree", data_parallel=2)
    (tree / "ckpt_dir0" / "test-1_8.ckpt").unlink()
    return api.scan(tree)


def test_no_slice_is_read_twice(inventory):
    asked = []

    def read(files):
        asked.extend(file.path for file in files)
        return read_contents(inventory.root, files)

    planned, contents = api.plan_with_evidence(inventory, read=read)
    assert sorted(asked) == sorted(contents.digests)
    assert asked
    assert planned.plan == api.plan(inventory)


def test_nothing_is_read_for_a_quick_plan(inventory):
    quick = PlanOptions(quick=True)
    planned, contents = api.plan_with_evidence(inventory, quick, read=lambda files: pytest.fail("read"))
    assert planned.plan.recoverable
    assert contents == Contents()


def test_only_some_ranks_need_a_slice(inventory):
    alone = replace(inventory, slices=tuple(file for file in inventory.slices if file.rank != 2))
    assert not api.plan(alone).recoverable
    assert api.plan(alone, PlanOptions(ranks=frozenset([1, 3]))).recoverable


def test_a_rank_is_explained_by_the_step_of_the_plan(tmp_path):
    inventory = api.scan(make_struck_cut_tree(tmp_path / "tree", [OLDER]))
    made, found = api.explain(inventory, 0, PlanOptions(lost=frozenset([0])))
    assert (found.rank, found.step, found.problem) == (0, made.considered, None)
    assert all(0 not in item.holders for item in found.parameters)
    assert any(0 in item.holders for item in api.explain(inventory, 0)[1].parameters)
    with pytest.raises(UsageError, match="there is no rank 6"):
        api.explain(inventory, 6)
