"""verify, seal, and what plan makes of contents."""

import json
import shutil
from dataclasses import replace

import pytest

from ms_recover.execution.manifests import write_manifest
from ms_recover.execution.state_files import write_state
from ms_recover.file_names import MANIFEST_SUFFIX, STATE_SUFFIX
from ms_recover.formats.manifest import read_manifest
from ms_recover.formats.state import encode_state
from ms_recover.model.manifest import TrainingRecord
from ms_recover.model.steps import Step
from ms_recover.testing.trees import make_tree, save_manifests

NAME = "test-1_8.ckpt"


def flip(path, offset=400):
    data = bytearray(path.read_bytes())
    data[offset] ^= 0x40
    path.chmod(0o600)
    path.write_bytes(data)
    path.chmod(0o400)


@pytest.fixture
def pair(tmp_path):
    return make_tree(tmp_path / "pair")


@pytest.fixture
def triple(tmp_path):
    return make_tree(tmp_path / "triple", data_parallel=3)


def test_a_sound_tree(pair, recover_ckpt):
    found = recover_ckpt("verify", pair, "--json")
    assert found.code == 0
    assert found.json["ok"] is True
    assert {check["evidence"] for check in found.json["slices"]} == {"vote"}
    assert "SOUND: all 4 slices" in recover_ckpt("verify", pair, "--deep").out


def test_two_that_disagree_are_refused_with_5(pair, recover_ckpt):
    flip(pair / "ckpt_dir0" / NAME)
    for command in ("verify", "plan", "apply", "seal"):
        refused = recover_ckpt(command, pair, "--json")
        assert refused.code == 5, command
        assert "'dense.weight'" in str(refused.json["disagreements"])
    assert "--lost" in recover_ckpt("plan", pair).out
    settled = recover_ckpt("apply", pair, "--lost", "0")
    assert settled.code == 0
    assert (pair / "ckpt_dir0" / NAME).read_bytes() == (pair / "ckpt_dir2" / NAME).read_bytes()
    assert recover_ckpt("verify", pair).code == 0


def test_quick_says_that_it_rests_on_structure(pair, recover_ckpt):
    flip(pair / "ckpt_dir0" / NAME)
    plan = recover_ckpt("plan", pair, "--quick", "--json")
    assert plan.code == 0
    assert {rank["evidence"] for rank in plan.json["ranks"]} == {"structure"}


def with_states(root, **stated):
    """Give each slice a manifest and a state file, as training does; the manifests state more."""
    save_manifests(root)
    for path in root.glob("ckpt_dir*/*.ckpt"):
        digest = write_state(str(path), encode_state({"rank": path.parent.name}))
        manifest = read_manifest(f"{path}{MANIFEST_SUFFIX}")
        write_manifest(str(path), replace(manifest, training=TrainingRecord(1, state_digest=digest, **stated)))


def test_state_files_that_are_wrong_are_named(pair, recover_ckpt):
    """By verify with 5, by plan where the slice is resumed from, and never a reason to give the slice up."""
    with_states(pair)
    assert recover_ckpt("verify", pair, "--json").json["ok"] is True
    assert recover_ckpt("plan", pair, "--json").json["warnings"] == []
    (pair / "ckpt_dir0" / f"{NAME}{STATE_SUFFIX}").unlink()
    flip(pair / "ckpt_dir1" / f"{NAME}{STATE_SUFFIX}", 9)
    found = recover_ckpt("verify", pair, "--json")
    assert found.code == 5
    assert {check["status"] for check in found.json["slices"]} == {"sound"}
    damaged = "has other contents than those that the slice's manifest names"
    assert found.json["states"] == [
        {"path": f"ckpt_dir0/{NAME}{STATE_SUFFIX}", "reason": "missing"},
        {"path": f"ckpt_dir1/{NAME}{STATE_SUFFIX}", "reason": damaged},
    ]
    text = recover_ckpt("verify", pair).out
    assert "WRONG: 2 state files beside the slices; SOUND: all 4 slices" in text
    assert "begins random generators and callbacks anew" in text
    planned = recover_ckpt("plan", pair, "--json")
    assert (planned.code, planned.json["actions"]) == (0, [])
    (warning,) = planned.json["warnings"]
    assert warning.startswith(
        f"state files are wrong (rank 0: missing; rank 1: {damaged}): training resumes with these"
    )
    assert recover_ckpt("verify", pair, "--step", "1_8").code == 5


def test_the_state_of_a_lost_rank_stays_lost(pair, recover_ckpt):
    """Its generators are its own; plan and apply say what is lost, and a slice that was recovered has no state."""
    with_states(pair)
    shutil.rmtree(pair / "ckpt_dir2")
    shutil.rmtree(pair / "ckpt_dir3")
    (pair / "ckpt_dir1" / f"{NAME}{STATE_SUFFIX}").unlink()
    (first, second) = recover_ckpt("plan", pair, "--json").json["warnings"]
    assert "rank 1: missing" in first
    assert second.startswith(
        "the state files of rank(s) 2 are lost with their slices: training resumes with the random"
    )
    assert recover_ckpt("apply", pair).code == 0
    assert not list(pair.glob(f"ckpt_dir[23]/*{STATE_SUFFIX}"))
    manifest = read_manifest(str(pair / "ckpt_dir2" / f"{NAME}{MANIFEST_SUFFIX}"))
    assert manifest.training.state_digest is None
    found = recover_ckpt("verify", pair, "--json").json["states"]
    assert [note["path"] for note in found] == [f"ckpt_dir1/{NAME}{STATE_SUFFIX}"]


