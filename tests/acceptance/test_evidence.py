"""Points 1 to 6: who is right, and what the bytes under a final name rest on.

Every test makes a tree, does harm to it, runs the command line and compares files byte for byte with what was saved.
"""

from __future__ import annotations

import json
import os
import shutil

import numpy as np
import pytest

from ms_recover.execution.rank_lists import write_group_info
from ms_recover.formats.strategy import encode_strategy
from ms_recover.model.strategy import Strategy
from tests.support.acceptance import Tree, overwrite
from tests.support.cuts import CutTensor, cut_layout, slice_of

FORMS = ("ckpt", "safetensors")
LISTS = (True, False)


def not_kept(plan):
    """Return the ranks whose slice a plan replaces or writes anew."""
    return {rank["rank"] for rank in plan["ranks"] if rank["verdict"] != "keep"}


def unsound(found):
    return {check["rank"] for check in found["slices"] if check["status"] != "sound"}


def is_mended(tree, recover_ckpt, *options):
    """Apply, then compare every slice; a second look finds nothing wrong."""
    done = recover_ckpt("apply", tree.root, *options)
    assert done.code == 0, done
    assert tree.wrong() == []
    found = recover_ckpt("verify", tree.root)
    assert found.code == 0, found
    return True


def is_refused(tree, recover_ckpt, *options, codes=(5,)):
    """Apply changes no slice and writes none."""
    before = tree.contents()
    done = recover_ckpt("apply", tree.root, *options)
    assert tree.contents() == before, done
    assert done.code in codes, done
    return True


# 1. All known claims of who holds the same are used together.


@pytest.mark.parametrize(
    ("odd", "lost", "lists", "form"),
    [
        (2, 0, True, "ckpt"),
        (2, 0, False, "ckpt"),
        (2, 0, True, "safetensors"),
        (2, 0, False, "safetensors"),
        (0, 4, True, "ckpt"),
        (3, 1, False, "ckpt"),
        (1, 5, True, "ckpt"),
    ],
)
def test_01_a_bit_that_layouts_and_rank_lists_together_show_is_mended_and_not_copied(
    odd, lost, lists, form, tree_of, recover_ckpt
):
    tree = tree_of(dp=3 if lists else 2, form=form, lists=lists).save()
    tree.flip(odd)
    tree.lose(lost)
    plan = recover_ckpt("plan", tree.root, "--json")
    assert plan.code == 0, plan
    assert not_kept(plan.json) == {odd, lost}
    assert "norm.weight" in plan.json["ranks"][odd]["reason"]
    assert is_mended(tree, recover_ckpt)


@pytest.mark.parametrize(("odd", "lost"), [(2, 0), (0, 2), (1, 3)])
def test_01_two_slices_of_one_rank_list_outvote_nobody_over_layouts(odd, lost, tree_of, recover_ckpt):
    """A foreign strategy file that calls a parameter whole looks just the same where one rank is lost."""
    tree = tree_of().save()
    tree.flip(odd)
    tree.lose(lost)
    plan = recover_ckpt("plan", tree.root, "--json")
    assert plan.code == 5, plan
    assert "strategy.ckpt" in plan.text
    assert is_refused(tree, recover_ckpt)


@pytest.mark.parametrize("jobs", [1, 8])
def test_01_a_saved_plan_reads_a_damaged_slice_before_it_is_mended(jobs, tree_of, tmp_path, recover_ckpt):
    """Rank 3 gives rank 0 what is right in it, and gets back its norm.weight, in this order."""
    tree = tree_of(mp=3).save()
    tree.flip(3)
    tree.lose(0)
    saved = tmp_path / "plan.json"
    assert recover_ckpt("plan", tree.root, "-o", saved).code == 0
    done = recover_ckpt("apply", saved, "--jobs", jobs)
    assert done.code == 0, done
    assert tree.wrong() == []


@pytest.mark.parametrize("lists", LISTS)
@pytest.mark.parametrize("odd", [0, 3])
def test_01_verify_names_a_rank_that_only_ranks_of_other_groups_outvote(odd, lists, tree_of, recover_ckpt):
    tree = tree_of(lists=lists).save()
    tree.flip(odd)
    found = recover_ckpt("verify", tree.root, "--json")
    assert found.code == 5, found
    assert unsound(found.json) == {odd}
    assert is_mended(tree, recover_ckpt)


