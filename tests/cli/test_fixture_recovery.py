"""Every single rank of every real tree is removed, planned and recovered."""

import json
import shutil

import pytest

RECOVERABLE = ("dp2_mp4", "dp4_mp2_opt2", "dp2_mp2_pp2")


def remove(tree, *ranks, file=None):
    for rank in ranks:
        if file is None:
            shutil.rmtree(tree / f"ckpt_dir{rank}")
        else:
            (tree / f"ckpt_dir{rank}" / file).unlink()


@pytest.mark.parametrize("name", RECOVERABLE)
@pytest.mark.parametrize("rank", range(8))
def test_any_single_rank_is_recovered_byte_for_byte(name, rank, fixture_tree, fixtures, recover_ckpt):
    tree = fixture_tree(name)
    truth = json.loads((fixtures / name / "truth" / f"rank_{rank}.json").read_text())
    remove(tree, rank)
    planned = recover_ckpt("plan", tree, "--json")
    assert planned.code == 0, planned.err
    plan = planned.json
    assert plan["world_size"] == 8
    assert plan["recoverable"] is True
    (action,) = plan["actions"]
    assert action["rank"] == rank
    assert action["source_rank"] in set(truth["group"]) - {rank}
    done = recover_ckpt("apply", tree)
    assert done.code == 0, done.err
    newest = sorted((fixtures / name / f"ckpt_dir{rank}").glob("test-*.ckpt"))[-1]
    restored = tree / f"ckpt_dir{rank}" / newest.name
    assert restored.read_bytes() == newest.read_bytes()
    assert restored.stat().st_mode & 0o777 == 0o400
    listed = recover_ckpt("inspect", tree / f"ckpt_dir{rank}" / "group_info.pb", "--json").json
    assert listed["restore_ranks"] == truth["group"]
    again = recover_ckpt("apply", tree)
    assert again.code == 0
    assert recover_ckpt("plan", tree, "--json").json["actions"] == []


@pytest.mark.parametrize("rank", range(8))
def test_without_replicas_the_rank_is_named_and_the_code_is_4(rank, fixture_tree, recover_ckpt):
    tree = fixture_tree("dp4_mp2_optfull")
    remove(tree, rank)
    planned = recover_ckpt("plan", tree, "--json")
    assert planned.code == 4
    plan = planned.json
    assert plan["step"] is None
    assert plan["actions"] == []
    assert [entry["rank"] for entry in plan["ranks"] if entry["verdict"] == "unrecoverable"] == [rank]
    text = recover_ckpt("plan", tree)
    assert text.code == 4
    assert f"rank {rank}" in text.out
    applied = recover_ckpt("apply", tree)
    assert applied.code == 4
    assert not (tree / f"ckpt_dir{rank}").exists()


@pytest.mark.parametrize(("name", "members"), [("dp2_mp4", (1, 5)), ("dp4_mp2_opt2", (0, 4)), ("dp2_mp2_pp2", (5, 7))])
def test_losing_both_members_is_unrecoverable(name, members, fixture_tree, recover_ckpt):
    tree = fixture_tree(name)
    remove(tree, *members)
    planned = recover_ckpt("plan", tree, "--json")
    assert planned.code == 4
    assert {entry["rank"] for entry in planned.json["ranks"] if entry["verdict"] == "unrecoverable"} == set(members)


def test_losing_the_newest_step_of_both_falls_back_and_says_why(fixture_tree, recover_ckpt):
    tree = fixture_tree("dp2_mp4")
    remove(tree, 2, 6, file="test-2_77.ckpt")
    planned = recover_ckpt("plan", tree, "--json")
    assert planned.code == 0
    plan = planned.json
    assert plan["step"] == {"epoch": 1, "step": 77}
    (rejected,) = plan["rejected_steps"]
    assert (rejected["epoch"], rejected["step"]) == (2, 77)
    assert "ranks 2, 6" in rejected["reason"]
    assert "2_77" in recover_ckpt("plan", tree).out


def test_half_the_ranks_lost_at_once(fixture_tree, fixtures, recover_ckpt):
    tree = fixture_tree("dp2_mp4")
    remove(tree, 0, 1, 6, 7)
    assert recover_ckpt("apply", tree, "--jobs", "4", "--no-verify").code == 0
    for rank in range(8):
        name = f"ckpt_dir{rank}/test-2_77.ckpt"
        assert (tree / name).read_bytes() == (fixtures / "dp2_mp4" / name).read_bytes()


def test_lost_ranks_are_replaced_whatever_lies_there(fixture_tree, recover_ckpt):
    tree = fixture_tree("dp2_mp4")
    plan = recover_ckpt("plan", tree, "--lost", "0,3", "--json").json
    assert [action["rank"] for action in plan["actions"]] == [0, 3]
    assert plan["ranks"][0]["state"] == "lost"
    assert recover_ckpt("plan", tree, "--lost", "0,4", "--json").code == 4
    assert recover_ckpt("plan", tree, "--lost", "8").code == 2
    assert recover_ckpt("plan", tree, "--lost", "x").code == 2