@pytest.mark.parametrize("differ", [True, False])
def test_whether_the_states_of_a_group_differ_decides_what_is_said_of_a_lost_one(pair, recover_ckpt, differ):
    with_states(pair, states_differ=differ)
    shutil.rmtree(pair / "ckpt_dir2")
    warnings = recover_ckpt("plan", pair, "--json").json["warnings"]
    if differ:
        (warning,) = warnings
        assert "training resumes one step back, where every rank has its own" in warning
    else:
        assert warnings == []
    assert recover_ckpt("apply", pair).code == 0
    assert read_manifest(str(pair / "ckpt_dir2" / f"{NAME}{MANIFEST_SUFFIX}")).training.states_differ is differ


def test_the_odd_one_of_three_is_named_and_repaired(triple, recover_ckpt):
    truth = (triple / "ckpt_dir2" / NAME).read_bytes()
    flip(triple / "ckpt_dir2" / NAME)
    found = recover_ckpt("verify", triple, "--json")
    assert found.code == 5
    (wrong,) = [check for check in found.json["slices"] if check["status"] != "sound"]
    assert (wrong["rank"], wrong["status"]) == (2, "suspect")
    assert "silent corruption" in wrong["reason"]
    assert recover_ckpt("apply", triple).code == 0
    assert (triple / "ckpt_dir2" / NAME).read_bytes() == truth


def test_tolerated_parameters(pair, recover_ckpt):
    flip(pair / "ckpt_dir0" / NAME)
    assert recover_ckpt("verify", pair, "--tolerate", "dense.*").code == 0
    shutil.rmtree(pair / "ckpt_dir1")
    plan = recover_ckpt("plan", pair, "--tolerate", "dense.*", "--json")
    assert plan.code == 0
    assert plan.json["actions"][0]["borrowed"] == []


def test_seal_then_everything_rests_on_manifests(pair, recover_ckpt):
    sealed = recover_ckpt("seal", pair, "--json")
    assert sealed.code == 0
    assert len(sealed.json["sealed"]) == 4
    assert recover_ckpt("seal", pair, "--json").json["sealed"] == []
    assert {check["evidence"] for check in recover_ckpt("verify", pair, "--json").json["slices"]} == {"manifest"}
    truth = (pair / "ckpt_dir0" / NAME).read_bytes()
    flip(pair / "ckpt_dir0" / NAME)
    found = recover_ckpt("verify", pair)
    assert found.code == 5
    assert "'dense.weight'" in found.out
    assert recover_ckpt("apply", pair).code == 0
    assert (pair / "ckpt_dir0" / NAME).read_bytes() == truth
    assert recover_ckpt("verify", pair).code == 0


def test_recovered_slices_get_manifests_that_name_their_source(pair, recover_ckpt):
    recover_ckpt("seal", pair)
    shutil.rmtree(pair / "ckpt_dir1")
    assert recover_ckpt("apply", pair).code == 0
    manifest = json.loads((pair / "ckpt_dir1" / f"{NAME}.manifest.json").read_text())
    assert manifest["provenance"]["kind"] == "copied"
    [source] = manifest["provenance"]["sources"]
    assert (source["rank"], source["path"]) == (3, "ckpt_dir3/test-1_8.ckpt")
    assert manifest["rank"] == 1
    assert "copied from rank 3 (ckpt_dir3/test-1_8.ckpt)" in recover_ckpt("scan", pair).out
    assert recover_ckpt("verify", pair).code == 0


def test_slices_of_the_wrong_ranks_are_found_by_their_manifests(pair, recover_ckpt):
    recover_ckpt("seal", pair)
    for name in (NAME, f"{NAME}.manifest.json"):
        shutil.move(pair / "ckpt_dir1" / name, pair / "ckpt_dir0" / name)
    found = recover_ckpt("plan", pair, "--json")
    assert [(action["rank"], action["source_rank"]) for action in found.json["actions"]] == [(0, 2), (1, 3)]
    assert "rank 1" in found.json["ranks"][0]["reason"]


def test_one_step_alone(tmp_path, recover_ckpt):
    tree = make_tree(tmp_path / "tree", steps=[Step(1, 8), Step(2, 8)])
    flip(tree / "ckpt_dir0" / NAME)
    assert recover_ckpt("verify", tree, "--step", "2_8").code == 0
    assert recover_ckpt("verify", tree, "--step", "1_8").code == 5
    assert recover_ckpt("verify", tree, "--step", "3_8").code == 3
    assert recover_ckpt("verify", tree / "none").code == 3


def test_a_missing_slice_is_wrong(pair, recover_ckpt):
    (pair / "ckpt_dir3" / NAME).unlink()
    found = recover_ckpt("verify", pair, "--json")
    assert found.code == 5
    assert [(one["rank"], one["status"]) for one in found.json["slices"] if one["status"] != "sound"] == [
        (3, "missing")
    ]
    assert found.json["missing"] == [{"epoch": 1, "step": 8, "ranks": [3]}]


def test_deduplicated_slices_are_no_replicas(tmp_path, recover_ckpt):
    tree = make_tree(tmp_path / "tree", parameters={"a": 8, "c": 8})
    other = make_tree(tmp_path / "other", parameters={"b": 8, "d": 8})
    for rank in (2, 3):
        (tree / f"ckpt_dir{rank}" / NAME).unlink()
        shutil.copy(other / f"ckpt_dir{rank}" / NAME, tree / f"ckpt_dir{rank}" / NAME)
    assert recover_ckpt("plan", tree).code == 0  # nothing lost: each rank keeps its own
    (tree / "ckpt_dir0" / NAME).unlink()
    refused = recover_ckpt("plan", tree, "--json")
    assert refused.code == 4
    assert "no set of replicas" in refused.json["ranks"][0]["reason"]
