"""Trees of MindFormers' legacy format: no manifests, no rank lists, strategy files in another folder, and restarts."""

import json
import os
import shutil
import stat

import pytest

from tests.support.mindformers_tree import make_mindformers_tree, resumed_file, write_health, write_meta

NEWEST = "CKP_rank_{rank}-2_77.ckpt"


@pytest.fixture
def output(fixtures, tmp_path):
    return make_mindformers_tree(fixtures / "dp2_mp4", tmp_path / "job/output")


def slices(output, folder="checkpoint"):
    return {path.name: path.read_bytes() for path in (output / folder).glob("rank_*/*-*.ckpt")}


def meta(output, rank):
    return (output / f"checkpoint/rank_{rank}/meta.json").read_text()


# --- one set of files, from each folder -----------------------------------------------------------------------------


@pytest.mark.parametrize("stand", ["..", ".", "checkpoint"])
@pytest.mark.parametrize("name", ["CKP_rank_{rank}-{step}.ckpt", "llama_rank_{rank}_1-{step}.ckpt"])
def test_a_lost_rank_comes_back_with_its_name_and_meta_json(stand, name, fixtures, tmp_path, recover_ckpt):
    output = make_mindformers_tree(fixtures / "dp2_mp4", tmp_path / "job/output", name=name)
    whole, metas = slices(output), {rank: meta(output, rank) for rank in range(8)}
    for rank in (2, 5):
        shutil.rmtree(output / f"checkpoint/rank_{rank}")
        done = recover_ckpt("apply", output / stand)
        assert done.code == 0, done.out + done.err
        assert f"rank_{rank}/meta.json: MindFormers resumes from step 2_77" in done.out
        assert meta(output, rank) == metas[rank]
        assert stat.S_IMODE(os.stat(output / f"checkpoint/rank_{rank}/meta.json").st_mode) == 0o640
        assert resumed_file(output / "checkpoint", rank) == name.format(rank=rank, step="2_77")
    newest = {file: data for file, data in whole.items() if "-2_77" in file}
    assert {file: data for file, data in slices(output).items() if "-2_77" in file} == newest
    assert "nothing to do" in recover_ckpt("plan", output, "--world-size", 8).out


def test_every_pair_of_ranks(output, recover_ckpt):
    """Ranks r and r + 4 hold the same slice; with both lost it is gone."""
    for first, second in [(0, 1), (3, 6), (1, 5)]:
        for rank in (first, second):
            (output / "checkpoint" / f"rank_{rank}" / NEWEST.format(rank=rank)).rename(output / str(rank))
        made = recover_ckpt("plan", output, "--step", "2_77", "--json").json
        lost = {rank["rank"] for rank in made["ranks"] if rank["verdict"] == "unrecoverable"}
        assert lost == ({first, second} if second - first == 4 else set())
        for rank in (first, second):
            (output / str(rank)).rename(output / "checkpoint" / f"rank_{rank}" / NEWEST.format(rank=rank))


# --- meta.json ------------------------------------------------------------------------------------------------------


