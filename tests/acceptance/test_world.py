"""Points 7 to 10: how many ranks there are, permissions, what `verify` calls sound, and steps that are given up."""

from __future__ import annotations

import os
import re
import shutil

import pytest

from ms_recover.execution.rank_lists import write_group_info
from tests.support.acceptance import Tree

FORMS = ("ckpt", "safetensors")
NOBODY = 65534


def headline(done, lines=4):
    """Return the first lines of a report, in which the answer stands."""
    return "\n".join(done.out.splitlines()[:lines])


def folders(tree):
    return sorted(path.name for path in tree.root.iterdir() if path.is_dir())


# 7. Directories without slices are no ranks.


def empty(root, name):
    (root / name).mkdir()


def with_a_log(root, name):
    (root / name).mkdir()
    (root / name / "worker.log").write_text("Killed\n")


@pytest.mark.parametrize(
    ("evidence", "directory", "number", "make"),
    [
        ("manifests", "ckpt_dir{rank}", 8, empty),
        ("manifests", "rank_{rank}", 8, with_a_log),
        ("manifests", "rank_{rank}", 1_000_000, empty),
        ("layouts", "ckpt_dir{rank}", 8, empty),
        ("layouts", "ckpt_dir{rank}", 1_000_000, with_a_log),
        ("files", "ckpt_dir{rank}", 8, empty),
        ("files", "rank_{rank}", 8, with_a_log),
        ("files", "rank_{rank}", 1_000_000, empty),
    ],
)
def test_07_a_directory_without_slices_is_no_rank(evidence, directory, number, make, tmp_path, recover_ckpt):
    alone = evidence == "files"
    tree = Tree(tmp_path / "tree", dp=4, mp=2, lists=not alone, strategies=not alone, directory=directory)
    tree.save(run="run-1" if evidence == "manifests" else None)
    make(tree.root, directory.format(rank=number))
    before = folders(tree)
    plan = recover_ckpt("plan", tree.root, "--json", timeout=10)
    assert (plan.code, plan.json["world_size"], plan.json["actions"]) == (0, 8, []), plan
    assert len(plan.json["ranks"]) == 8
    if evidence == "manifests":
        assert recover_ckpt("verify", tree.root, timeout=10).code == 0
    if not alone:
        tree.lose(0)
        done = recover_ckpt("apply", tree.root, timeout=10)
        assert done.code == 0, done
        assert tree.wrong() == []
        assert folders(tree) == before


@pytest.mark.parametrize("stray", ["ckpt_dir8", "rank_8", "rank_1000000"])
def test_07_both_names_of_directories_beside_each_other(stray, tmp_path, recover_ckpt):
    tree = Tree(tmp_path / "tree", dp=4, mp=2).save(run="run-1")
    with_a_log(tree.root, stray)
    for command in ("plan", "apply"):
        done = recover_ckpt(command, tree.root, timeout=10)
        assert done.code == 0, done
        assert "UNRECOVERABLE" not in done.out


@pytest.mark.parametrize("evidence", ["manifests", "layouts"])
def test_07_a_stray_slice_of_a_rank_beyond_the_world_changes_nothing(evidence, tmp_path, recover_ckpt):
    tree = Tree(tmp_path / "tree", dp=4, mp=2).save(run="run-1" if evidence == "manifests" else None)
    stray = tree.root / "ckpt_dir1000000"
    stray.mkdir()
    shutil.copy(tree.path(0), stray)
    tree.lose(2)
    plan = recover_ckpt("plan", tree.root, "--json", timeout=10)
    assert (plan.code, plan.json["world_size"]) == (0, 8), plan
    assert "ckpt_dir1000000" in str(plan.json["notes"])
    done = recover_ckpt("apply", tree.root, timeout=10)
    assert done.code == 0, done
    assert tree.wrong() == []


def larger_lists(tree):
    """Give each rank the list of a training with twice as many data-parallel ranks."""
    for rank in tree.ranks:
        members = [rank % tree.mp + replica * tree.mp for replica in range(2 * tree.dp)]
        write_group_info(tree.folder(rank) / "group_info.pb", members)


