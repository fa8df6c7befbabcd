"""The documents of an iteration: written last, in their order, and none after one that could not be."""

from dataclasses import replace

import pytest

from ms_recover import api
from ms_recover.model.options import PlanOptions
from ms_recover.model.plan import DocumentWrite
from tests.support.iteration_trees import unpack

TRACKER = "latest_checkpointed_iteration.txt"


@pytest.fixture
def tree(tmp_path):
    """A tree that has lost the documents of its iteration, which a plan knows from another node."""
    root = unpack("dp2_mp2_pp2", tmp_path / "tree", 200)
    (iteration,) = api.scan(root).iterations
    common, tracker = root / iteration.common.path, root / TRACKER
    tracker.unlink()
    plan = api.plan(api.scan(root), PlanOptions(quick=True))
    common.unlink()
    first = DocumentWrite(target=iteration.common.path, value=iteration.common.value, replaces=None, reason="")
    return root, common, replace(plan, documents=(first, *plan.documents))


def test_the_tracker_comes_behind_what_it_names(tree):
    root, common, plan = tree
    outcome = api.apply(plan)
    assert outcome.documents == (str(common.relative_to(root)), TRACKER)
    assert (outcome.exit_code, outcome.errors) == (0, ())
    assert api.apply(plan).documents == ()


def test_a_document_that_cannot_be_written_keeps_the_tracker_from_naming_it(tree):
    root, common, plan = tree
    common.mkdir()
    outcome = api.apply(plan)
    assert outcome.documents == ()
    assert len(outcome.errors) == 1
    assert outcome.errors[0].startswith(f"writing {common.relative_to(root)}: ")
    assert outcome.exit_code != 0
    assert not (root / TRACKER).exists()


def test_a_recovery_of_some_ranks_writes_no_document_of_all(tree):
    root, common, plan = tree
    outcome = api.apply(plan, ranks=[0, 1])
    assert (outcome.documents, outcome.exit_code) == ((), 0)
    assert not common.exists()
    assert not (root / TRACKER).exists()