@pytest.mark.parametrize(("dp", "form"), [(3, "ckpt"), (4, "ckpt"), (8, "ckpt"), (3, "safetensors")])
def test_01_a_majority_of_a_rank_list_loses_against_all_holders(dp, form, tree_of, recover_ckpt):
    """All that are left of rank 0's group but rank 0 have the same flipped bit; the other group has not."""
    tree = tree_of(dp=dp, form=form).save()
    odd = tree.group(0)[1 : 1 + dp // 2 + (dp == 3)]
    gone = [rank for rank in tree.group(0)[1:] if rank not in odd]
    for rank in odd:
        tree.flip(rank)
    tree.lose(*gone)
    plan = recover_ckpt("plan", tree.root, "--json").json
    assert not_kept(plan) == {*odd, *gone}
    assert is_mended(tree, recover_ckpt)


def test_01_two_groups_with_a_bit_flipped_in_each(tree_of, recover_ckpt):
    tree = tree_of(dp=3, mp=2).save()
    tree.flip(2)
    tree.flip(5, "dense.weight")
    tree.lose(0)
    assert not_kept(recover_ckpt("plan", tree.root, "--json").json) == {0, 2, 5}
    assert is_mended(tree, recover_ckpt)


def test_01_lists_and_layouts_that_name_one_odd_slice_in_two_parameters(tree_of, recover_ckpt):
    """Rank 2's norm.weight is outvoted over the layouts, its dense.weight within its rank list."""
    tree = tree_of(dp=3, mp=2).save()
    tree.flip(2)
    tree.flip(2, "dense.weight")
    assert not_kept(recover_ckpt("plan", tree.root, "--json").json) == {2}
    assert is_mended(tree, recover_ckpt)


@pytest.mark.parametrize("lists", LISTS)
def test_01_as_many_against_as_many_is_decided_by_nobody(lists, tree_of, recover_ckpt):
    tree = tree_of(lists=lists).save()
    tree.flip(2)
    tree.lose(0, 1)
    done = recover_ckpt("plan", tree.root, "--json")
    assert done.code == 5, done
    assert "norm.weight" in done.text
    assert is_refused(tree, recover_ckpt)
    assert not tree.folder(0).exists()


def test_01_a_flip_in_each_of_two_groups_of_which_nobody_is_left_to_judge(tree_of, recover_ckpt):
    """Of rank 3's out.weight rank 1 alone holds another copy: that is one against one."""
    tree = tree_of().save()
    tree.flip(2)
    tree.flip(3, "out.weight")
    tree.lose(0)
    assert is_refused(tree, recover_ckpt)
    assert not tree.folder(0).exists()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("odd", "parameter"), [(3, "norm.weight"), (2, "dense.weight"), (4, "out.weight")])
def test_01_holds_where_no_rank_has_the_whole_slice_of_another(odd, parameter, form, tree_of, recover_ckpt):
    """Every part of a weight has three holders, which no rank list names; those of rank 0's are not concerned."""
    tree = tree_of(dp=3, mp=3, form=form, crossed=True).save()
    tree.flip(odd, parameter)
    tree.lose(0)
    plan = recover_ckpt("plan", tree.root, "--json")
    assert not_kept(plan.json) == {0, odd}
    assert is_mended(tree, recover_ckpt)


@pytest.mark.parametrize(("odd", "parameter"), [(1, "out.weight"), (3, "dense.weight")])
def test_01_of_two_holders_that_are_left_neither_is_believed(odd, parameter, tree_of, recover_ckpt):
    tree = tree_of(dp=3, mp=3, crossed=True).save()
    tree.flip(odd, parameter)
    tree.lose(0)
    assert is_refused(tree, recover_ckpt)


@pytest.mark.parametrize("stage", [0, 1])
@pytest.mark.parametrize("lists", LISTS)
def test_01_holds_in_every_pipeline_stage(stage, lists, tree_of, recover_ckpt):
    tree = tree_of(dp=3, pp=2, lists=lists).save()
    odd, lost = 6 * stage + 2, 6 * stage
    tree.flip(odd, f"stage{stage}.norm.weight")
    tree.lose(lost)
    assert not_kept(recover_ckpt("plan", tree.root, "--json").json) == {odd, lost}
    assert is_mended(tree, recover_ckpt)


def test_01_parameters_without_layout_count_too(tree_of, recover_ckpt):
    """global_step has no layout; all ranks of a stage hold the same of it."""
    tree = tree_of().save()
    tree.flip(2, "global_step")
    tree.lose(0)
    plan = recover_ckpt("plan", tree.root, "--json")
    assert not_kept(plan.json) == {0, 2}
    assert is_mended(tree, recover_ckpt)


# 2. A chosen double still votes, and one run is chosen for the whole step.