@pytest.mark.parametrize("lost", [None, 0, 7])
def test_07_rank_lists_of_a_larger_world_are_contradicted_by_strategy_files(lost, tmp_path, recover_ckpt):
    tree = Tree(tmp_path / "tree", dp=4, mp=2).save()
    larger_lists(tree)
    before = folders(tree)
    if lost is not None:
        tree.lose(lost)
    plan = recover_ckpt("plan", tree.root, "--json")
    assert (plan.code, plan.json["world_size"]) == (0, 8), plan
    assert {action["rank"] for action in plan.json["actions"]} == ({lost} if lost is not None else set())
    assert "group_info.pb" in str(plan.json["notes"])
    done = recover_ckpt("apply", tree.root)
    assert done.code == 0, done
    assert tree.wrong() == []
    assert folders(tree) == before


def test_07_the_operators_world_size_is_over_all(tmp_path, recover_ckpt):
    tree = Tree(tmp_path / "tree", dp=4, mp=2, strategies=False).save()
    larger_lists(tree)
    before = folders(tree)
    tree.lose(1)
    plan = recover_ckpt("plan", tree.root, "--world-size", 8, "--json")
    assert (plan.code, plan.json["world_size"]) == (0, 8), plan
    done = recover_ckpt("apply", tree.root, "--world-size", 8)
    assert done.code == 0, done
    assert tree.wrong() == []
    assert folders(tree) == before


def test_07_the_operators_larger_world_is_not_complete(tmp_path, recover_ckpt):
    tree = Tree(tmp_path / "tree").save()
    plan = recover_ckpt("plan", tree.root, "--world-size", 8)
    assert plan.code == 4, plan
    assert "COMPLETE" not in plan.out


@pytest.mark.parametrize("lists", [True, False])
@pytest.mark.parametrize("strategies", [True, False])
def test_07_a_guessed_world_is_called_a_guess_in_the_headline(lists, strategies, tmp_path, recover_ckpt):
    """The last pipeline stage is gone, and nothing that is left says that there was one."""
    tree = Tree(tmp_path / "tree", pp=2, lists=lists, strategies=strategies).save()
    tree.lose(4, 5, 6, 7)
    plan = recover_ckpt("plan", tree.root)
    assert plan.code in (0, 4), plan
    assert "guess" in headline(plan).lower()
    assert not re.search(r"^COMPLETE\b", plan.out, re.MULTILINE)


@pytest.mark.parametrize("evidence", ["manifests", "given"])
def test_07_a_known_world_is_no_guess(evidence, tmp_path, recover_ckpt):
    tree = Tree(tmp_path / "tree", pp=2).save(run="run-1" if evidence == "manifests" else None)
    plan = recover_ckpt("plan", tree.root, *(("--world-size", 8) if evidence == "given" else ()))
    assert plan.code == 0, plan
    assert "guess" not in plan.out.lower()
    assert "COMPLETE" in headline(plan)


@pytest.mark.parametrize("what", ["last stage, manifests", "last stage, lists left", "middle stage"])
def test_07_a_stage_that_evidence_tells_of_is_missed(what, tmp_path, recover_ckpt):
    tree = Tree(tmp_path / "tree", dp=2, mp=1, pp=3).save(run="run-1" if what == "last stage, manifests" else None)
    if what == "last stage, lists left":
        for rank in (4, 5):
            tree.path(rank).unlink()
    else:
        tree.lose(*((2, 3) if what == "middle stage" else (4, 5)))
    plan = recover_ckpt("plan", tree.root, "--json")
    assert (plan.code, plan.json["world_size"]) == (4, 6), plan
    gone = {rank["rank"] for rank in plan.json["ranks"] if rank["verdict"] == "unrecoverable"}
    assert gone == ({2, 3} if what == "middle stage" else {4, 5})


# 8. Permission denied is exit 1 with the path and the user.


def open_to_all(*paths):
    """Let every user reach the folders in which tests are, and own the tree."""
    for path in paths:
        for folder in [path, *path.parents][:-1]:
            folder.chmod(0o755 | folder.stat().st_mode & 0o7777)


