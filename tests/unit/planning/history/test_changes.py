"""Parameters that stopped changing."""

import pytest

from ms_recover.model.steps import Step
from tests.support.histories import NAMES, course, history, value


def stop(name, since, ranks=range(8), base=value):
    """Return the values of a training in which a parameter keeps the value of a step."""

    def stopped(rank, step, parameter):
        if parameter == name and rank in ranks and step.step > since:
            step = Step(1, since)
        return base(rank, step, parameter)

    return stopped


@pytest.mark.parametrize("since", [2, 12, 18])
def test_a_parameter_that_stopped_is_named_with_the_first_step_of_its_last_value(since):
    found = history(course(stop("column", since)))
    (one,) = found.stopped
    assert (one.parameter, one.since, one.steps) == ("column", Step(1, since), 21 - since)
    assert (one.ranks, one.everywhere) == (tuple(range(8)), True)
    assert found.frozen == ()
    assert found.clean == Step(1, 20)


def test_one_equal_pair_of_steps_is_no_stop():
    assert history(course(stop("column", 19))).stopped == ()


def test_a_parameter_that_never_changed_is_frozen_unless_the_optimizer_has_a_state_for_it():
    assert history(course(stop("column", 1))).frozen == ("column",)
    found = history(course(stop("norm", 1)))
    assert found.frozen == ()
    assert [(one.parameter, one.since) for one in found.stopped] == [("norm", Step(1, 1))]


def test_a_parameter_that_stopped_on_some_ranks_is_named_with_them():
    found = history(course(stop("column", 9, (1, 5))))
    (one,) = found.stopped
    assert (one.ranks, one.everywhere) == ((1, 5), False)
    assert found.disagreements == ()


def test_three_steps_say_something():
    found = history(course(stop("norm", 1, base=stop("column", 1)), steps=(1, 2, 3)))
    assert found.frozen == ("column",)
    assert [(one.parameter, one.since.step, one.steps) for one in found.stopped] == [("norm", 1, 3)]


def test_a_parameter_that_changes_on_some_ranks_is_not_frozen_on_the_others():
    found = history(course(stop("column", 1, (1, 5))))
    (one,) = found.stopped
    assert (one.parameter, one.since.step, one.ranks, one.everywhere) == ("column", 1, (1, 5), False)
    assert found.frozen == ()


def test_a_parameter_that_stopped_later_on_some_ranks_is_not_frozen_on_the_others():
    found = history(course(stop("column", 1, (1, 5), stop("column", 9))))
    assert [(one.since.step, one.ranks) for one in found.stopped] == [(1, (1, 5)), (9, (0, 2, 3, 4, 6, 7))]
    assert found.frozen == ()


def test_a_parameter_that_the_newest_step_does_not_list_does_not_stop():
    found = history([*course(stop("rate", 1), range(1, 9)), *course(steps=(9,), names=NAMES[:3])])
    assert (found.stopped, found.frozen) == ((), ())


def test_a_parameter_that_is_listed_from_some_step_on_was_not_there_before():
    found = history([*course(steps=(1, 2), names=NAMES[:3]), *course(stop("rate", 1), range(3, 9))])
    assert [(one.parameter, one.since.step, one.steps) for one in found.stopped] == [("rate", 3, 6)]
    assert found.frozen == ()


def test_two_steps_say_nothing():
    found = history(course(stop("column", 1), steps=(1, 2)))
    assert (found.stopped, found.frozen) == ((), ())