@pytest.fixture
def doubled(tree_of):
    def make(**options):
        return tree_of(**options).save(age=5).save(prefix="test_1", age=1)

    return make


@pytest.mark.parametrize(("dp", "mp", "form"), [(8, 1, "ckpt"), (4, 2, "ckpt"), (4, 1, "safetensors")])
def test_02_a_flipped_slice_among_chosen_doubles_is_outvoted(dp, mp, form, doubled, recover_ckpt):
    tree = doubled(dp=dp, mp=mp, form=form)
    lost = tree.group(0)[-1]
    first = recover_ckpt("plan", tree.root, "--newest", "--json", "--lost", lost)
    (action,) = first.json["actions"]
    odd = action["source_rank"] if action["kind"] == "copy" else 0
    tree.flip(odd, prefix="test_1", parameter="dense.weight")
    tree.lose(lost)
    asked = [tree.path(rank, prefix="test_1") for rank in tree.ranks]
    plan = recover_ckpt("plan", tree.root, "--newest", "--json")
    assert plan.code == 0, plan
    assert not_kept(plan.json) == {odd, lost}
    done = recover_ckpt("apply", tree.root, "--newest")
    assert done.code == 0, done
    assert tree.wrong(asked) == []
    assert tree.wrong([tree.path(rank) for rank in tree.ranks if rank != lost]) == []


@pytest.mark.parametrize("late", [0, 3])
def test_02_newest_never_mixes_runs_where_one_rank_has_the_older_run_written_last(late, doubled, recover_ckpt):
    tree = doubled(dp=4, mp=1)
    when = 1_800_000_000 * 10**9
    os.utime(tree.path(late), ns=(when, when))
    plan = recover_ckpt("plan", tree.root, "--newest", "--json")
    if plan.code == 0:
        assert len({os.path.basename(rank["path"]) for rank in plan.json["ranks"]}) == 1
    assert plan.code in (0, 4, 5), plan
    recover_ckpt("apply", tree.root, "--newest")
    assert tree.wrong() == []


@pytest.mark.parametrize("lists", LISTS)
def test_02_a_rerun_that_is_chosen_is_completed_from_replicas(lists, tree_of, recover_ckpt):
    """The rerun died before rank 3 saved; its replica, rank 1, has the rerun's slice."""
    tree = tree_of(lists=lists).save(age=5).save(prefix="test_1", age=1)
    tree.path(3, prefix="test_1").unlink()
    done = recover_ckpt("apply", tree.root, "--run", "test_1")
    assert done.code == 0, done
    assert tree.wrong() == []


def test_02_newest_falls_back_to_the_whole_older_run_never_to_a_mixture(tree_of, recover_ckpt):
    """Nobody of the group of ranks 1 and 3 has the rerun's slice."""
    tree = tree_of(strategies=False).save(age=5).save(prefix="test_1", age=1)
    for rank in (1, 3):
        tree.path(rank, prefix="test_1").unlink()
        del tree.truth[tree.path(rank, prefix="test_1")]
    plan = recover_ckpt("plan", tree.root, "--newest", "--json")
    assert plan.code in (0, 4), plan
    if plan.code == 0:
        assert {os.path.basename(rank["path"]) for rank in plan.json["ranks"]} == {"test-2_77.ckpt"}
    recover_ckpt("apply", tree.root, "--newest")
    assert tree.wrong() == []


def test_02_without_newest_nothing_is_chosen(doubled, recover_ckpt):
    tree = doubled(dp=4, mp=1)
    plan = recover_ckpt("plan", tree.root)
    assert plan.code == 4, plan
    assert "--newest" in plan.text
    assert is_refused(tree, recover_ckpt, codes=(4,))


# 3. Evidence has strength, and a copy is no witness for its source.


def copy_by_structure(tree, recover_ckpt, source, target, folder):
    """Lose a rank's slice and let `--quick` copy one rank's to it; its manifest then rests on structure alone."""
    tree.lose(target)
    plan = recover_ckpt("plan", tree.root, "--quick", "--json").json
    (action,) = [action for action in plan["actions"] if action["rank"] == target]
    if action["source_rank"] != source:
        chosen = next(one for one in action["alternatives"] if one["rank"] == source)
        action.update(source_rank=source, source=chosen["path"], source_mtime_ns=chosen["mtime_ns"])
        action.update(source_digest=chosen["digest"], alternatives=[])
    plan["actions"] = [action]
    (folder / "quick.json").write_text(json.dumps(plan))
    done = recover_ckpt("apply", folder / "quick.json")
    assert done.code == 0, done
    assert tree.path(target).read_bytes() == tree.path(source).read_bytes()