@pytest.fixture
def nobodys(tmp_path, recover_ckpt, tmp_path_factory):
    """Make trees that belong to a user without rights, and run commands as that user."""
    open_to_all(tmp_path)

    def make(**options):
        return Tree(tmp_path / "tree", **options).save()

    def give(tree):
        if os.geteuid() == 0:
            for path in [tree.root, *tree.root.rglob("*")]:
                os.chown(path, NOBODY, NOBODY)

    def shut(path):
        if os.geteuid() == 0:
            os.chown(path, 0, 0)
        path.chmod(0o000)

    def run(*arguments):
        return recover_ckpt(*arguments, user=NOBODY, cwd="/")

    yield make, give, shut, run
    for folder, names, files in os.walk(tmp_path):
        for name in names + files:
            path = os.path.join(folder, name)
            if not os.path.islink(path):
                os.chmod(path, 0o700)


def named_with_user(done, path):
    """One clear end: code 1, the path, the user; neither damage nor despair."""
    assert done.code == 1, done
    assert str(path) in done.text.replace("\n", "")
    user = str(NOBODY if os.geteuid() == 0 else os.geteuid())
    assert user in done.text or "nobody" in done.text or os.environ.get("USER", "\0") in done.text, done
    assert "UNRECOVERABLE" not in done.text
    assert "plan again" not in done.text
    return True


@pytest.mark.parametrize("command", ["plan", "apply", "verify"])
@pytest.mark.parametrize("form", FORMS)
def test_08_a_slice_that_cannot_be_opened_and_has_no_replica_is_exit_1(command, form, nobodys):
    make, give, shut, run = nobodys
    tree = make(dp=1, mp=3, form=form, strategies=False)
    give(tree)
    shut(tree.path(1))
    done = run(command, tree.root)
    assert named_with_user(done, tree.path(1).relative_to(tree.root))
    assert "damaged" not in done.text


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dp", [2, 3])
def test_08_a_slice_that_cannot_be_opened_but_can_be_replaced_is_replaced(dp, form, nobodys):
    make, give, shut, run = nobodys
    tree = make(dp=dp, mp=2, form=form)
    give(tree)
    shut(tree.path(2))
    plan = run("plan", tree.root, "--json")
    assert plan.code == 0, plan
    assert [action["rank"] for action in plan.json["actions"]] == [2]
    assert "ermission denied" in plan.json["ranks"][2]["reason"]
    done = run("apply", tree.root)
    assert done.code == 0, done
    assert tree.wrong() == []
    assert run("plan", tree.root, "--json").json["actions"] == []


def test_08_when_every_replica_is_closed_it_is_exit_1_and_not_4(nobodys):
    make, give, shut, run = nobodys
    tree = make(dp=2, mp=2)
    give(tree)
    for rank in (0, 2):
        shut(tree.path(rank))
    for command in ("plan", "apply"):
        assert named_with_user(run(command, tree.root), tree.path(0).relative_to(tree.root))


def test_08_a_lost_slice_whose_replica_cannot_be_opened_is_exit_1_and_not_4(nobodys):
    make, give, shut, run = nobodys
    tree = make(dp=2, mp=2, strategies=False)
    tree.lose(0)
    give(tree)
    shut(tree.path(2))
    assert named_with_user(run("plan", tree.root), tree.path(2).relative_to(tree.root))


@pytest.mark.parametrize("command", ["plan", "apply", "verify", "seal"])
def test_08_a_rank_directory_that_cannot_be_opened_is_exit_1(command, nobodys):
    make, give, shut, run = nobodys
    tree = make(dp=2, mp=2)
    give(tree)
    shut(tree.folder(1))
    assert named_with_user(run(command, tree.root), tree.folder(1).name)


@pytest.mark.parametrize("command", ["scan", "plan", "apply", "verify", "seal"])
def test_08_a_root_that_cannot_be_opened_is_exit_1(command, nobodys):
    make, give, shut, run = nobodys
    tree = make()
    give(tree)
    shut(tree.root)
    assert named_with_user(run(command, tree.root), tree.root)


def test_08_a_target_directory_that_cannot_be_written_is_exit_1(nobodys):
    make, give, _, run = nobodys
    tree = make()
    give(tree)
    tree.path(0).unlink()
    if os.geteuid() == 0:
        os.chown(tree.folder(0), 0, 0)
    tree.folder(0).chmod(0o555)
    for _ in range(2):
        done = run("apply", tree.root)
        assert named_with_user(done, "ckpt_dir0")
    assert not tree.path(0).exists()


