"""The headline of a plan says what an operator must know first."""

from dataclasses import replace

import pytest

from ms_recover.model.actions import CopyAction, FileState, Replica
from ms_recover.model.inventory import Note
from ms_recover.model.plan import GivenUpSlice, Plan, RankVerdict, RejectedStep
from ms_recover.model.steps import Step
from ms_recover.reporting.plan_text import plan_text

KEPT = tuple(RankVerdict(rank, "ok", "keep", "its own slice", f"rank_{rank}/a-3_8.ckpt") for rank in range(4))
COMPLETE = Plan(
    root="/tree",
    world_size=4,
    world_size_from="manifests",
    step=Step(3, 8),
    actions=(),
    group_files=(),
    ranks=KEPT,
    considered=Step(3, 8),
)
COPY = CopyAction(
    rank=0,
    replica=Replica(rank=2, path="rank_2/a-3_8.ckpt", state=FileState(bytes=2048, mtime_ns=7)),
    target="rank_0/a-3_8.ckpt",
    replaces=None,
    reason="lost",
)
GIVEN_UP = RejectedStep(Step(3, 10), "rank 2: no replica of its slice is left")
OTHER_RUN = RejectedStep(Step(9, 1), "only run old has slices of it", another_run=True)


def headline(plan, **options):
    return plan_text(plan, None, **options).splitlines()[1]


def unrecoverable(*states):
    ranks = tuple(
        RankVerdict(rank, state, "keep" if state == "ok" else "unrecoverable", f"why {rank}", f"rank_{rank}/a.ckpt")
        for rank, state in enumerate(states)
    )
    return replace(COMPLETE, step=None, ranks=ranks)


def test_a_complete_tree():
    counted = "COMPLETE at step 3_8 for 4 ranks (by manifests)"
    assert headline(COMPLETE) == f"{counted}: every rank has its slice, nothing to do"


def test_a_guessed_world_is_never_plainly_complete():
    guessed = replace(COMPLETE, world_size_guessed=True, world_size_from="directories")
    text = headline(guessed)
    assert not text.startswith("COMPLETE")
    assert "COMPLETE for the 4 ranks that are known" in text
    assert "the world size is a guess (by directories): give --world-size" in text
    assert "at least 4 ranks" in plan_text(guessed, None).splitlines()[0]


@pytest.mark.parametrize("step", [Step(3, 8), None])
def test_every_headline_calls_a_guess_a_guess(step):
    plan = replace(unrecoverable("missing", "ok") if step is None else COMPLETE, world_size_guessed=True)
    assert "world size is a guess" in headline(plan)


def test_the_headline_names_the_newest_step_that_was_given_up():
    older = RejectedStep(Step(3, 9), "rank 1: gone")
    text = headline(replace(COMPLETE, rejected_steps=(OTHER_RUN, GIVEN_UP, older)))
    assert text.endswith("; going back from step 3_10 (rank 2: no replica of its slice is left) and 1 more to step 3_8")


def test_the_headline_gives_the_first_clause_of_a_long_reason_and_a_table_all_of_it():
    long = RejectedStep(Step(3, 9), "rank 1: gone; its group is [1]; rank 4: gone; its group is [4]", ranks=(1, 4))
    text = plan_text(replace(COMPLETE, rejected_steps=(long,)), None)
    assert text.splitlines()[1].endswith(
        "; going back from step 3_9 (no source for ranks 1, 4; rank 1: gone ...) to step 3_8"
    )
    assert f"Newer steps that were given up:\nstep  why\n3_9   {long.reason}" in text


def test_a_step_of_another_run_is_listed_and_not_in_the_headline():
    text = plan_text(replace(COMPLETE, rejected_steps=(OTHER_RUN,)), None)
    assert "going back" not in text
    assert "Steps of other runs only:\nstep  why\n9_1   only run old has slices of it" in text


def test_a_refused_plan_offers_no_command():
    plan = replace(COMPLETE, rejected_steps=(GIVEN_UP,))
    text = plan_text(plan, None, next_command="recover-ckpt apply /tree", refused=True)
    assert text.splitlines()[1].startswith("REFUSED by --require-newest: nothing is done; going back from step 3_10")
    assert "Next:" not in text


def test_warnings_stand_right_under_the_headline():
    lines = plan_text(replace(COMPLETE, warnings=("first", "second")), None).splitlines()
    assert lines[2:4] == ["WARNING: first", "WARNING: second"]


def test_permission_denied_names_the_path_and_leaves_the_user_to_its_reason():
    text = plan_text(unrecoverable("ok", "unreadable", "missing", "ok"), None)
    assert "UNRECOVERABLE" not in text
    lines = text.splitlines()
    assert lines[1].startswith("PERMISSION DENIED at step 3_8: the slice of rank 1 cannot be read; no other source")
    assert lines[2] == "  rank 1: /tree/rank_1/a.ckpt: why 1"
    assert lines[3] == "No source is known for rank 2 either"


def test_ranks_without_a_source():
    assert "no source for ranks 0-1, 3" in headline(unrecoverable("lost", "missing", "ok", "damaged"))


def test_disagreements_say_what_to_do():
    lines = plan_text(replace(unrecoverable("damaged"), disagreements=("ranks 0 and 2 differ",)), None).splitlines()
    assert lines[1].startswith("UNDECIDED: ")
    assert lines[2] == "  ranks 0 and 2 differ"
    assert "--lost" in lines[3]


def test_actions_are_counted_with_their_bytes():
    text = plan_text(replace(COMPLETE, actions=(COPY,)), None, next_command="recover-ckpt apply /tree")
    assert "RECOVERABLE at step 3_8: 1 slice to copy (2.0 KiB), 3 kept" in text
    assert text.endswith("Next: recover-ckpt apply /tree")


def test_names_from_files_start_no_line_of_their_own():
    plan = replace(
        COMPLETE,
        root="/tree\nCOMPLETE",
        warnings=("\x1b[31m\nCOMPLETE",),
        notes=(Note("a\nCOMPLETE", "b\u2028COMPLETE\u202e"),),
    )
    text = plan_text(plan, None)
    assert sum(line.startswith("COMPLETE") for line in text.splitlines()) == 1
    assert not {"\x1b", "\u202e"} & set(text)


def test_a_large_world_lists_only_ranks_with_work():
    ranks = tuple(RankVerdict(rank, "ok", "keep", "", "a") for rank in range(100))
    text = plan_text(replace(COMPLETE, ranks=ranks, world_size=100), None)
    assert "and 100 ranks that keep their sound slice" in text
    assert len(text.splitlines()) < 13


def test_slices_that_are_set_aside_are_named():
    action = replace(COPY, replaces=FileState(5, 5), set_aside="rank_0/a-3_8.ckpt.outvoted")
    given_up = GivenUpSlice(rank=2, path="rank_2/a_1-1_2.ckpt", state=None, reason="MindFormers would not resume")
    plan = replace(COMPLETE, actions=(action,), set_aside=(given_up,))
    assert "1 that is replaced set aside, 1 slice given up to set aside, 3 kept" in headline(plan)
    text = plan_text(plan, None)
    assert "   0  rank_0/a-3_8.ckpt  rank_0/a-3_8.ckpt.outvoted" in text
    assert "   2  rank_2/a_1-1_2.ckpt  MindFormers would not resume" in text
    alone = replace(plan, actions=())
    assert alone.changes_anything
    assert headline(alone).endswith("every rank has its slice, 1 slice given up to set aside")
