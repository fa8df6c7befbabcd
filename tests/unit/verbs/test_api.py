"""How the verb `plan` reads, and `explain` goes by the plan."""

import inspect
import pickle
from dataclasses import replace

import pytest

import ms_recover
from ms_recover import api
from ms_recover.errors import OlderStepError, UnrecoverableError, UsageError
from ms_recover.model.contents import Contents
from ms_recover.model.options import PlanOptions
from ms_recover.model.steps import Step
from ms_recover.scanning.read import read_contents
from ms_recover.testing.trees import make_tree
from ms_recover.verbs.session import Session
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

    session = Session(inventory, read=read)
    planned, contents = session.planned, session.contents
    assert sorted(asked) == sorted(contents.digests)
    assert asked
    assert planned.plan == api.plan(inventory)


def test_nothing_is_read_for_a_quick_plan(inventory):
    quick = PlanOptions(quick=True)
    session = Session(inventory, quick, read=lambda files: pytest.fail("read"))
    assert session.planned.plan.recoverable
    assert session.contents == Contents()


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


@pytest.fixture
def going_back(tmp_path):
    """Return the scan of a tree whose newest step has lost both replicas of a slice."""
    tree = make_tree(tmp_path / "tree", steps=[Step(1, 8), Step(2, 8)])
    for rank in (1, 3):
        (tree / f"ckpt_dir{rank}" / "test-2_8.ckpt").unlink()
    return api.scan(tree)


def test_a_plan_that_goes_back_is_refused_where_the_newest_step_is_required(going_back):
    newest = PlanOptions(require_newest=True)
    with pytest.raises(
        OlderStepError, match=r"step 2_8 cannot be recovered \(ranks 1, 3: .*going back to step 1_8"
    ) as caught:
        api.plan(going_back, newest)
    assert caught.value.exit_code == UnrecoverableError.exit_code == 4
    assert caught.value.plan == api.plan(going_back)
    assert caught.value.explanation is None
    with pytest.raises(OlderStepError) as caught:
        api.explain(going_back, 1, newest)
    assert (caught.value.plan, caught.value.explanation) == api.explain(going_back, 1)


def test_the_error_of_a_refused_plan_survives_pickling(going_back):
    with pytest.raises(OlderStepError) as caught:
        api.plan(going_back, PlanOptions(require_newest=True))
    again = pickle.loads(pickle.dumps(caught.value))
    assert (type(again), str(again), again.plan) == (OlderStepError, str(caught.value), caught.value.plan)


def test_a_refused_plan_is_applied_only_where_older_steps_will_do(going_back, tmp_path):
    lost = tmp_path / "tree" / "ckpt_dir0" / "test-1_8.ckpt"
    lost.unlink()
    made = api.plan(api.scan(tmp_path / "tree"))
    with pytest.raises(OlderStepError) as caught:
        api.apply(made, require_newest=True)
    assert caught.value.plan == made
    assert not lost.exists()
    assert api.apply(made).step == Step(1, 8)
    assert lost.exists()


def test_the_newest_step_is_enough_where_it_is_required(tmp_path):
    tree = make_tree(tmp_path / "tree", steps=[Step(1, 8), Step(2, 8)])
    (tree / "ckpt_dir0" / "test-2_8.ckpt").unlink()
    made = api.plan(api.scan(tree), PlanOptions(require_newest=True))
    assert made.step == Step(2, 8)
    assert api.apply(made, require_newest=True).exit_code == 0


def test_a_tree_without_a_recoverable_step_is_planned_as_always(going_back, tmp_path):
    for rank in (1, 3):
        (tmp_path / "tree" / f"ckpt_dir{rank}" / "test-1_8.ckpt").unlink()
    assert not api.plan(api.scan(tmp_path / "tree"), PlanOptions(require_newest=True)).recoverable


def test_every_verb_has_a_typed_signature_and_names_its_errors():
    for name in sorted({*api.__all__} - {"SeveralTrees"}):
        verb = getattr(api, name)
        signature = inspect.signature(verb)
        assert signature.return_annotation is not inspect.Signature.empty
        for parameter in signature.parameters.values():
            assert parameter.annotation is not inspect.Parameter.empty, (name, parameter)
            assert parameter.kind is not inspect.Parameter.VAR_KEYWORD, (name, parameter)
        assert "Raises\n" in verb.__doc__ or "errors as there" in verb.__doc__, name


def test_by_default_everything_is_written_whole_and_read_back():
    defaults = {
        (name, parameter.name): parameter.default
        for name in sorted({*api.__all__} - {"SeveralTrees"})
        for parameter in inspect.signature(getattr(api, name)).parameters.values()
        if isinstance(parameter.default, bool)
    }
    assert {choice for choice, default in defaults.items() if default} == {
        *((verb, "verify") for verb in ("apply", "complete", "complete_iteration", "reshard")),
        ("inspect", "crc"),
    }


def test_the_package_has_the_verbs():
    for name in ("apply", "audit", "copy", "describe", "history", "measure", "plan", "reshard", "verify"):
        assert getattr(ms_recover, name) is getattr(api, name)


def test_the_verbs_from_scan_to_verify_recover_a_tree(tmp_path):
    tree = make_tree(tmp_path / "tree")
    lost = tree / "ckpt_dir0" / "test-1_8.ckpt"
    truth = lost.read_bytes()
    sealed, _ = api.seal(api.scan(tree))
    assert len(sealed) == 4
    lost.unlink()
    made = api.plan(api.scan(tree))
    api.check(made)
    assert api.apply(made, jobs=2).exit_code == 0
    assert lost.read_bytes() == truth
    assert api.inspect(lost).problems == ()
    found = api.verify(api.scan(tree))
    assert found.wrong == ()
    assert {check.evidence for check in found.checks} == {"manifest"}