def test_after_going_back_every_meta_json_names_the_older_step(output, recover_ckpt):
    for rank in (1, 5):
        path = output / "checkpoint" / f"rank_{rank}" / NEWEST.format(rank=rank)
        path.chmod(0o600)
        os.truncate(path, 100)
    assert resumed_file(output / "checkpoint") == NEWEST.format(rank=0)  # by names alone it is whole
    planned = recover_ckpt("plan", output, "-o", output.parent / "plan.json")
    assert "8 meta.json to write" in planned.out
    assert recover_ckpt("apply", output.parent / "plan.json").code == 0
    assert resumed_file(output / "checkpoint", 5) == "CKP_rank_5-1_77.ckpt"
    assert json.loads(meta(output, 1)) == {"last_epoch": 1, "last_step": 77, "last_ckpt_file": "CKP_rank_1-1_77.ckpt"}


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (None, "missing"),
        ("", "no meta.json of MindFormers"),
        ('{"last_epoch": 2, "last_step": 77}', "no meta.json of MindFormers"),
        ('{"last_epoch": 1, "last_step": 77, "last_ckpt_file": "CKP_rank_3-1_77.ckpt"}', "names the older step 1_77"),
        ('{"last_epoch": 9, "last_step": 77, "last_ckpt_file": "CKP_rank_3-9_77.ckpt"}', "names step 9_77"),
        ('{"last_epoch": 2, "last_step": 77, "last_ckpt_file": "CKP_rank_2-2_77.ckpt"}', "CKP_rank_2-2_77.ckpt"),
    ],
)
def test_a_wrong_meta_json_is_named_and_written_again(content, why, output, recover_ckpt):
    right, path = meta(output, 3), output / "checkpoint/rank_3/meta.json"
    path.unlink()
    if content is not None:
        path.write_text(content)
    planned = recover_ckpt("plan", output, "--json").json
    (write,) = planned["meta_files"]
    assert (write["rank"], write["file"]) == (3, "CKP_rank_3-2_77.ckpt")
    assert why in write["reason"]
    assert "meta.json" in recover_ckpt("scan", output).out or content is None or "older" in why
    done = recover_ckpt("apply", output, "--json").json
    assert done["meta_files"] == ["checkpoint/rank_3/meta.json"]
    assert meta(output, 3) == right
    assert "meta_files" not in recover_ckpt("plan", output, "--json").json


def test_a_meta_json_that_changed_after_the_plan_stays(output, recover_ckpt, tmp_path):
    (output / "checkpoint/rank_3/meta.json").unlink()
    recover_ckpt("plan", output, "-o", tmp_path / "plan.json")
    write_meta(output / "checkpoint/rank_3", 3, 77, "CKP_rank_3-3_77.ckpt")
    done = recover_ckpt("apply", tmp_path / "plan.json")
    assert done.code == 5
    assert "changed after the plan was made" in done.out
    assert "3_77" in meta(output, 3)


@pytest.mark.parametrize(
    ("member", "value"),
    [
        ("target", "checkpoint/rank_2/meta.json"),
        ("target", "checkpoint/rank_3/other.json"),
        ("target", "../rank_3/meta.json"),
        ("file", "CKP_rank_2-2_77.ckpt"),
        ("file", "CKP_rank_3-1_77.ckpt"),
        ("file", "../rank_3/CKP_rank_3-2_77.ckpt"),
    ],
)
def test_a_plan_whose_meta_json_names_another_rank_is_refused(member, value, output, recover_ckpt, tmp_path):
    (output / "checkpoint/rank_3/meta.json").unlink()
    made = recover_ckpt("plan", output, "--json").json
    made["meta_files"][0][member] = value
    (tmp_path / "plan.json").write_text(json.dumps(made))
    done = recover_ckpt("apply", tmp_path / "plan.json")
    assert done.code == 3, done.out
    assert not (output / "checkpoint/rank_3/meta.json").exists()


def test_trees_without_meta_json_get_none(output, recover_ckpt):
    for path in output.glob("checkpoint/*/meta.json"):
        path.unlink()
    shutil.rmtree(output / "checkpoint/rank_1")
    assert recover_ckpt("apply", output).code == 0
    assert not (output / "checkpoint/rank_1/meta.json").exists()


# --- health_ckpts.json ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stand", ["..", ".", "checkpoint"])
def test_an_unhealthy_step_is_not_chosen_unless_it_is_named(stand, output, recover_ckpt):
    write_health(output / "health_ckpts.json", {"CKP_rank_0-1_77.ckpt": 0, "CKP_rank_0-2_77.ckpt": 1})
    root = output / stand
    planned = recover_ckpt("plan", root)
    assert planned.code == 0
    assert "at step 1_77" in planned.out.splitlines()[1]
    assert "going back from step 2_77 (marked unhealthy in " in planned.out.splitlines()[1]
    named = recover_ckpt("plan", root, "--step", "2_77")
    assert "at step 2_77" in named.out
    assert "WARNING: step 2_77 is marked unhealthy in " in named.out
    assert "CKP_rank_0-2_77.ckpt unhealthy" in recover_ckpt("scan", root).out


