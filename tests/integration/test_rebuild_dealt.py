"""Trees that ``remove_redundancy=True`` saved: each parameter lies with one rank of those that hold it alike."""

import numpy as np
import pytest

from ms_recover import api
from ms_recover.model.compose import ComposeAction
from ms_recover.model.options import PlanOptions
from ms_recover.model.steps import Step
from tests.support.cuts import CutTensor, cut_layout, make_cut_tree, slice_of

OLD, NEW = Step(1, 8), Step(2, 8)
DEALT = (("format", "ms"), ("remove_redundancy", "True"))
FULL = (("format", "ms"), ("remove_redundancy", "False"))


@pytest.fixture
def tensors():
    source = np.random.default_rng(11)
    named = {}
    for index in range(6):
        name = f"layer{index}.weight"
        array = source.random((8, 6)).astype(np.float32)
        named[name] = CutTensor("Float32", array, cut_layout(name, (2, 2), (), (0,)))
    named["global_step"] = CutTensor("Int32", np.int32(8))
    return named


def dealt(named, rank):
    """Return what a rank keeps: of parameters sorted by name every other one, and what has no layout."""
    position = rank // 2  # of (0, 2) and of (1, 3), which hold the same
    names = sorted(name for name in named if named[name].layout is not None)
    mine = set(names[position::2])
    return {name: one for name, one in named.items() if one.layout is None or name in mine}


@pytest.fixture(params=["ckpt", "safetensors"])
def form(request):
    return request.param


def write(path, named, rank, form, metadata):
    path.chmod(0o600)
    path.write_bytes(slice_of(named, rank, form=form, metadata=metadata))
    path.chmod(0o400)


@pytest.fixture
def tree(tmp_path, tensors, form):
    """Two steps; rank 2 saved its slices whole."""
    root = make_cut_tree(
        tmp_path / "tree", tensors, 4, steps=(OLD, NEW), form=form, groups={r: (r % 2, r % 2 + 2) for r in range(4)}
    )
    for rank in range(4):
        for step in (OLD, NEW):
            path = root / f"ckpt_dir{rank}" / f"test-{step}.{form}"
            if rank == 2:
                write(path, tensors, rank, form, FULL)
            else:
                write(path, dealt(tensors, rank), rank, form, DEALT)
    return root


def test_a_rank_is_rebuilt_as_it_was_saved(tree, tensors, form):
    path = tree / "ckpt_dir0" / f"test-{NEW}.{form}"
    truth = path.read_bytes()
    path.unlink()
    plan = api.plan(api.scan(tree))
    assert plan.step == NEW
    [action] = plan.actions
    assert isinstance(action, ComposeAction)
    assert [item.parameter.name for item in action.parameters] == list(dealt(tensors, 0))
    assert api.apply(plan).exit_code == 0
    assert path.read_bytes() == truth
    assert not api.plan(api.scan(tree)).actions


def test_what_nobody_else_has_is_named(tree, tensors, form):
    (tree / "ckpt_dir1" / f"test-{NEW}.{form}").unlink()
    plan = api.plan(api.scan(tree), PlanOptions(step=NEW))
    assert not plan.recoverable
    assert {gone.parameter for gone in plan.ranks[1].missing} == set(dealt(tensors, 1)) - {"global_step"}


def test_full_slices_hold_everything_in_order(tree, tensors, form):
    for rank in range(4):
        result = api.complete(api.scan(tree), rank)
        assert result.target == f"ckpt_dir{rank}/test-{NEW}.complete.{form}"
        assert (tree / result.target).read_bytes() == slice_of(tensors, rank, form=form, metadata=FULL)
