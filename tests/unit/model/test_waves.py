"""The order of actions: nothing is replaced before it was read."""

from ms_recover.model.actions import CopyAction, FileState, Replica
from ms_recover.model.plan import waves_of


def copy(rank, source):
    replica = Replica(source, f"ckpt_dir{source}/a", FileState(1, 1))
    return CopyAction(rank, replica, f"ckpt_dir{rank}/a", None, "")


def ranks(actions):
    return [[action.rank for action in wave] for wave in waves_of(actions)]


def test_actions_that_do_not_touch_each_other_go_together():
    assert ranks([copy(0, 4), copy(1, 5)]) == [[0, 1]]
    assert ranks([]) == []


def test_a_slice_is_read_before_it_is_replaced():
    assert ranks([copy(4, 2), copy(0, 4)]) == [[0], [4]]
    assert ranks([copy(2, 1), copy(4, 2), copy(0, 4)]) == [[0], [4], [2]]


def test_a_slice_that_is_mended_from_itself_waits_for_nobody():
    assert ranks([copy(4, 4), copy(1, 5)]) == [[4, 1]]


def test_actions_that_need_each_other_are_in_the_last_wave():
    assert ranks([copy(0, 4), copy(4, 0), copy(1, 5)]) == [[1], [0, 4]]