def test_with_rank_0_lost_its_name_is_that_of_the_others(output, recover_ckpt):
    write_health(output / "health_ckpts.json", {"CKP_rank_0-2_77.ckpt": 1, "CKP_rank_0_1-1_77.ckpt": 1})
    shutil.rmtree(output / "checkpoint/rank_0")
    assert recover_ckpt("plan", output, "--json").json["step"] == {"epoch": 1, "step": 77}


def test_where_all_steps_are_unhealthy_the_plan_says_how_to_take_one(output, recover_ckpt):
    write_health(output / "health_ckpts.json", {"CKP_rank_0-1_77.ckpt": 2, "CKP_rank_0-2_77.ckpt": 1})
    planned = recover_ckpt("plan", output)
    assert planned.code == 4
    assert "UNHEALTHY: every step that could be recovered is marked unhealthy" in planned.out
    assert "--step 2_77" in planned.out
    assert recover_ckpt("apply", output).code == 4


@pytest.mark.parametrize("content", ["", "[", "{}", '[{"is_health": 0}]', "[1]"])
def test_a_health_file_that_cannot_be_read_is_noted(content, output, recover_ckpt):
    (output / "health_ckpts.json").write_text(content)
    planned = recover_ckpt("plan", output, "--json").json
    assert planned["step"] == {"epoch": 2, "step": 77}
    assert [note["path"] for note in planned["notes"]] == ["health_ckpts.json"]


# --- several sets of files ------------------------------------------------------------------------------------------


def test_whole_slices_come_before_those_of_the_network_alone_and_the_others_are_named(fixtures, output, recover_ckpt):
    for folder, mark in (("checkpoint_network", "network"), ("checkpoint_trainable", "trainable_params")):
        name = f"CKP_rank_{{rank}}-{mark}-{{step}}.ckpt"
        make_mindformers_tree(fixtures / "dp2_mp4", output, folder=folder, name=name)
    shutil.rmtree(output / "checkpoint/rank_6")
    shutil.rmtree(output / "checkpoint_network/rank_6")
    made = recover_ckpt("plan", output, "--json").json
    (action,) = made["actions"]
    assert action["target"] == "checkpoint/rank_6/CKP_rank_6-2_77.ckpt"
    assert not made["warnings"]
    notes = {note["path"]: note["reason"] for note in made["notes"]}
    for folder, words in (("checkpoint_network", "network alone"), ("checkpoint_trainable", "trainable parameters")):
        (reason,) = [reason for path, reason in notes.items() if path.startswith(folder)]
        assert words in reason
        assert reason.endswith(f"recover-ckpt plan {output}/{folder}")
    assert {note["path"]: note["reason"] for note in recover_ckpt("scan", output, "--json").json["notes"]} == notes
    network = recover_ckpt("apply", output / "checkpoint_network")
    assert network.code == 0, network.out
    assert (output / "checkpoint_network/rank_6/CKP_rank_6-network-2_77.ckpt").is_file()
    assert not (output / "checkpoint_network/rank_6/meta.json").exists()


def test_slices_of_the_network_in_the_same_folder_are_no_part_of_it(fixtures, output, recover_ckpt):
    network = make_mindformers_tree(
        fixtures / "dp2_mp4", output.parent / "n", folder="x", name="CKP_rank_{rank}-network-{step}.ckpt"
    )
    for rank in range(8):
        for path in (network / f"x/rank_{rank}").iterdir():
            path.rename(output / f"checkpoint/rank_{rank}" / path.name)
    made = recover_ckpt("plan", output / "checkpoint", "--json").json
    assert made["actions"] == []
    assert [rank["path"] for rank in made["ranks"]] == [f"rank_{rank}/{NEWEST.format(rank=rank)}" for rank in range(8)]
    (reason,) = [note["reason"] for note in made["notes"]]
    command = reason.rpartition("recover-ckpt ")[2]
    assert command.endswith("--pattern 'rank_{rank}/CKP_rank_{rank}-network-{epoch}_{step}.ckpt'")
    other = recover_ckpt("plan", output / "checkpoint", "--pattern", command.split("'")[1], "--json").json
    assert {rank["path"] for rank in other["ranks"]} == {f"rank_{r}/CKP_rank_{r}-network-2_77.ckpt" for r in range(8)}


