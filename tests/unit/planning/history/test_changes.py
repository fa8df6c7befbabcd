"""Parameters that stopped changing."""

import pytest

from ms_recover.model.steps import Step
from tests.support.histories import course, history, value


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


def test_two_steps_say_nothing():
    found = history(course(stop("column", 1), steps=(1, 2)))
    assert (found.stopped, found.frozen) == ((), ())
