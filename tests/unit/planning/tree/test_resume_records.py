"""MindFormers' records: unhealthy steps, the run that every meta.json names, and what is written after a recovery."""

from dataclasses import replace

import pytest

from ms_recover.model.inventory import MetaFile, RankPath, UnhealthySlice
from ms_recover.model.plan import MetaWrite, RankVerdict
from ms_recover.model.steps import Step
from ms_recover.planning.tree.prefixes import base_of
from ms_recover.planning.tree.resume_records import (
    NamedRun,
    find_named_run,
    plan_meta_files,
    why_names_differ,
    why_unhealthy,
)
from ms_recover.planning.tree.runs import OlderRuns, Run, find_runs
from tests.support.inventories import OLDER, STEP, slice_file

PLACE = RankPath(("rank_", "/meta.json"))
SICK = (UnhealthySlice(prefix="CKP_1", step=STEP, path="health_ckpts.json"),)


def meta(rank, step=STEP, prefix="CKP", **changes):
    file = f"{prefix}_rank_{rank}-{step}.ckpt"
    return MetaFile(
        **{"rank": rank, "path": PLACE.of(rank), "place": PLACE, "step": step, "file": file, "prefix": prefix} | changes
    )


def verdict(rank, step=STEP, name="CKP_rank_{rank}-{step}.ckpt"):
    return RankVerdict(rank, "ok", "keep", "", f"rank_{rank}/{name.format(rank=rank, step=step)}")


def test_a_step_is_unhealthy_by_the_prefix_that_most_of_its_slices_have():
    rerun = [slice_file(rank, prefix="CKP_1") for rank in (1, 2)]
    assert why_unhealthy(rerun, SICK, STEP) == "marked unhealthy in health_ckpts.json"
    assert why_unhealthy([*rerun, slice_file(3, prefix="CKP")], SICK, STEP) is not None
    assert why_unhealthy(rerun, SICK, OLDER) is None
    assert why_unhealthy([slice_file(1, prefix="CKP")], SICK, STEP) is None
    assert why_unhealthy([], SICK, STEP) is None
    assert why_unhealthy(rerun, (), STEP) is None
    tie = [slice_file(0, prefix="CKP"), slice_file(1, prefix="CKP_1")]
    assert why_unhealthy(tie, SICK, STEP) is None  # of equals the first name
    assert why_unhealthy(tie, [replace(SICK[0], prefix="CKP", path="a.json")], STEP) == "marked unhealthy in a.json"


def test_every_rank_gets_a_meta_json_that_names_its_slice_of_the_planned_step():
    metas = [meta(0), meta(1, OLDER), meta(2, problem="cut", step=None, file=""), meta(4, file="CKP_rank_0-2_8.ckpt")]
    writes = plan_meta_files(metas, [verdict(rank) for rank in range(5)], STEP)
    assert writes == tuple(
        MetaWrite(
            rank=rank, target=f"rank_{rank}/meta.json", file=f"CKP_rank_{rank}-2_8.ckpt", replaces=there, reason=reason
        )
        for rank, there, reason in [
            (1, "CKP_rank_1-1_8.ckpt", "names the older step 1_8"),
            (2, None, "cut"),
            (3, None, "missing"),
            (4, "CKP_rank_0-2_8.ckpt", "names CKP_rank_0-2_8.ckpt"),
        ]
    )
    back = plan_meta_files([meta(0)], [verdict(0, OLDER)], OLDER)
    assert [write.reason for write in back] == ["names step 2_8, training resumes from 1_8"]


@pytest.mark.parametrize(
    ("there", "why"),
    [
        ({}, None),
        ({"file": "CKP_rank_0-2_8.safetensors"}, "names CKP_rank_0-2_8.safetensors"),
        ({"file": "other-2_8.ckpt"}, "names other-2_8.ckpt"),
        ({"step": OLDER, "file": "CKP_rank_0-1_8.ckpt"}, "names the older step 1_8"),
        ({"step": Step(3, 8), "file": "CKP_rank_0-3_8.ckpt"}, "names step 3_8, training resumes from 2_8"),
        ({"step": OLDER, "file": "other-1_8.ckpt"}, "names other-1_8.ckpt"),
        ({"step": Step(3, 8), "file": "other-3_8.ckpt"}, "names other-3_8.ckpt"),
        ({"step": OLDER}, "names the older step 1_8"),
    ],
    ids=["right", "another format", "another name", "older", "newer", "older name", "newer name", "older record"],
)
def test_why_a_meta_json_is_written_again(there, why):
    assert [one.reason for one in plan_meta_files([meta(0, **there)], [verdict(0)], STEP)] == ([why] if why else [])


def test_nothing_is_written_where_no_rank_has_one_or_the_slice_lies_elsewhere():
    assert plan_meta_files([], [verdict(0)], STEP) == ()
    elsewhere = RankVerdict(1, "ok", "keep", "", "ckpt_dir1/CKP_rank_1-2_8.ckpt")
    lost = RankVerdict(2, "missing", "unrecoverable", "")
    assert plan_meta_files([meta(0)], [verdict(0), elsewhere, lost], STEP) == ()
    single = MetaFile(rank=0, path="meta.json", place=RankPath(("meta.json",)))
    assert plan_meta_files([single], [verdict(0)], STEP) == ()