@pytest.mark.parametrize("inside", [False, True])
def test_a_tree_of_slice_checkpoint_beside_it_is_told_apart(inside, fixtures, output, recover_ckpt):
    for rank in range(8):
        folder = output / (f"checkpoint/rank_{rank}" if inside else f"ckpt_dir{rank}")
        folder.mkdir(exist_ok=True)
        shutil.copyfile(fixtures / f"dp2_mp2_pp2/ckpt_dir{rank}/test-1_77.ckpt", folder / "CKP-1_77.ckpt")
    made = recover_ckpt("plan", output, "--json").json
    assert {rank["path"] for rank in made["ranks"]} == {
        f"checkpoint/rank_{r}/{NEWEST.format(rank=r)}" for r in range(8)
    }
    (warning,) = made["warnings"]
    form = "checkpoint/rank_{rank}" if inside else "ckpt_dir{rank}"
    assert warning.startswith(f"{form}/CKP-{{epoch}}_{{step}}.ckpt: other slices, of 8 ranks up to step 1_77")
    pattern = warning.rpartition("--pattern ")[2].strip("'")
    other = recover_ckpt("plan", output, "--pattern", pattern, "--json").json
    assert {rank["path"] for rank in other["ranks"]} == {f"{form.format(rank=r)}/CKP-1_77.ckpt" for r in range(8)}


# --- evidence -------------------------------------------------------------------------------------------------------


def test_an_unrecoverable_plan_names_the_evidence_that_was_seen(output, recover_ckpt):
    (output / "strategy").rename(output / "my_strategies")
    shutil.rmtree(output / "checkpoint/rank_2")
    planned = recover_ckpt("plan", output)
    assert planned.code == 4
    option = f"--strategy '{output}/my_strategies/ckpt_strategy_rank_{{rank}}.ckpt'"
    assert f"8 files such as {output}/my_strategies/ckpt_strategy_rank_0.ckpt" in planned.out
    assert option in planned.out
    assert recover_ckpt("apply", output, "--strategy", option.split("'")[1]).code == 0


def test_rank_lists_in_another_folder_are_named(fixtures, output, recover_ckpt):
    shutil.rmtree(output / "strategy")
    shutil.rmtree(output / "checkpoint/rank_2")
    for rank in range(8):
        (output / f"groups/rank_{rank}").mkdir(parents=True)
        shutil.copyfile(
            fixtures / f"dp2_mp4/ckpt_dir{rank}/group_info.pb", output / f"groups/rank_{rank}/group_info.pb"
        )
    planned = recover_ckpt("plan", output / "checkpoint")
    assert planned.code == 4
    option = f"--group-info '{output}/groups/rank_{{rank}}/group_info.pb'"
    assert option in planned.out
    assert recover_ckpt("plan", output / "checkpoint", "--group-info", option.split("'")[1]).code == 0


def test_without_any_evidence_the_plan_says_which_options_take_some(output, recover_ckpt):
    shutil.rmtree(output / "strategy")
    shutil.rmtree(output / "checkpoint/rank_2")
    planned = recover_ckpt("plan", output)
    assert planned.code == 4
    assert "HINT: no usable rank list or strategy file was found" in planned.out
    assert "--strategy 'PATH/ckpt_strategy_rank_{rank}.ckpt'" in planned.out


