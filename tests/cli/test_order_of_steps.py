"""The order of steps is the order of training: MindFormers counts the steps of a name from the resume."""

import json

import pytest

from tests.support.mindformers_tree import resumed_file
from tests.support.rerun_trees import Training, metas, remove

STATED = ("manifest", "global_step", "step_num")
OLDER, NEWER = "-2_6.ckpt", "_1-2_2.ckpt"
"""Step 14, by the first run, and step 16 of the run that was resumed from it."""


@pytest.fixture(params=STATED)
def training(request, tmp_path):
    """The first run saved steps 2 to 14."""
    made = Training(tmp_path / "checkpoint", evidence=request.param)
    made.resume().save(10, 12, 14)
    return made


def planned(recover_ckpt, training, *options):
    done = recover_ckpt("plan", training.root, "--json", *options)
    assert done.code == 0, done.out + done.err
    return done.json


def paths(plan):
    return {rank["path"].partition("CKP_rank_")[2][1:] for rank in plan["ranks"]}


def test_one_rank_died_between_its_slice_and_its_meta_json(training, recover_ckpt):
    training.resume(14).save(16, without_meta=[2])
    made = planned(recover_ckpt, training, "--require-newest")
    assert (made["step"], made["cumulative_step"]) == ({"epoch": 2, "step": 2}, 16)
    assert paths(made) == {NEWER}
    assert [(one["rank"], one["file"]) for one in made["meta_files"]] == [(2, "CKP_rank_2_1-2_2.ckpt")]
    assert recover_ckpt("apply", training.root).code == 0
    assert resumed_file(training.root, 2) == "CKP_rank_2_1-2_2.ckpt"


def test_with_asynchronous_saves_every_meta_json_comes_a_step_late(training, recover_ckpt):
    training.resume(14).save(16, late=True)
    assert resumed_file(training.root) == "CKP_rank_0-2_6.ckpt"
    assert paths(planned(recover_ckpt, training, "--require-newest")) == {NEWER}
    assert recover_ckpt("apply", training.root).code == 0
    assert resumed_file(training.root, 3) == "CKP_rank_3_1-2_2.ckpt"


def test_with_all_meta_json_lost_the_stated_step_counts(training, recover_ckpt):
    training.resume(14).save(16)
    remove(metas(training.root))
    made = planned(recover_ckpt, training, "--require-newest")
    assert (paths(made), made["cumulative_step"], made["warnings"]) == ({NEWER}, 16, [])


def test_only_one_of_two_replicas_has_the_newest_step(training, recover_ckpt):
    training.resume(14).save(16, ranks=[0, 1])
    made = planned(recover_ckpt, training, "--require-newest")
    assert paths(made) == {NEWER}
    assert [(one["rank"], one["source_rank"]) for one in made["actions"]] == [(2, 0), (3, 1)]
    assert recover_ckpt("apply", training.root).code == 0
    assert [resumed_file(training.root, rank) for rank in range(4)] == [f"CKP_rank_{r}_1-2_2.ckpt" for r in range(4)]
    assert "nothing to do" in recover_ckpt("plan", training.root).out


def test_two_runs_have_a_step_of_one_name(training, recover_ckpt):
    """The first run's 2_2 is step 10, and step 16 of the second can neither be copied nor taken from it."""
    second = training.resume(14).save(16)
    remove(second.path(rank, 16) for rank in (1, 3))
    made = planned(recover_ckpt, training)
    assert (made["step"], paths(made), made["cumulative_step"]) == ({"epoch": 2, "step": 6}, {OLDER}, 14)
    assert [(one["epoch"], one["step"], one["ranks"]) for one in made["rejected_steps"]] == [(2, 2, [1, 3])]
    assert recover_ckpt("plan", training.root, "--require-newest").code == 4


def test_names_of_one_run_turn_over_within_an_epoch(tmp_path, recover_ckpt):
    """Resumed at 14, step 22 is 3_8 and step 24 is 3_2; the slices of the first run are gone."""
    training = Training(tmp_path / "checkpoint")
    first = training.resume().save(14)
    training.resume(14).save(22, 24)
    remove(first.path(rank, 14) for rank in range(4))
    made = planned(recover_ckpt, training)
    assert (made["step"], made["cumulative_step"]) == ({"epoch": 3, "step": 2}, 24)


def test_the_step_num_of_stock_mindspore_orders_nothing(tmp_path, recover_ckpt):
    """It restarts with the resume: 2 of the second run is step 16, and 14 of the first is step 14."""
    training = Training(tmp_path / "checkpoint", stock=True)
    training.resume().save(14)
    training.resume(14).save(16)
    made = planned(recover_ckpt, training)
    assert (paths(made), made["cumulative_step"]) == ({NEWER}, 16)


def test_a_run_that_was_gone_back_behind_is_passed_over(training, recover_ckpt):
    """The first run went on to 16; most meta.json name the second, which began again from 12."""
    training.runs[0].save(16)
    training.resume(12).save(14, without_meta=[3])
    made = planned(recover_ckpt, training, "--require-newest")
    assert (made["step"], made["cumulative_step"]) == ({"epoch": 2, "step": 2}, 14)
    assert paths(made) == {NEWER}
    assert "step 2_8 is passed over" in made["warnings"][0]


@pytest.fixture
def silent(tmp_path):
    """Nothing in the slices states the steps since the beginning."""
    made = Training(tmp_path / "checkpoint", evidence="nothing")
    made.resume().save(12, 14)
    made.resume(14).save(16)
    remove(metas(made.root))
    return made


