import pytest

from ms_recover.model.steps import Step
from ms_recover.supervision.quiet import LONGEST_PAUSE_S, QuietSteps, StepSight, left_to_the_job

QUIET = 10.0


def sight(step="1_4", size=7, missing=()):
    return StepSight(step=Step.parse(step), unsealed={f"rank_0/net-{step}.ckpt": (1, size)}, missing=missing)


def due(steps, seen, now):
    return [str(step) for step in steps.scanned(seen, now).steps]


@pytest.fixture
def steps():
    return QuietSteps(QUIET)


def test_a_step_is_due_when_it_was_seen_the_same_for_long_enough(steps):
    assert due(steps, [sight()], 0) == []
    assert due(steps, [sight()], 9.9) == []
    assert due(steps, [sight()], 10) == ["1_4"]


def test_a_change_starts_the_wait_again(steps):
    assert due(steps, [sight(size=7)], 0) == []
    assert due(steps, [sight(size=8)], 10) == []
    assert due(steps, [sight(size=8)], 19) == []
    assert due(steps, [sight(size=8)], 20) == ["1_4"]


def test_the_newest_step_comes_first(steps):
    seen = [sight("1_4"), sight("2_1"), sight("1_10")]
    assert due(steps, seen, 0) == []
    assert due(steps, seen, 10) == ["2_1", "1_10", "1_4"]


def test_a_step_that_is_not_complete_is_named_once_and_never_due(steps):
    lacking = sight(missing=("no slice of rank 3",))
    assert steps.scanned([lacking], 0).incomplete == ()
    assert steps.scanned([lacking], 10).incomplete == (lacking,)
    found = steps.scanned([lacking], 20)
    assert (found.steps, found.incomplete) == ((), ())
    assert due(steps, [sight()], 30) == []  # complete now: it has changed
    assert due(steps, [sight()], 40) == ["1_4"]


def test_what_could_not_be_sealed_whole_waits_for_a_change(steps):
    steps.scanned([sight()], 0)
    assert due(steps, [sight()], 10) == ["1_4"]
    steps.sealed(Step(1, 4))
    assert due(steps, [sight()], 1000) == []
    due(steps, [sight(size=8)], 1001)
    assert due(steps, [sight(size=8)], 1011) == ["1_4"]


def test_failures_are_tried_again_more_and_more_rarely(steps):
    steps.scanned([sight()], 0)
    now, pauses = 10.0, []
    for _ in range(9):
        assert due(steps, [sight()], now) == ["1_4"]
        pauses.append(steps.failed(Step(1, 4), now))
        assert due(steps, [sight()], now + pauses[-1] - 0.1) == []
        now += pauses[-1]
    assert pauses[:3] == [10, 20, 40]
    assert pauses[-1] == LONGEST_PAUSE_S


def test_a_quiet_tree_is_not_scanned(steps):
    signature = {"/tree": 5}
    assert steps.looked(signature, 0)
    steps.scanned([], 0)
    assert not steps.looked(signature, 5)
    assert steps.looked(signature, 10)  # once more: a change may fall within the tick of the look
    steps.scanned([], 10)
    assert not any(steps.looked(signature, now) for now in range(11, 10_000))


def test_a_change_is_scanned_and_once_more_when_it_is_over(steps):
    steps.looked({"/tree": 5}, 0)
    steps.scanned([], 0)
    steps.looked({"/tree": 5}, 10)
    steps.scanned([], 10)
    assert steps.looked({"/tree": 6}, 100)
    steps.scanned([], 100)
    assert not steps.looked({"/tree": 6}, 105)
    assert steps.looked({"/tree": 6}, 110)
    steps.scanned([], 110)
    assert not steps.looked({"/tree": 6}, 130)


def test_scans_of_a_tree_that_never_rests_keep_their_distance(steps):
    scans = []
    for now in range(100):
        if steps.looked({"/tree": now}, now):
            steps.scanned([], now)
            scans.append(now)
    assert scans == list(range(0, 100, 10))


def test_a_failed_step_is_looked_at_again_in_a_quiet_tree(steps):
    steps.looked({"/tree": 5}, 0)
    steps.scanned([sight()], 0)
    steps.looked({"/tree": 5}, 10)
    steps.scanned([sight()], 10)
    steps.failed(Step(1, 4), 10)
    assert next(now for now in range(11, 40) if steps.looked({"/tree": 5}, now)) == 20


def test_the_oldest_of_several_iterations_is_left_to_the_job():
    assert left_to_the_job([Step.iteration(10)]) is None
    assert left_to_the_job([Step.iteration(30), Step.iteration(10), Step.iteration(20)]) == Step.iteration(10)
    assert left_to_the_job([Step(1, 4), Step(2, 4)]) is None


def test_a_slice_that_grows_in_place_is_looked_at_though_no_directory_changes(steps):
    steps.looked({"/tree": 5}, 0)
    steps.scanned([sight(size=1)], 0)
    steps.looked({"/tree": 5}, 10)
    assert due(steps, [sight(size=2)], 10) == []
    assert steps.looked({"/tree": 5}, 20)
    assert due(steps, [sight(size=2)], 20) == ["1_4"]