def test_names_that_differ_between_ranks_are_warned_of():
    rerun = "CKP_rank_{rank}_1-{step}.ckpt"
    alike = [verdict(rank, name=rerun) for rank in range(3)]
    assert why_names_differ([meta(0)], alike, STEP) is None
    text = why_names_differ([meta(0)], [*alike, verdict(3)], STEP)
    assert "most are CKP_rank_{rank}_1-2_8.ckpt, but rank 3: CKP_rank_{rank}-2_8.ckpt" in text
    assert why_names_differ([], [*alike, verdict(3)], STEP) is None


# --- the run that every meta.json names -----------------------------------------------------------------------------


def test_the_prefix_in_most_meta_json_names_the_last_run():
    named = [meta(rank, prefix="CKP_1") for rank in (0, 1)]
    last = NamedRun(prefix="CKP_1", until=STEP)
    assert find_named_run([*named, meta(2, step=None, prefix="")]) == last
    assert find_named_run([*named, meta(2, prefix="CKP")]) == last
    assert find_named_run([*named, meta(2, prefix="CKP"), meta(3, prefix="CKP")]) is None
    assert find_named_run([]) is None
    others = [meta(rank, file="other_rank_9-2_8.ckpt", prefix="") for rank in (1, 2)]
    assert find_named_run([named[0], *others]) == last  # those that name no slice of the rank are no witness


@pytest.mark.parametrize(
    ("prefixes", "step", "abandoned"),
    [
        (["CKP", "CKP"], Step(3, 8), True),
        (["CKP", "CKP_1"], Step(3, 8), False),
        (["CKP"], STEP, False),  # it may have been resumed from
        (["CKP_2"], Step(3, 8), False),  # a later one, whose meta.json was not written
        (["other"], Step(3, 8), False),
        ([], Step(3, 8), False),
    ],
)
def test_newer_steps_of_an_earlier_run_are_abandoned(prefixes, step, abandoned):
    run = NamedRun(prefix="CKP_1", until=STEP)
    why = run.why_abandoned([slice_file(rank, step, prefix=prefix) for rank, prefix in enumerate(prefixes)], step)
    assert (why is not None) == abandoned
    assert why is None or "meta.json names the later run 'CKP_1', up to 2_8" in why


@pytest.mark.parametrize(
    ("since", "trained", "step", "abandoned"),
    [
        (14, 14, OLDER, True),
        (14, 15, OLDER, True),
        (14, 13, Step(3, 8), False),  # the named run may have been resumed from it
        (14, None, Step(3, 8), True),
        (14, None, STEP, False),
        (None, 15, Step(3, 8), True),
        (None, 15, STEP, False),
        (0, 0, STEP, True),
    ],
)
def test_positions_tell_what_an_earlier_run_trained_behind_the_begin_of_the_named_one(since, trained, step, abandoned):
    """Without both of them, names tell it."""
    run = NamedRun(prefix="CKP_1", until=STEP, since=since)
    assert (run.why_abandoned([slice_file(0, step, prefix="CKP")], step, trained) is not None) == abandoned


@pytest.mark.parametrize(
    ("prefixes", "option"),
    [
        (["CKP", "CKP_2"], "'CKP', 'CKP_2': meta.json names the later run 'CKP_3'"),
        (["CKP", "CKP_2"], "; --run CKP or --run CKP_2 takes it"),
        (["CKP_2", "CKP_3"], None),
        (["CKP_2", "CKP_4"], None),
        (["CKP_2", "other"], None),
    ],
)
def test_a_step_is_abandoned_where_all_its_slices_are_of_earlier_runs(prefixes, option):
    run = NamedRun(prefix="CKP_3", until=STEP)
    late = Step(3, 8)
    why = run.why_abandoned([slice_file(rank, late, prefix=prefix) for rank, prefix in enumerate(prefixes)], late)
    assert option in why if option else why is None


def test_ranks_with_slices_of_two_reruns_are_settled_by_the_named_one():
    both = [slice_file(rank, prefix=prefix) for rank in range(2) for prefix in ("CKP", "CKP_1")]
    present = OlderRuns(present=frozenset({"CKP"}), reasons={})
    assert find_runs(both, present, newest=False, named="CKP_1") == (Run(base="CKP", prefix="CKP_1"),)
    assert find_runs(both, present, newest=False, named="CKP_2") == (Run(base="CKP"),)
    one_each = [slice_file(0, prefix="CKP"), slice_file(1, prefix="CKP_1")]
    assert find_runs(one_each, present, newest=False, named="CKP_1") == (Run(base="CKP"),)


@pytest.mark.parametrize(
    ("prefix", "base"),
    [
        ("CKP_1-network", "CKP-network"),
        ("CKP-network", "CKP-network"),
        ("CKP_12-trainable_params", "CKP-trainable_params"),
        ("CKP-net", "CKP-net"),
    ],
)
def test_the_rerun_of_slices_without_the_optimizer_stands_before_their_mark(prefix, base):
    assert base_of(prefix) == base
