"""Recoveries of one tree at a time: those of some ranks go together, one of all ranks goes alone."""

import fcntl
import os
from contextlib import contextmanager

import pytest

from ms_recover import api
from ms_recover.errors import StorageError
from ms_recover.execution.lock import lock_tree
from ms_recover.testing.trees import make_tree


@pytest.fixture
def lost(tmp_path):
    """A tree that has lost the slices of two ranks, and the plan for them."""
    tree = make_tree(tmp_path / "tree", data_parallel=2, model_parallel=2)
    for rank in (0, 1):
        next((tree / f"ckpt_dir{rank}").glob("test-*")).unlink()
    return tree, api.plan(api.scan(tree))


@contextmanager
def another(tree, kind):
    """Another recovery at work: a lock belongs to the open file, so that this one is a stranger to it."""
    descriptor = os.open(tree, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, kind)
        yield
    finally:
        os.close(descriptor)


def test_recoveries_of_some_ranks_go_together(lost):
    tree, plan = lost
    with another(tree, fcntl.LOCK_SH):
        outcome = api.apply(plan, ranks=[1])
    assert [(one.rank, one.status) for one in outcome.results] == [(1, "copied")]


@pytest.mark.parametrize(
    ("kind", "ranks"),
    [(fcntl.LOCK_SH, None), (fcntl.LOCK_EX, None), (fcntl.LOCK_EX, [1])],
    ids=["all beside some", "all beside all", "some beside all"],
)
def test_one_of_all_ranks_goes_alone(kind, ranks, lost):
    tree, plan = lost
    before = sorted(tree.rglob("*"))
    with another(tree, kind), pytest.raises(StorageError, match="another recovery is at work on"):
        api.apply(plan, ranks=ranks, lock_timeout=0)
    assert sorted(tree.rglob("*")) == before
    assert api.apply(plan, ranks=ranks, lock_timeout=0).exit_code == 0


def test_a_lock_is_given_back_also_by_an_error(tmp_path):
    with pytest.raises(ValueError, match="wrong"), lock_tree(str(tmp_path)):
        raise ValueError("wrong")
    with lock_tree(str(tmp_path)):
        pass
