import os
from dataclasses import replace

import pytest

from ms_recover import api
from ms_recover.errors import FormatError, VerificationError
from ms_recover.execution.targets import check_place, check_target
from ms_recover.model.actions import FileState
from ms_recover.model.plan import GroupWrite
from ms_recover.testing.trees import make_tree

NAME = "test-1_8.ckpt"


@pytest.fixture
def tree(tmp_path):
    return make_tree(tmp_path / "tree", data_parallel=2, model_parallel=2)


@pytest.fixture
def plan(tree):
    for path in (tree / "ckpt_dir0").iterdir():
        path.unlink()
    return api.plan(api.scan(tree))


@pytest.mark.parametrize(
    "target", ["ckpt_dir1/test-1_8.ckpt", "ckpt_dir0/test-1_9.ckpt", "ckpt_dir0/test_rank_1-1_8.ckpt"]
)
def test_a_plan_that_writes_for_another_rank_or_step_is_refused_before_anything_is_written(target, tree, plan):
    (action,) = plan.actions
    wrong = replace(plan, actions=(replace(action, target=target),))
    before = sorted(tree.rglob("*"))
    for verb in (api.check, api.apply):
        with pytest.raises(FormatError, match="plan again"):
            verb(wrong)
    assert sorted(tree.rglob("*")) == before


def test_a_rank_list_in_another_ranks_directory_is_refused(tree, plan):
    before = (tree / "ckpt_dir1" / "group_info.pb").read_bytes()
    wrong = replace(plan, group_files=(GroupWrite(0, "ckpt_dir1/group_info.pb", (0, 2)),))
    with pytest.raises(FormatError, match=r"rank list of rank 0, and 'ckpt_dir1/group_info\.pb' names rank 1"):
        api.apply(wrong)
    assert (tree / "ckpt_dir1" / "group_info.pb").read_bytes() == before


def test_a_source_of_another_rank_than_the_plan_says_is_refused(tree, plan):
    (action,) = plan.actions
    odd = replace(action.replica, path=f"ckpt_dir3/{NAME}")
    with pytest.raises(FormatError, match=r"read a slice of rank 2, and .* names rank 3"):
        api.apply(replace(plan, actions=(replace(action, replica=odd),)))


def test_a_rank_list_under_the_name_of_another_file_is_refused(tree, plan):
    for name in ("notes.txt", NAME):
        with pytest.raises(FormatError, match=r"is not called group_info\.pb"):
            api.apply(replace(plan, group_files=(GroupWrite(0, f"ckpt_dir0/{name}", (0, 2)),)))


def test_parts_of_a_slice_never_get_the_name_of_a_slice(tree, plan):
    (action,) = plan.actions
    with pytest.raises(FormatError, match="is a name for parts of a slice"):
        api.apply(replace(plan, actions=(replace(action, target="ckpt_dir0/test-1_8.partial.ckpt"),)))


@pytest.mark.parametrize("out", [True, False])
def test_a_directory_that_is_a_link_elsewhere_gets_nothing(out, tree, plan, tmp_path):
    (tree / "ckpt_dir0").rmdir()
    elsewhere = tmp_path / "outside" if out else tree / "ckpt_dir1"
    elsewhere.mkdir(exist_ok=True)
    (tree / "ckpt_dir0").symlink_to(elsewhere)
    before = {path: path.stat().st_ino for path in elsewhere.iterdir()}
    outcome = api.apply(plan)
    assert outcome.exit_code == FormatError.exit_code
    assert "through a link" in outcome.results[0].error
    assert {path: path.stat().st_ino for path in elsewhere.iterdir()} == before


def test_a_link_to_a_directory_of_the_same_rank_below_the_root_is_followed(tree, plan):
    (tree / "ckpt_dir0").rmdir()
    (tree / "disk" / "ckpt_dir0").mkdir(parents=True)
    (tree / "ckpt_dir0").symlink_to(tree / "disk" / "ckpt_dir0")
    check_place(str(tree), f"ckpt_dir0/{NAME}", 0)
    assert api.apply(plan).exit_code == 0
    assert (tree / "disk" / "ckpt_dir0" / NAME).exists()


@pytest.mark.parametrize("make", [lambda path: path.symlink_to(path.name), lambda path: path.symlink_to("nowhere")])
def test_a_looping_or_dangling_rank_directory_is_one_error_and_the_others_go_on(make, tree):
    for rank in (0, 1):
        for path in (tree / f"ckpt_dir{rank}").iterdir():
            path.unlink()
        (tree / f"ckpt_dir{rank}").rmdir()
    plan = api.plan(api.scan(tree))
    make(tree / "ckpt_dir0")
    outcome = api.apply(plan)
    assert [result.status for result in outcome.results] == ["failed", "copied"]
    assert outcome.exit_code == 1
    assert "ckpt_dir0" in outcome.results[0].error
    assert "\n" not in outcome.results[0].error


def test_only_the_file_that_the_plan_saw_is_replaced(tmp_path):
    path = tmp_path / NAME
    check_target(str(path), None)
    path.write_bytes(b"old")
    seen = FileState(3, path.stat().st_mtime_ns)
    check_target(str(path), seen)
    with pytest.raises(VerificationError, match="nothing was replaced"):
        check_target(str(path), None)
    os.utime(path, ns=(0, 0))
    with pytest.raises(VerificationError, match="nothing was replaced"):
        check_target(str(path), seen)
    path.unlink()
    path.mkdir()
    with pytest.raises(VerificationError, match="is no file"):
        check_target(str(path), None)