def test_strategy_files_that_the_operator_names_replace_those_of_the_folder(fixtures, output, recover_ckpt):
    for rank in range(8):
        shutil.copyfile(
            fixtures / f"dp2_mp2_pp2/ckpt_dir{rank}/strategy.ckpt", output / f"strategy/ckpt_strategy_rank_{rank}.ckpt"
        )
    named = fixtures / "dp2_mp4/ckpt_dir{rank}/strategy.ckpt"
    shutil.rmtree(output / "checkpoint/rank_2")
    assert recover_ckpt("plan", output).code == 4
    assert recover_ckpt("plan", output, "--strategy", named).code == 0


# --- the tree that MindFormers wrote --------------------------------------------------------------------------------


@pytest.fixture
def real(fixtures, tmp_path):
    shutil.copytree(fixtures / "mindformers_legacy", tmp_path / "real")
    return tmp_path / "real/output"


@pytest.mark.parametrize("rank", range(4))
def test_one_slice_lost_goes_back_and_mindformers_resumes_there(rank, real, recover_ckpt):
    (real / f"checkpoint/rank_{rank}/CKP_rank_{rank}-1_200.safetensors").unlink()
    done = recover_ckpt("apply", real)
    assert done.code == 0, done.out
    assert "going back from step 1_200" in done.out
    assert resumed_file(real / "checkpoint", 2) == "CKP_rank_2-1_100.safetensors"


@pytest.mark.parametrize("lost", [(0,), (1,), (2,), (3,), (0, 2), (1, 2), (0, 3)])
def test_with_optimizer_shards_exactly_the_regions_of_the_lost_ranks_are_missing(lost, real, recover_ckpt):
    held_by = json.loads((real.parent / "held_by.json").read_text())
    for rank in lost:
        shutil.rmtree(real / f"checkpoint/rank_{rank}")
    planned = recover_ckpt("plan", real, "--step", "1_200", "--world-size", 4, "--json")
    assert planned.code == 4
    for rank in lost:
        missing = planned.json["ranks"][rank]["missing"]
        found = {(one["parameter"], tuple(map(tuple, one["region"]))) for one in missing}
        gone = [one for one in held_by if rank in one[3] and set(one[3]) <= set(lost)]
        regions = {
            (name, tuple((start, start + size) for start, size in zip(offset, shape, strict=True)))
            for name, offset, shape, _ in gone
        }
        assert found == regions


# --- restarts -------------------------------------------------------------------------------------------------------


def again(output, step, content):
    """Save a step once more, as a training that was started again does: under ``_1``, with other contents."""
    for rank in range(8):
        folder = output / f"checkpoint/rank_{rank}"
        data = bytearray((folder / NEWEST.format(rank=rank)).read_bytes())
        data[-40] ^= content
        (folder / f"CKP_rank_{rank}_1-{step[0]}_{step[1]}.ckpt").write_bytes(data)
        write_meta(folder, *step, f"CKP_rank_{rank}_1-{step[0]}_{step[1]}.ckpt")


def test_of_a_step_that_two_runs_saved_the_one_that_meta_json_names_is_taken(output, recover_ckpt):
    again(output, (2, 77), 1)
    shutil.rmtree(output / "checkpoint/rank_6")
    assert recover_ckpt("apply", output).code == 0
    assert sorted(os.listdir(output / "checkpoint/rank_6"))[0] == "CKP_rank_6_1-2_77.ckpt"
    second = (output / "checkpoint/rank_2/CKP_rank_2_1-2_77.ckpt").read_bytes()
    assert (output / "checkpoint/rank_6/CKP_rank_6_1-2_77.ckpt").read_bytes() == second
    assert resumed_file(output / "checkpoint", 6) == "CKP_rank_6_1-2_77.ckpt"


def test_newer_steps_of_a_run_that_was_gone_back_behind_are_passed_over(output, recover_ckpt):
    again(output, (2, 40), 1)
    made = recover_ckpt("plan", output, "--json").json
    assert made["step"] == {"epoch": 2, "step": 40}
    assert "step 2_77 is passed over" in made["warnings"][0]
    assert "meta_files" not in made
    assert recover_ckpt("plan", output, "--step", "2_77", "--json").json["step"] == {"epoch": 2, "step": 77}