def test_08_a_root_that_cannot_be_written_is_exit_1(nobodys):
    make, give, _, run = nobodys
    tree = make()
    tree.lose(3)
    give(tree)
    if os.geteuid() == 0:
        os.chown(tree.root, 0, 0)
    tree.root.chmod(0o555)
    for command in ("plan", "apply"):
        assert named_with_user(run(command, tree.root), tree.root.name)
    assert not tree.folder(3).exists()


# 9. A missing slice is wrong; SOUND only for what was compared.


@pytest.mark.parametrize(
    ("manifests", "what"),
    [(False, "slice"), (False, "directory"), (True, "slice"), (True, "directory"), (True, "slice, manifest left")],
)
def test_09_a_missing_slice_is_wrong(manifests, what, tree_of, recover_ckpt):
    tree = tree_of().save(run="run-1" if manifests else None)
    if what == "directory":
        tree.lose(3)
    else:
        tree.path(3).unlink()
        if manifests and what == "slice":
            tree.manifest(3).unlink()
    found = recover_ckpt("verify", tree.root, "--json")
    assert found.code == 5, found
    assert found.json["ok"] is False
    assert [(one["epoch"], one["step"], one["ranks"]) for one in found.json["missing"]] == [(2, 77, [3])]
    text = recover_ckpt("verify", tree.root)
    assert text.code == 5
    assert "SOUND" not in headline(text, 2)
    assert recover_ckpt("apply", tree.root).code == 0
    assert recover_ckpt("verify", tree.root).code == 0


def test_09_the_last_rank_missing_by_a_manifest_is_wrong(tree_of, recover_ckpt):
    """Nothing but the manifests of others says that rank 3 has ever been."""
    tree = tree_of(dp=1, mp=4, lists=False, strategies=False).save(run="run-1")
    tree.lose(3)
    found = recover_ckpt("verify", tree.root, "--json")
    assert found.code == 5, found
    assert found.json["missing"][0]["ranks"] == [3]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("dp", "mp"), [(1, 4), (1, 1), (1, 2)])
def test_09_what_rests_on_structure_alone_is_not_called_sound(dp, mp, form, tree_of, recover_ckpt):
    tree = tree_of(dp=dp, mp=mp, form=form, strategies=False).save()
    text = recover_ckpt("verify", tree.root)
    assert text.code == 0, text
    assert "SOUND: all" not in text.out
    assert "structure" in headline(text, 3)
    found = recover_ckpt("verify", tree.root, "--json").json
    assert {check["evidence"] for check in found["slices"]} == {"structure"}


def test_09_what_was_compared_in_part_is_told_apart(tree_of, recover_ckpt):
    """Ranks 0 to 3 have replicas, ranks 4 and 5, of lists of their own, have none."""
    tree = tree_of(dp=3, mp=2, strategies=False)
    for rank in tree.ranks:
        write_group_info(tree.folder(rank) / "group_info.pb", [rank % 2, rank % 2 + 2] if rank < 4 else [rank])
    tree.save()
    for rank in (4, 5):
        tree.put(rank, tree.truth[tree.path(rank)].replace(tree.truth[tree.path(rank)][-4:], b"abcd"))
    text = recover_ckpt("verify", tree.root)
    assert text.code == 0, text
    assert "SOUND: all" not in text.out
    assert "structure" in headline(text, 3)
    assert re.search(r"structure.*\b4-5\b|\b4-5\b.*structure", text.out)


@pytest.mark.parametrize("manifests", [False, True])
def test_09_columns_say_ranks_and_not_counts(manifests, tree_of, recover_ckpt):
    tree = tree_of(dp=3, mp=2).save("1_77", "2_77", run="run-1" if manifests else None)
    tree.flip(2, "dense.weight", step="1_77")
    tree.path(5, "1_77").unlink()
    text = recover_ckpt("verify", tree.root)
    assert text.code == 5, text
    lines = {line.split()[0]: line for line in text.out.splitlines() if re.match(r"\s*[12]_77\s", line)}
    assert re.search(r"\b0-5\b", lines["2_77"])
    assert re.search(r"\b0-1, 3-4\b", lines["1_77"])
    assert re.search(r"\b2\b.*\b5\b", lines["1_77"].replace("0-1, 3-4", ""))


# 10. A newer whole step is never passed over in a subordinate clause.


