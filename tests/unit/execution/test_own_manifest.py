"""A recovered slice is compared with the manifest that the lost one left."""

from dataclasses import replace

import numpy as np
import pytest

from ms_recover import api
from ms_recover.errors import VerificationError
from ms_recover.execution.manifests import check_against, write_manifest
from ms_recover.file_names import MANIFEST_SUFFIX
from ms_recover.formats.manifest import encode_manifest, read_manifest
from ms_recover.model.actions import CopyAction
from ms_recover.model.compose import ComposeAction
from ms_recover.model.manifest import Digests
from ms_recover.model.options import PlanOptions
from ms_recover.model.provenance import Provenance
from ms_recover.model.steps import Step
from ms_recover.testing.trees import make_tree, save_manifests
from tests.support.cuts import CutTensor, cut_layout, make_cut_tree

NAME = "test-1_8.ckpt"
OTHER = "xxh3_128:" + "0" * 32


@pytest.fixture(params=["copy", "compose"])
def lost(request, tmp_path):
    """Return a tree that lost rank 0's slice and kept its manifest, and the bytes lost."""
    if request.param == "copy":
        tree = make_tree(tmp_path / "tree", data_parallel=2, model_parallel=1)
        save_manifests(tree)
    else:
        source = np.random.default_rng(7)
        rows = CutTensor("Float32", source.random((8, 6), np.float32), cut_layout("rows", (2, 2), (1,), ()))
        columns = CutTensor("Float32", source.random((8, 12), np.float32), cut_layout("columns", (2, 2), (), (0,)))
        tree = make_cut_tree(tmp_path / "tree", {"rows": rows, "columns": columns}, 4, manifests=True)
    path = tree / "ckpt_dir0" / NAME
    truth = path.read_bytes()
    path.unlink()
    kind = CopyAction if request.param == "copy" else ComposeAction
    (action,) = plan_of(tree).actions
    assert isinstance(action, kind)
    return tree, truth


def plan_of(tree):
    return api.plan(api.scan(tree), PlanOptions(quick=True))


def alter(tree, **changes):
    """Change the manifest that the lost slice left; by default the digest of its first parameter."""
    path = tree / "ckpt_dir0" / NAME
    manifest = read_manifest(f"{path}{MANIFEST_SUFFIX}")
    digests = Digests(OTHER, (OTHER, *manifest.digests.parameters[1:]))
    altered = replace(manifest, **{"digests": digests, **changes})
    path.with_name(f"{NAME}{MANIFEST_SUFFIX}").write_bytes(encode_manifest(altered))
    return manifest.parameters[0].name


def test_what_the_manifest_names_is_restored(lost):
    tree, truth = lost
    assert api.apply(plan_of(tree)).exit_code == 0
    assert (tree / "ckpt_dir0" / NAME).read_bytes() == truth


def test_a_parameter_that_differs_is_named_and_nothing_is_written(lost):
    tree, _ = lost
    plan = plan_of(tree)
    name = alter(tree)
    outcome = api.apply(plan)
    assert outcome.exit_code == VerificationError.exit_code
    assert f"rank 0: parameter {name} of the recovered slice has the digest" in outcome.results[0].error
    assert not (tree / "ckpt_dir0" / NAME).exists()
    assert not list(tree.rglob("*.tmp"))


def test_a_plan_promises_no_slice_that_the_manifest_contradicts(lost):
    tree, _ = lost
    name = alter(tree)
    plan = plan_of(tree)
    assert plan.ranks[0].verdict == "unrecoverable"
    assert name in plan.ranks[0].reason
    assert not plan.actions


@pytest.mark.parametrize("gone", [True, False])
def test_the_manifest_of_a_rank_declared_lost_is_no_judge(gone, lost):
    tree, truth = lost
    alter(tree)
    if not gone:
        (tree / "ckpt_dir0" / NAME).write_bytes(truth[:-1])
    plan = api.plan(api.scan(tree), PlanOptions(lost=frozenset({0})))
    assert api.apply(plan).exit_code == 0
    assert (tree / "ckpt_dir0" / NAME).read_bytes() == truth


@pytest.mark.parametrize(
    "changes",
    [
        {"run_id": "another"},
        {"step": Step(1, 9)},
        {"rank": 1, "group": (0, 1)},
        {"provenance": Provenance(kind="sealed", evidence="structure")},
        {"provenance": Provenance(kind="copied", evidence="layout")},
    ],
)
def test_a_manifest_of_another_slice_or_without_proof_is_no_judge(changes, lost):
    tree, truth = lost
    plan = plan_of(tree)
    alter(tree, **changes)
    assert api.apply(plan).exit_code == 0
    assert (tree / "ckpt_dir0" / NAME).read_bytes() == truth


def test_borrowed_parameters_may_differ(lost):
    tree, truth = lost
    plan = plan_of(tree)
    name = alter(tree)
    (action,) = plan.actions
    assert api.apply(replace(plan, actions=(replace(action, borrowed=(name,)),))).exit_code == 0
    assert (tree / "ckpt_dir0" / NAME).read_bytes() == truth


def test_a_copy_without_manifest_is_compared_too(lost):
    tree, _ = lost
    plan = plan_of(tree)
    name = alter(tree)
    for path in tree.rglob(f"*{MANIFEST_SUFFIX}"):
        if path.parent.name != "ckpt_dir0":
            path.unlink()
    outcome = api.apply(replace(plan, run_id=None))
    assert outcome.exit_code == VerificationError.exit_code
    assert f"parameter {name}" in outcome.results[0].error
    assert not (tree / "ckpt_dir0" / NAME).exists()


def test_missing_parameters_count_only_where_the_slice_is_whole(lost):
    tree, _ = lost
    own = read_manifest(tree / "ckpt_dir0" / f"{NAME}{MANIFEST_SUFFIX}")
    names = [parameter.name for parameter in own.parameters]
    found = dict(list(zip(names, own.digests.parameters, strict=True))[1:])
    check_against(own, found, lambda: False, whole=False)
    with pytest.raises(VerificationError, match=f"parameter {names[0]} of the recovered slice is missing"):
        check_against(own, found, lambda: False)


@pytest.mark.parametrize("evidence", ["vote", "structure"])
def test_a_copy_of_a_proven_slice_rests_on_its_manifest(evidence, tmp_path):
    tree = make_tree(tmp_path / "tree", data_parallel=2, model_parallel=1)
    save_manifests(tree)
    source = tree / "ckpt_dir1" / NAME
    manifest = read_manifest(f"{source}{MANIFEST_SUFFIX}")
    sealed = replace(manifest, provenance=Provenance(kind="sealed", evidence=evidence))
    write_manifest(str(source), sealed)
    for path in (tree / "ckpt_dir0").glob("*.ckpt*"):
        path.unlink()
    plan = plan_of(tree)
    (action,) = plan.actions
    assert api.apply(replace(plan, actions=(replace(action, evidence="layout"),))).exit_code == 0
    copied = read_manifest(f"{tree / 'ckpt_dir0' / NAME}{MANIFEST_SUFFIX}")
    assert copied.provenance.evidence == ("manifest" if evidence == "vote" else "layout")
    assert copied.digests == manifest.digests