@pytest.mark.parametrize(("dp", "mp", "form"), [(8, 1, "ckpt"), (4, 2, "ckpt"), (4, 1, "safetensors")])
def test_03_a_manifest_of_quick_is_one_ballot_and_overwrites_nobody(dp, mp, form, tree_of, tmp_path, recover_ckpt):
    tree = tree_of(dp=dp, mp=mp, form=form).save()
    odd, lost = tree.group(0)[:2]
    tree.flip(odd, "dense.weight")
    copy_by_structure(tree, recover_ckpt, odd, lost, tmp_path)
    found = recover_ckpt("verify", tree.root, "--json")
    assert (found.code, unsound(found.json)) == (5, {odd, lost})
    assert not_kept(recover_ckpt("plan", tree.root, "--json").json) == {odd, lost}
    assert is_mended(tree, recover_ckpt)


@pytest.mark.parametrize("form", FORMS)
def test_03_a_copy_is_no_witness_for_its_source(form, tree_of, tmp_path, recover_ckpt):
    """Of three, one is a copy of the flipped one: that is one against one."""
    tree = tree_of(dp=3, mp=1, form=form).save()
    tree.flip(0, "dense.weight")
    copy_by_structure(tree, recover_ckpt, 0, 2, tmp_path)
    assert is_refused(tree, recover_ckpt)


@pytest.mark.parametrize("dp", [3, 7, 8])
def test_03_sealing_a_lone_rank_makes_no_verdict(dp, tree_of, tmp_path, recover_ckpt):
    tree = tree_of(dp=dp, mp=1).save()
    tree.flip(1, "dense.weight")
    alone = tmp_path / "alone"
    alone.mkdir()
    shutil.move(tree.folder(1), alone / "ckpt_dir1")
    assert recover_ckpt("seal", alone).code in (0, 5)
    shutil.move(alone / "ckpt_dir1", tree.folder(1))
    found = recover_ckpt("verify", tree.root, "--json")
    assert (found.code, unsound(found.json)) == (5, {1})
    assert not_kept(recover_ckpt("plan", tree.root, "--json").json) == {1}
    assert is_mended(tree, recover_ckpt)


def test_03_a_manifest_by_structure_does_not_settle_one_against_one(tree_of, tmp_path, recover_ckpt):
    tree = tree_of(dp=2, mp=1).save()
    tree.flip(1, "dense.weight")
    alone = tmp_path / "alone"
    alone.mkdir()
    shutil.move(tree.folder(1), alone / "ckpt_dir1")
    recover_ckpt("seal", alone)
    shutil.move(alone / "ckpt_dir1", tree.folder(1))
    assert is_refused(tree, recover_ckpt)


def test_03_a_chain_of_copies_is_one_ballot(tree_of, tmp_path, recover_ckpt):
    """Rank 1 is a copy of rank 0's flipped slice, rank 2 a copy of rank 1's; ranks 3 and 4 are right."""
    tree = tree_of(dp=5, mp=1).save()
    tree.flip(0, "dense.weight")
    copy_by_structure(tree, recover_ckpt, 0, 1, tmp_path)
    copy_by_structure(tree, recover_ckpt, 1, 2, tmp_path)
    assert not_kept(recover_ckpt("plan", tree.root, "--json").json) == {0, 1, 2}
    assert is_mended(tree, recover_ckpt)


@pytest.mark.parametrize("form", FORMS)
def test_03_what_a_training_saved_itself_settles_one_against_one(form, tree_of, recover_ckpt):
    tree = tree_of(dp=2, mp=1, form=form).save(run="run-1")
    tree.flip(1, "dense.weight")
    assert not_kept(recover_ckpt("plan", tree.root, "--json").json) == {1}
    assert is_mended(tree, recover_ckpt)


# 4. One inode is one ballot.


def link(kind, tree, source, *targets):
    for rank in targets:
        path = tree.path(rank)
        path.unlink()
        if kind == "hard":
            os.link(tree.path(source), path)
        else:
            path.symlink_to(f"../{tree.folder(source).name}/{path.name}")


@pytest.mark.parametrize("kind", ["hard", "soft"])
@pytest.mark.parametrize("form", FORMS)
def test_04_three_links_to_one_flipped_slice_lose_against_two_slices(kind, form, tree_of, recover_ckpt):
    tree = tree_of(dp=5, mp=1, form=form).save()
    tree.flip(0, "dense.weight")
    link(kind, tree, 0, 1, 2)
    plan = recover_ckpt("plan", tree.root, "--json")
    assert plan.code == 0, plan
    assert not_kept(plan.json) == {0, 1, 2}
    done = recover_ckpt("apply", tree.root)
    assert done.code == 0, done
    assert tree.wrong() == []


