"""Two data-parallel ranks with their own memory bank and batch statistics, trained with `Model` in two processes.

`test_training_own_values` compares the same in one process.
"""

import json
import os
import shutil

import pytest

from ms_recover import api
from ms_recover.formats.manifest import read_manifest
from ms_recover.model.rank_local import RESUME_CHOICE
from tests.support.msrun import run_ranks

pytestmark = [
    pytest.mark.mindspore,
    pytest.mark.skipif("MS_RECOVER_EXAMPLES" not in os.environ, reason="only with MS_RECOVER_EXAMPLES: two launches"),
]
pytest.importorskip("mindspore")

OWN = ("bank", "norm.moving_mean", "norm.moving_variance")
RANKS = range(2)


@pytest.fixture(scope="module", params=[("graph", "ckpt", "sync"), ("pynative", "safetensors", "async")], ids="-".join)
def trained(request, tmp_path_factory):
    """What each rank saw in each training, and the slices of all."""
    folder = tmp_path_factory.mktemp("rank_local")
    code, text = run_ranks("rank_local_training.py", 2, folder, folder, *request.param, GLOG_v="3")
    written = [folder / f"seen{rank}.json" for rank in RANKS]
    assert all(one.exists() for one in written), (code, text)
    return folder, [json.loads(one.read_text()) for one in written]


def later(losses, step):
    return {number: loss for number, loss in losses.items() if int(number) > step}


def test_what_differs_is_named_at_the_first_save_and_recorded(trained):
    folder, seen = trained
    for rank in RANKS:
        (said,) = seen[rank]["whole"]["said"]
        assert f"rank {rank}, step 1_3" in said
        assert "ranks 0, 1 differ in bank: recorded as rank-local" in said
        assert "batch statistics of ranks 0, 1 differ, as they may: norm.moving_mean, norm.moving_variance" in said
        found = [read_manifest(path) for path in (folder / "whole" / f"ckpt_dir{rank}").glob("*.manifest.json")]
        assert {manifest.training.rank_local for manifest in found} == {OWN}
        assert len(found) == 3


def test_own_values_are_no_disagreement(trained):
    folder, _ = trained
    plan = api.plan(api.scan(folder / "whole"))
    assert [rank.verdict for rank in plan.ranks] == ["keep", "keep"]
    assert (plan.disagreements, plan.warnings) == ((), ())


def test_where_the_own_slices_live_training_is_the_same_to_the_last_bit(trained):
    _, seen = trained
    for rank in RANKS:
        whole, own = seen[rank]["whole"], seen[rank]["own"]
        assert (own["step"], own["failure"]) == ("2_2", "")
        assert own["losses"] == later(whole["losses"], 6)
        assert own["values"] == whole["values"]


def test_a_lost_slice_sends_all_ranks_back_to_where_each_has_its_own(trained):
    _, seen = trained
    for rank in RANKS:
        whole, older = seen[rank]["whole"], seen[rank]["older"]
        assert (older["step"], older["failure"]) == ("1_3", "")
        assert older["losses"] == later(whole["losses"], 3)
        assert older["values"] == whole["values"]
    assert any("rank-local, lost" in text and "bank" in text for text in seen[1]["older"]["said"])


def test_lost_values_are_refused_with_the_choice(trained):
    _, seen = trained
    assert all(seen[rank]["refuse"]["losses"] == {} for rank in RANKS)
    failure = seen[1]["refuse"]["failure"]
    assert failure.startswith("UnrecoverableError")
    assert "rank-local, lost: the own values of rank 1 in bank" in failure
    assert "rank_local='peer'" in failure
    assert "rank(s) 1: none" in seen[0]["refuse"]["failure"]


@pytest.mark.parametrize("choice", ["peer", "initial"])
def test_the_choice_is_carried_out_and_named(trained, choice):
    _, seen = trained
    for rank in RANKS:
        assert (seen[rank][choice]["step"], seen[rank][choice]["failure"]) == ("2_2", "")
        assert len(seen[rank][choice]["losses"]) == 2
    assert seen[0][choice]["bank"] == seen[0]["own"]["bank"]
    expected = "00" * 32 if choice == "initial" else seen[0]["own"]["bank"]
    assert seen[1][choice]["bank"] == expected != seen[1]["own"]["bank"]
    said = " ".join(seen[1][choice]["said"])
    assert "rank-local, lost: bank; the values are those of rank 0" in said
    assert "batch statistics of rank 0: norm.moving_mean, norm.moving_variance" in said
    assert ("bank are left as the network begins with them" in said) == (choice == "initial")


def test_a_retry_in_the_same_process_is_the_same_training(trained):
    _, seen = trained
    for rank in RANKS:
        whole, again = seen[rank]["whole"], seen[rank]["again"]
        assert (again["step"], again["failure"]) == ("2_2", "")
        assert again["losses"] == later(whole["losses"], 6)
        assert again["values"] == whole["values"]


def test_plan_and_apply_name_lost_values(trained, tmp_path, recover_ckpt):
    folder, _ = trained
    shutil.copytree(folder / "whole", tmp_path / "tree")
    shutil.rmtree(tmp_path / "tree" / "ckpt_dir1")
    lost = "rank 1: rank-local, lost: bank; the values are those of rank 0; batch statistics of rank 0"
    for command in ("plan", "apply", "plan"):
        done = recover_ckpt(command, tmp_path / "tree")
        assert done.code == 0, done.err
        assert f"WARNING: {lost}" in done.out
        assert f"WARNING: {RESUME_CHOICE}" in done.out
    (path,) = (tmp_path / "tree" / "ckpt_dir1").glob("*.manifest.json")
    manifest = read_manifest(path)
    assert manifest.provenance.borrowed == OWN == manifest.training.rank_local