def test_equal_slices_of_two_runs_leave_meta_json_as_it_is(output, recover_ckpt):
    again(output, (2, 77), 0)
    made = recover_ckpt("plan", output, "--json").json
    assert {rank["path"] for rank in made["ranks"]} == {
        f"checkpoint/rank_{r}/CKP_rank_{r}_1-2_77.ckpt" for r in range(8)
    }
    assert "meta_files" not in made


@pytest.mark.parametrize("gone", [{2}, {2, 5}, {0, 1, 2, 3}])
@pytest.mark.parametrize("from_file", [False, True])
def test_strategy_files_of_lost_ranks_are_written_again(gone, from_file, output, tmp_path, recover_ckpt):
    before = {rank: (output / "strategy" / f"ckpt_strategy_rank_{rank}.ckpt").read_bytes() for rank in gone}
    for rank in gone:
        shutil.rmtree(output / "checkpoint" / f"rank_{rank}")
        (output / "strategy" / f"ckpt_strategy_rank_{rank}.ckpt").unlink()
    planned = recover_ckpt("plan", output, "--world-size", 8, "-o", tmp_path / "plan.json", "--json").json
    names = [f"strategy/ckpt_strategy_rank_{rank}.ckpt" for rank in sorted(gone)]
    assert [one["target"] for one in planned["strategy_files"]] == names
    done = (
        recover_ckpt("apply", tmp_path / "plan.json") if from_file else recover_ckpt("apply", output, "--world-size", 8)
    )
    assert done.code == 0
    assert f"Strategy files written again: {', '.join(names)}" in done.out
    for rank, data in before.items():
        path = output / "strategy" / f"ckpt_strategy_rank_{rank}.ckpt"
        assert path.read_bytes() == data
        assert path.stat().st_mode & 0o777 == 0o600
    assert "strategy_files" not in recover_ckpt("plan", output, "--json").json


@pytest.mark.parametrize("name", ["strategy_rank_{rank}.ckpt", "ckpt_strategy_rank_{rank}.ckpt", "strategy.ckpt"])
def test_a_strategy_file_in_the_directory_of_its_rank_goes_to_that_of_the_lost_one(name, output, recover_ckpt):
    for rank in range(8):
        source = output / "strategy" / f"ckpt_strategy_rank_{rank}.ckpt"
        source.rename(output / "checkpoint" / f"rank_{rank}" / name.format(rank=rank))
    shutil.rmtree(output / "checkpoint" / "rank_2")
    assert recover_ckpt("apply", output).code == 0
    there = output / "checkpoint" / "rank_2" / name.format(rank=2)
    assert there.read_bytes() == (output / "checkpoint" / "rank_3" / name.format(rank=3)).read_bytes()


def test_a_strategy_file_that_is_there_stays(output, recover_ckpt):
    shutil.rmtree(output / "checkpoint" / "rank_2")
    (output / "strategy" / "ckpt_strategy_rank_2.ckpt").write_bytes(b"not a strategy file")
    assert "strategy_files" not in recover_ckpt("plan", output, "--json").json
    assert recover_ckpt("apply", output).code == 0
    assert (output / "strategy" / "ckpt_strategy_rank_2.ckpt").read_bytes() == b"not a strategy file"


@pytest.mark.parametrize(
    "target", ["strategy/ckpt_strategy_rank_3.ckpt", "strategy/ckpt_strategy.ckpt", "../strategy.ckpt"]
)
def test_a_plan_whose_strategy_file_is_that_of_another_rank_is_refused(target, output, tmp_path, recover_ckpt):
    shutil.rmtree(output / "checkpoint" / "rank_2")
    (output / "strategy" / "ckpt_strategy_rank_2.ckpt").unlink()
    made = recover_ckpt("plan", output, "--json").json
    made["strategy_files"][0]["target"] = target
    (tmp_path / "plan.json").write_text(json.dumps(made))
    assert recover_ckpt("apply", tmp_path / "plan.json").code == 3
    assert not (output / "checkpoint" / "rank_2").exists()