@pytest.mark.parametrize("kind", ["hard", "soft"])
def test_04_two_links_against_one_slice_decide_nothing(kind, tree_of, recover_ckpt):
    tree = tree_of(dp=3, mp=1).save()
    tree.flip(0, "dense.weight")
    link(kind, tree, 0, 1)
    assert is_refused(tree, recover_ckpt)


@pytest.mark.parametrize("kind", ["hard", "soft"])
def test_04_a_link_to_the_slice_of_another_rank_is_no_second_opinion(kind, tree_of, recover_ckpt):
    tree = tree_of(dp=2, mp=1).save()
    link(kind, tree, 0, 1)
    found = recover_ckpt("verify", tree.root, "--json")
    assert {check["evidence"] for check in found.json["slices"]} == {"structure"}, found


def test_04_linked_directories_are_one_ballot(tree_of, recover_ckpt):
    tree = tree_of(dp=5, mp=1).save()
    tree.flip(0, "dense.weight")
    for rank in (1, 2):
        tree.lose(rank)
        tree.folder(rank).symlink_to("ckpt_dir0")
    done = recover_ckpt("apply", tree.root)
    assert tree.wrong([tree.path(3), tree.path(4)]) == []
    assert done.code in (0, 3, 5), done
    if done.code == 0:
        assert tree.wrong() == []


def test_04_links_do_not_outvote_over_layouts_either(tree_of, recover_ckpt):
    """Ranks 0 and 2 are one file; norm.weight is right on rank 1 alone, and rank 3 is lost."""
    tree = tree_of().save()
    tree.flip(0)
    link("hard", tree, 0, 2)
    tree.lose(3)
    assert is_refused(tree, recover_ckpt)


# 5. The prefix and the run belong to a slice's identity.


@pytest.mark.parametrize(("dp", "form"), [(2, "ckpt"), (3, "ckpt"), (4, "safetensors")])
@pytest.mark.parametrize("manifests", [False, True])
def test_05_the_slice_of_an_older_run_is_never_overwritten(dp, form, manifests, tree_of, recover_ckpt):
    tree = tree_of(dp=dp, form=form)
    tree.save(prefix="baseline", age=100, ranks=[0], run="run-0" if manifests else None)
    tree.save("1_77", "2_77", run="run-1" if manifests else None)
    tree.path(0).unlink()
    if manifests:
        tree.manifest(0).unlink()
    plan = recover_ckpt("plan", tree.root, "--json")
    assert plan.code == 0, plan
    assert plan.json["step"] == {"epoch": 2, "step": 77}
    assert [action["target"] for action in plan.json["actions"]] == [f"ckpt_dir0/test-2_77.{form}"]
    assert "baseline" in plan.text
    done = recover_ckpt("apply", tree.root)
    assert done.code == 0, done
    assert tree.wrong() == []


@pytest.mark.parametrize("form", FORMS)
def test_05_a_foreign_slice_beside_a_sound_one_is_named_and_left(form, tree_of, recover_ckpt):
    tree = tree_of(form=form).save(prefix="baseline", age=100, ranks=[0, 1]).save()
    plan = recover_ckpt("plan", tree.root, "--json")
    assert (plan.code, plan.json["actions"]) == (0, []), plan
    assert "baseline" in plan.text
    assert is_refused(tree, recover_ckpt, codes=(0,))


def test_05_a_foreign_slice_of_the_right_bytes_is_no_reason_to_leave_the_name(tree_of, recover_ckpt):
    """Even where the foreign slice holds what was lost, the lost one comes back under its own name."""
    tree = tree_of().save()
    foreign = tree.path(0, prefix="baseline")
    foreign.write_bytes(tree.path(0).read_bytes())
    tree.path(0).unlink()
    done = recover_ckpt("apply", tree.root)
    assert done.code == 0, done
    assert tree.wrong() == []
    assert foreign.read_bytes() == tree.truth[tree.path(0)]