def test_where_nothing_states_the_order_the_later_rerun_is_named(silent, recover_ckpt):
    made = planned(recover_ckpt, silent)
    assert paths(made) == {OLDER}
    assert "cumulative_step" not in made
    (warning,) = made["warnings"]
    assert "step 2_2" in warning
    assert "'CKP_1'" in warning
    assert "--run CKP_1" in warning


def test_the_run_that_the_warning_names_is_taken_with_its_option(silent, recover_ckpt):
    made = planned(recover_ckpt, silent, "--run", "CKP_1", "--require-newest")
    assert paths(made) == {NEWER}


def test_where_nothing_states_the_order_the_newest_step_cannot_be_required(silent, recover_ckpt):
    refused = recover_ckpt("plan", silent.root, "--require-newest")
    assert refused.code == 4
    assert "step 2_2" in refused.out + refused.err
    assert "--run CKP_1" in refused.out + refused.err
    assert recover_ckpt("apply", silent.root, "--require-newest").code == 4


def test_where_nothing_states_the_order_a_step_of_the_run_that_was_written_later_is_named(tmp_path, recover_ckpt):
    """Resumed at 3, step 9 is 2_6 and step 12 is 2_1."""
    training = Training(tmp_path / "checkpoint", evidence="nothing")
    training.resume(3).save(9, 12)
    made = planned(recover_ckpt, training)
    assert made["step"] == {"epoch": 2, "step": 6}
    (warning,) = made["warnings"]
    assert "step 2_1 may be newer" in warning
    assert "--step 2_1" in warning
    assert recover_ckpt("plan", training.root, "--require-newest").code == 4


def test_a_training_that_went_back_and_lost_every_meta_json_is_warned_of(tmp_path, recover_ckpt):
    training = Training(tmp_path / "checkpoint")
    training.resume().save(12, 16)
    training.resume(12).save(14)
    remove(metas(training.root))
    made = planned(recover_ckpt, training)
    assert made["cumulative_step"] == 16
    (warning,) = made["warnings"]
    assert "--run CKP_1" in warning
    assert recover_ckpt("plan", training.root, "--require-newest").code == 4


def test_the_steps_since_the_beginning_are_shown(training, recover_ckpt):
    training.resume(14).save(16)
    shown = recover_ckpt("plan", training.root).out
    assert "step 2_2 is step 16 of the training" in shown
    table = recover_ckpt("scan", training.root).out
    assert "10, 16" in table
    counted = recover_ckpt("scan", training.root, "--json").json["positions"]
    assert {(one["prefix"], one["epoch"], one["step"], one["cumulative_step"]) for one in counted} == {
        ("CKP", 2, 2, 10),
        ("CKP", 2, 4, 12),
        ("CKP", 2, 6, 14),
        ("CKP_1", 2, 2, 16),
    }
    assert {one["stated_by"] for one in counted} == {training.evidence}


def test_the_meta_json_of_all_ranks_name_the_step_that_is_planned(training, recover_ckpt):
    second = training.resume(14).save(16)
    for rank in (1, 3):
        remove([second.path(rank, 16)])
    assert recover_ckpt("apply", training.root).code == 0
    named = [json.loads(path.read_text())["last_ckpt_file"] for path in metas(training.root)]
    assert named == [f"CKP_rank_{rank}-2_6.ckpt" for rank in range(4)]
    assert resumed_file(training.root) == "CKP_rank_0-2_6.ckpt"


# --- what is given up -----------------------------------------------------------------------------------------------


def test_slices_of_a_rerun_that_is_given_up_are_set_aside_so_that_the_next_run_has_one_name(training, recover_ckpt):
    """Ranks 1 and 3 hold the same and never saved step 16: the rest of it is set aside with its manifests."""
    training.resume(14).save(16, ranks=[0, 2])
    before = {path.name: path.read_bytes() for path in training.root.glob("rank_*/CKP_rank_?_1-*")}
    made = planned(recover_ckpt, training)
    assert made["step"] == {"epoch": 2, "step": 6}
    assert {one["path"].rpartition("/")[2] for one in made["set_aside"]} == {
        f"CKP_rank_{rank}{NEWER}" for rank in (0, 2)
    }
    assert "differently from rank to rank" in made["set_aside"][0]["reason"]
    done = recover_ckpt("apply", training.root)
    assert done.code == 0, done.out + done.err
    aside = {path.name: path.read_bytes() for path in training.root.glob("rank_*/CKP_rank_?_1-*")}
    assert all(".superseded" in name for name in aside)
    assert sorted(aside.values()) == sorted(before.values())
    third = training.resume(14)
    assert third.prefixes == tuple(f"CKP_rank_{rank}_1" for rank in range(4))
    third.save(16)
    assert [resumed_file(training.root, rank) for rank in range(4)] == [f"CKP_rank_{r}{NEWER}" for r in range(4)]
    assert paths(planned(recover_ckpt, training)) == {NEWER}


def test_without_setting_aside_the_next_run_has_several_names(training, recover_ckpt):
    training.resume(14).save(16, ranks=[0, 2])
    third = training.resume(14)
    assert set(third.prefixes) == {"CKP_rank_0_2", "CKP_rank_1_1", "CKP_rank_2_2", "CKP_rank_3_1"}
    third.save(16)
    assert resumed_file(training.root) is None