def give_up_newest(tree, *, run=None):
    tree.save("1_77", "2_77", "3_77", run=run)
    for rank in (1, 3):
        tree.path(rank, "3_77").unlink()
        tree.manifest(rank, "3_77").unlink(missing_ok=True)
        del tree.truth[tree.path(rank, "3_77")]
    return tree


@pytest.mark.parametrize(
    ("form", "run", "also_lost"),
    [("ckpt", None, None), ("ckpt", "run-1", None), ("safetensors", None, 0), ("ckpt", "run-1", 0)],
)
def test_10_the_headline_and_the_json_say_which_step_was_given_up_and_why(also_lost, run, form, tree_of, recover_ckpt):
    tree = give_up_newest(tree_of(form=form), run=run)
    if also_lost is not None:
        tree.path(also_lost).unlink()
    text = recover_ckpt("plan", tree.root)
    assert text.code == 0, text
    assert "3_77" in headline(text)
    assert re.search(r"\b1, 3\b|\b1\b.*\b3\b", headline(text)), "the ranks that have no slice of it"
    done = recover_ckpt("apply", tree.root, "--json")
    assert done.code == 0, done
    assert [(one["epoch"], one["step"]) for one in done.json["rejected_steps"]] == [(3, 77)]
    assert done.json["rejected_steps"][0]["reason"]
    assert "3_77" in headline(recover_ckpt("apply", tree.root))
    assert tree.wrong() == []


@pytest.mark.parametrize("command", ["plan", "apply"])
@pytest.mark.parametrize("run", [None, "run-1"])
def test_10_require_newest_ends_with_4_instead_of_going_back(run, command, tree_of, recover_ckpt):
    tree = give_up_newest(tree_of(), run=run)
    tree.path(0).unlink()
    before = tree.contents()
    done = recover_ckpt(command, tree.root, "--require-newest")
    assert done.code == 4, done
    assert "3_77" in done.text
    assert tree.contents() == before
    as_json = recover_ckpt(command, tree.root, "--require-newest", "--json")
    assert as_json.code == 4, as_json
    assert {key: as_json.json["rejected_steps"][0][key] for key in ("epoch", "step")} == {"epoch": 3, "step": 77}


@pytest.mark.parametrize("command", ["plan", "apply"])
def test_10_require_newest_is_content_with_the_newest(command, tree_of, recover_ckpt):
    tree = tree_of().save("1_77", "2_77")
    tree.lose(0)
    done = recover_ckpt(command, tree.root, "--require-newest")
    assert done.code == 0, done
    if command == "apply":
        assert tree.wrong([tree.path(0)]) == []


@pytest.mark.parametrize("how", ["saved", "sealed"])
@pytest.mark.parametrize("form", FORMS)
def test_10_slices_without_manifests_newer_than_sealed_ones_can_be_sealed(how, form, tree_of, recover_ckpt):
    tree = tree_of(form=form).save("1_77", "2_77", age=1, run="run-1" if how == "saved" else None)
    if how == "sealed":
        assert recover_ckpt("seal", tree.root).code == 0
    tree.save("3_77")
    text = recover_ckpt("plan", tree.root)
    assert text.code == 0, text
    assert "3_77" in headline(text)
    sealed = recover_ckpt("seal", tree.root, "--json")
    assert sealed.code == 0, sealed
    assert all(tree.manifest(rank, "3_77").exists() for rank in tree.ranks)
    plan = recover_ckpt("plan", tree.root, "--json").json
    assert (plan["step"], plan["actions"], plan["rejected_steps"]) == ({"epoch": 3, "step": 77}, [], [])
    assert recover_ckpt("verify", tree.root).code == 0


def test_10_one_step_of_several_that_are_given_up_is_not_hidden_by_another(tree_of, recover_ckpt):
    tree = give_up_newest(tree_of())
    tree.save("4_77")
    for rank in (0, 2):
        tree.path(rank, "4_77").unlink()
    plan = recover_ckpt("plan", tree.root, "--json").json
    assert [one["epoch"] for one in plan["rejected_steps"]] == [4, 3]
    assert "4_77" in headline(recover_ckpt("plan", tree.root))
    assert [one["epoch"] for one in recover_ckpt("apply", tree.root, "--json").json["rejected_steps"]] == [4, 3]