@pytest.mark.parametrize("manifests", [False, True])
def test_05_different_prefixes_on_different_ranks_are_no_complete_step(manifests, tree_of, recover_ckpt):
    tree = tree_of(dp=1, mp=4)
    tree.save(prefix="alpha", age=5, ranks=[0, 1], run="run-a" if manifests else None)
    tree.save(prefix="beta", ranks=[2, 3], run="run-b" if manifests else None)
    plan = recover_ckpt("plan", tree.root, "--json")
    assert plan.code == 4, plan
    assert "COMPLETE" not in recover_ckpt("plan", tree.root).out
    assert "alpha" in plan.text
    assert "beta" in plan.text
    assert is_refused(tree, recover_ckpt, codes=(4,))


def test_05_prefixes_that_replicas_could_complete_are_never_mixed(tree_of, recover_ckpt):
    """Ranks 0 and 1 saved one run, their replicas 2 and 3 another: either could be completed, both are no step."""
    tree = tree_of().save(prefix="alpha", age=5, ranks=[0, 1]).save(prefix="beta", ranks=[2, 3])
    plan = recover_ckpt("plan", tree.root, "--json")
    assert plan.code in (0, 4, 5), plan
    assert plan.code != 0 or plan.json["actions"]
    done = recover_ckpt("apply", tree.root)
    assert tree.wrong() == []
    if done.code == 0:
        savers = {"alpha": 0, "beta": 2}
        whole = [name for name in savers if all(tree.path(rank, prefix=name).exists() for rank in tree.ranks)]
        assert whole
        for name in whole:
            for rank in tree.ranks:
                saved = tree.truth[tree.path(rank % 2 + savers[name], prefix=name)]
                assert tree.path(rank, prefix=name).read_bytes() == saved


@pytest.mark.parametrize("manifests", [False, True])
def test_05_the_higher_step_of_an_older_run_is_named_as_such(manifests, tree_of, recover_ckpt):
    tree = tree_of()
    tree.save("9_77", prefix="old", age=100, run="run-0" if manifests else None)
    tree.save("1_77", "2_77", prefix="new", run="run-1" if manifests else None)
    for options in ((), ("--json",)):
        plan = recover_ckpt("plan", tree.root, *options)
        assert plan.code == 0, plan
        assert "9_77" in plan.text or '"epoch": 9' in plan.text
        named = "run-0" if manifests else "old"
        assert named in plan.text.replace(str(tree.root), ""), plan
        assert any(word in plan.text for word in ("older run", "earlier run", "another run", "other run", "prefix")), (
            plan
        )
    assert is_refused(tree, recover_ckpt, codes=(0,))


@pytest.mark.parametrize("ranks", [[0], [0, 1], [1, 2]])
def test_05_the_higher_step_of_an_older_run_on_some_ranks_changes_nothing(ranks, tree_of, recover_ckpt):
    tree = tree_of().save("9_77", prefix="baseline", age=100, ranks=ranks).save("1_77", "2_77")
    tree.path(3).unlink()
    plan = recover_ckpt("plan", tree.root, "--json")
    assert plan.code == 0, plan
    assert plan.json["step"] == {"epoch": 2, "step": 77}
    assert [action["target"] for action in plan.json["actions"]] == ["ckpt_dir3/test-2_77.ckpt"]
    assert "baseline" in plan.text
    done = recover_ckpt("apply", tree.root)
    assert done.code == 0, done
    assert tree.wrong() == []
    assert set(tree.contents()) == {str(path.relative_to(tree.root)) for path in tree.truth}


# 6. A journal entry is no proof; what was composed is compared with its manifest; nothing cut comes from another stage.


