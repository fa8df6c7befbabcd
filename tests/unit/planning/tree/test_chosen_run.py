"""The chosen run alone says how many ranks there are, and which of them hold the same slice."""

import pytest

from ms_recover import api
from ms_recover.errors import ContradictionError, UsageError
from ms_recover.model.options import PlanOptions
from ms_recover.model.steps import Step
from tests.support.sized_runs import add, two_then_one


@pytest.fixture(params=[True, False], ids=["set aside", "in place"])
def root(tmp_path, request):
    two_then_one(tmp_path, aside=request.param)
    return tmp_path


def test_the_run_of_two_ranks_is_planned_for_both(root):
    plan = api.plan(api.scan(root), PlanOptions(run="A"))
    assert plan.step == Step(1, 4)
    assert [(one.rank, one.verdict in ("keep", "copy")) for one in plan.ranks] == [(0, True), (1, True)]
    assert api.plan(api.scan(root), PlanOptions(run="A", world_size=2)).ranks == plan.ranks


def test_the_run_of_one_rank_is_planned_for_it_alone(root):
    for size in (None, 1):
        plan = api.plan(api.scan(root), PlanOptions(run="B", world_size=size))
        assert (plan.step, [one.rank for one in plan.ranks]) == (Step(1, 3), [0])


def test_without_a_choice_the_error_names_the_runs_and_their_sizes(root):
    for size, kind in ((None, ContradictionError), (1, UsageError)):
        with pytest.raises(kind) as said:
            api.plan(api.scan(root), PlanOptions(world_size=size))
        for text in ("run B, ", "of 1 rank(s), up to step 1_3", "run A, ", "of 2 rank(s), up to step 1_4", "run="):
            assert text in str(said.value)


def test_a_list_of_the_chosen_run_stays_evidence(tmp_path):
    add(tmp_path, "A", 1000, 0, 2, "1_2")
    add(tmp_path, "C", 3000, 1, 2, "1_3")
    plan = api.plan(api.scan(tmp_path), PlanOptions(run="A"))
    assert not [note for note in plan.notes if "another run wrote it" in str(note)]
