"""Two runs in one folder, of which no manifest has the name: which one is taken, and how to take the other."""

from dataclasses import replace

import pytest

from ms_recover.errors import UsageError
from ms_recover.model.options import PlanOptions
from tests.support.inventories import OLDER, STEP, slice_file, tree
from tests.support.plans import make_plan

RANKS = range(8)
ALL = {rank: list(RANKS) for rank in RANKS}
PASSED_OVER = "step 2_8 of another run is passed over"
OLDER_THAN = "the slices with the prefix 'alpha' are of an older run than those of 'beta'"


def saved(prefix, mtime, ranks=RANKS, step=STEP):
    return [slice_file(rank, step, prefix=prefix, mtime=mtime) for rank in ranks]


def plan(*slices, **options):
    return make_plan(tree([file for run in slices for file in run], ALL), PlanOptions(**options))


def prefixes(made):
    return {rank.path.rpartition("/")[2].partition("-")[0] for rank in made.ranks}


def test_of_two_jobs_at_the_same_step_the_one_that_is_passed_over_is_named_with_the_option_that_takes_it():
    made = plan(saved("alpha", 1), saved("beta", 2))
    assert (made.step, prefixes(made), made.actions) == (STEP, {"beta"}, ())
    assert made.warnings == (f"{PASSED_OVER}: {OLDER_THAN}; --run alpha takes it",)
    made = plan(saved("alpha", 1), saved("beta", 2), run="alpha")
    assert (made.step, prefixes(made), made.actions, made.warnings) == (STEP, {"alpha"}, (), ())


def test_a_chosen_prefix_takes_no_step_of_another_run():
    made = plan(saved("alpha", 1, step=OLDER), saved("beta", 2), run="alpha")
    assert (made.step, prefixes(made)) == (OLDER, {"alpha"})
    (warning,) = made.warnings
    assert warning.startswith("step 2_8 is passed over: its slices are of the run 'beta'")
    assert warning.endswith("--run beta takes it")


def test_a_step_that_is_named_beside_a_chosen_prefix_is_taken_with_a_warning():
    made = plan(saved("alpha", 1, step=OLDER), saved("beta", 2), run="alpha", step=STEP)
    assert (made.step, prefixes(made)) == (STEP, {"beta"})
    assert "step 2_8 is not of the present run: its slices are of the run 'beta'" in made.warnings[0]


def test_an_older_step_of_another_run_is_named_with_the_option_that_takes_it():
    made = plan(saved("alpha", 1), saved("beta", 2, step=OLDER))
    assert (made.step, prefixes(made)) == (OLDER, {"beta"})
    assert made.warnings[0].endswith("are of an older run than those of 'beta'; --run alpha takes it")


def test_jobs_whose_times_overlap_are_taken_by_their_prefix():
    jobs = [replace(file, mtime_ns=file.rank) for prefix in ("alpha", "beta") for file in saved(prefix, 1)]
    refused = plan(jobs)
    assert not refused.recoverable
    assert "--run alpha or --run beta" in refused.ranks[0].reason
    for prefix in ("alpha", "beta"):
        assert prefixes(plan(jobs, run=prefix)) == {prefix}


def test_a_rerun_is_taken_by_its_whole_prefix():
    made = plan(saved("job", 1), saved("job_1", 2), run="job_1")
    assert (prefixes(made), made.actions) == ({"job_1"}, ())
    assert prefixes(plan(saved("job", 1), saved("job_1", 2), run="job")) == {"job"}


def test_ranks_of_one_rerun_may_bear_different_numbers():
    made = plan(saved("job_1", 1, range(4)), saved("job_2", 1, range(4, 8)), saved("other", 2), run="job")
    assert (prefixes(made), made.actions) == ({"job_1", "job_2"}, ())


def test_newest_prefers_the_run_that_more_ranks_have():
    made = plan(saved("job", 1), saved("job_1", 9, [1]), newest=True)
    assert (prefixes(made), made.actions) == ({"job"}, ())
    why = "rank 1 has slices with the prefix 'job_1' as well, written after those that are taken"
    assert made.warnings == (f"{PASSED_OVER}: {why}; --run job_1 takes it",)


def test_a_run_of_which_one_rank_has_one_slice_is_taken_by_its_name_alone_and_with_a_warning():
    made = plan(saved("job", 1), saved("job_1", 9, [1]), run="job_1")
    assert prefixes(made) == {"job_1"}
    assert [action.rank for action in made.actions] == [0, 2, 3, 4, 5, 6, 7]
    assert made.warnings == (
        "only rank 1 has this run, with ckpt_dir1/job_1-2_8.ckpt; structure only: no replica and no manifest proves it",
    )


def test_a_newer_step_of_a_run_that_one_rank_has_is_warned_of():
    made = plan(saved("job", 1, step=OLDER), saved("job_1", 9, [1]))
    assert (made.step, len(made.actions)) == (STEP, 7)
    assert made.warnings[0].startswith("only rank 1 has this run, with ckpt_dir1/job_1-2_8.ckpt; structure only")


def test_a_prefix_that_is_not_there_is_refused_with_those_that_are():
    listed = (
        r"no run 'gamma' here; there is alpha \(by the prefix of its slices\); beta \(by the prefix of its slices\)"
    )
    with pytest.raises(UsageError, match=listed):
        plan(saved("alpha", 1), saved("beta", 2), run="gamma")