@pytest.mark.parametrize("crossed", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_06_a_journal_entry_is_no_proof_of_what_lies_there_now(form, crossed, tree_of, tmp_path, recover_ckpt):
    """The first apply recovers rank 0 and fails at rank 3; then a bit flips. Crossed layouts make it compose."""
    tree = tree_of(dp=4 if not crossed else 2, mp=2, form=form, crossed=crossed).save()
    tree.lose(0, 3)
    plan_file = tmp_path / "plan.json"
    plan = recover_ckpt("plan", tree.root, "-o", plan_file, "--json").json
    assert {action["kind"] for action in plan["actions"]} == {"compose" if crossed else "copy"}
    tree.path(3).mkdir(parents=True)
    (tree.path(3) / "in the way").touch()
    assert recover_ckpt("apply", plan_file).code != 0
    shutil.rmtree(tree.path(3))
    assert tree.wrong([tree.path(0)]) == []
    tree.flip(0, "dense.weight")  # size, inode and times are those of the journal
    done = recover_ckpt("apply", plan_file)
    assert done.code in (0, 5), done
    assert done.code == 5 or tree.wrong([tree.path(0)]) == []
    again = recover_ckpt("apply", tree.root)
    assert again.code == 0, again
    assert tree.wrong() == []


def test_06_a_forged_journal_entry_is_no_proof(tree_of, recover_ckpt):
    tree = tree_of(dp=4, mp=1).save()
    (action,) = recover_ckpt("plan", tree.root, "--json", "--lost", "0").json["actions"]
    tree.flip(0, "dense.weight")
    status = tree.path(0).stat()
    entry = {
        "target": action["target"],
        "inode": status.st_ino,
        "bytes": status.st_size,
        "mtime_ns": status.st_mtime_ns,
    }
    (tree.root / ".ms_recover.journal").write_text(json.dumps({**entry, "digest": action["source_digest"]}) + "\n")
    done = recover_ckpt("apply", tree.root)
    assert done.code == 0, done
    assert tree.wrong() == []


@pytest.mark.parametrize("lists", LISTS)
@pytest.mark.parametrize("form", FORMS)
def test_06_what_is_composed_must_be_what_the_ranks_own_manifest_names(form, lists, tree_of, recover_ckpt):
    """Rank 1 is the only other holder of norm.weight, and holds something else, by a manifest of its own."""
    tree = tree_of(dp=1, mp=2, lists=lists, form=form).save(run="run-1")
    tree.flip(0)
    tree.flip(1)
    overwrite(
        tree.path(0), tree.path(0).read_bytes()[:-1] + b"\x7f"
    )  # damaged in two parameters, otherwise than rank 1
    tree.commit(1)
    assert is_refused(tree, recover_ckpt, codes=(4, 5))


@pytest.mark.parametrize("form", FORMS)
def test_06_a_manifest_that_is_left_alone_judges_what_is_composed(form, tree_of, recover_ckpt):
    """Rank 0's slice is gone, its manifest is not; rank 2, sole holder of its dense.weight, holds something else."""
    tree = tree_of(crossed=True, form=form).save(run="run-1")
    tree.path(0).unlink()
    tree.flip(2, "dense.weight")
    tree.commit(2)
    assert is_refused(tree, recover_ckpt, codes=(4, 5))
    assert not tree.path(0).exists()


@pytest.mark.parametrize("form", FORMS)
def test_06_what_is_copied_must_be_what_the_ranks_own_manifest_names(form, tree_of, recover_ckpt):
    """Rank 0's slice is gone, its manifest is not; the replica holds something else, by a manifest of its own."""
    tree = tree_of(dp=2, mp=1, form=form).save(run="run-1")
    tree.path(0).unlink()
    tree.flip(1, "dense.weight")
    tree.commit(1)
    assert is_refused(tree, recover_ckpt, codes=(4, 5))
    assert not tree.path(0).exists()


def staged(root, *, dp, mp, form="ckpt", axes=(), run=None, in_strategy=False):
    """Two pipeline stages; the first trains embed.table, the second holds it whole at its initial value."""
    tree = Tree(root, dp=dp, mp=mp, pp=2, form=form)
    layouts = {stage: tree.tensors(stage, "test 2_77") for stage in (0, 1)}
    source = np.random.default_rng(7)
    trained, initial = (source.standard_normal((4 * dp * mp, 4)).astype(np.float32) for _ in range(2))
    layouts[0]["embed.table"] = CutTensor("Float32", trained, cut_layout("embed.table", (dp, mp), axes, ()))
    own = cut_layout("embed.table", (dp, mp), (), ()) if in_strategy else None
    layouts[1]["embed.table"] = CutTensor("Float32", initial, own)
    for rank in tree.ranks:
        stage = rank // (dp * mp)
        told = tuple(one.layout for one in layouts[stage].values() if one.layout is not None)
        (tree.folder(rank) / "strategy.ckpt").write_bytes(encode_strategy(Strategy((stage,), 2, told)))
        group = [rank] if 1 in axes and stage == 0 else tree.group(rank)
        write_group_info(tree.folder(rank) / "group_info.pb", group)
        tree.put(rank, slice_of(layouts[stage], rank, form=form))
        if run is not None:
            tree.commit(rank, run=run)
    return tree


@pytest.mark.parametrize("in_strategy", [False, True])
@pytest.mark.parametrize("run", [None, "run-1"])
@pytest.mark.parametrize(("lost", "form"), [(0, "ckpt"), (3, "ckpt"), (0, "safetensors")])
def test_06_a_cut_parameter_is_never_taken_from_another_pipeline_stage(
    lost, form, in_strategy, run, tmp_path, recover_ckpt
):
    """Everything of a lost slice is on other ranks of its stage but its part of embed.table."""
    tree = staged(tmp_path / "tree", dp=2, mp=2, form=form, axes=(1, 0), in_strategy=in_strategy, run=run)
    tree.lose(lost)
    plan = recover_ckpt("plan", tree.root, "--json")
    assert plan.code == 4, plan
    assert [one["parameter"] for one in plan.json["ranks"][lost]["missing"]] == ["embed.table"]
    assert is_refused(tree, recover_ckpt, codes=(4,))
    assert not tree.path(lost).exists()


@pytest.mark.parametrize("mp", [1, 2])
@pytest.mark.parametrize("in_strategy", [False, True])
def test_06_a_damaged_slice_whose_manifest_names_the_digest_gets_no_untrained_copy(
    mp, in_strategy, tmp_path, recover_ckpt
):
    """Nobody else of its stage holds embed.table; the other stage holds it at its initial value."""
    tree = staged(tmp_path / "tree", dp=1, mp=mp, axes=(0,) * (mp > 1), in_strategy=in_strategy, run="run-1")
    tree.flip(0, "embed.table")
    assert is_refused(tree, recover_ckpt, codes=(4,))


@pytest.mark.parametrize("in_strategy", [False, True])
@pytest.mark.parametrize("run", [None, "run-1"])
def test_06_a_parameter_that_the_own_stage_holds_comes_from_there(in_strategy, run, tmp_path, recover_ckpt):
    """embed.table is whole on ranks 0 and 1 of the first stage; ranks 2 and 3 hold it too, untrained."""
    tree = staged(tmp_path / "tree", dp=2, mp=1, in_strategy=in_strategy, run=run)
    tree.lose(0)
    assert is_mended(tree, recover_ckpt)


@pytest.mark.parametrize("in_strategy", [False, True])
def test_06_untrained_copies_of_another_stage_outvote_nobody(in_strategy, tmp_path, recover_ckpt):
    tree = staged(tmp_path / "tree", dp=2, mp=2, in_strategy=in_strategy)
    plan = recover_ckpt("plan", tree.root, "--json")
    assert (plan.code, plan.json["actions"]) == (0, []), plan
    assert is_refused(tree, recover_ckpt, codes=(0,))


def optimizer_parallel(root, ranks, *, run=None, form="ckpt"):
    """data_parallel with a parallel optimizer: equal weights, each rank trains the moment of its own weight alone."""
    tree = Tree(root, dp=ranks, mp=1, form=form, strategies=False)
    source = np.random.default_rng(11)
    weights = {f"w{i}": source.standard_normal((4, 4)).astype(np.float32) for i in range(ranks)}
    for rank in range(ranks):
        tensors = {name: CutTensor("Float32", value) for name, value in weights.items()}
        for i in range(ranks):
            moment = source.standard_normal((4, 4)) if i == rank else np.zeros((4, 4))
            tensors[f"moment1.w{i}"] = CutTensor("Float32", moment.astype(np.float32))
        tree.put(rank, slice_of(tensors, rank, form=form))
        write_group_info(tree.folder(rank) / "group_info.pb", list(range(ranks)))
        if run is not None:
            tree.commit(rank, run=run)
    return tree


@pytest.mark.parametrize("ranks", [3, 4, 8])
@pytest.mark.parametrize("run", [None, "run-1"])
def test_06_a_parallel_optimizer_under_data_parallel_does_not_make_ranks_alike(ranks, run, tmp_path, recover_ckpt):
    tree = optimizer_parallel(tmp_path / "tree", ranks, run=run)
    assert is_refused(tree, recover_ckpt, codes=(0, 5))


@pytest.mark.parametrize("ranks", [4, 8])
@pytest.mark.parametrize("run", [None, "run-1"])
@pytest.mark.parametrize("form", FORMS)
def test_06_the_moments_of_a_lost_rank_are_taken_from_nobody_that_never_trained_them(
    ranks, run, form, tmp_path, recover_ckpt
):
    tree = optimizer_parallel(tmp_path / "tree", ranks, run=run, form=form)
    tree.lose(0)
    assert is_refused(tree, recover_ckpt, codes=(4, 5))
    assert not tree.path(0).exists()


def test_06_a_damaged_moment_of_a_parallel_optimizer_gets_nobody_elses(tmp_path, recover_ckpt):
    tree = optimizer_parallel(tmp_path / "tree", 4, run="run-1")
    overwrite(tree.path(2), tree.path(2).read_bytes()[:-3])
    assert is_refused(tree, recover_ckpt, codes=(4, 5))
