"""A rank's folder of another training is told from one that was lost, put back from a copy, or set aside."""

from types import SimpleNamespace

import pytest

from ms_recover.errors import UsageError
from ms_recover.model.manifest import RunStep
from ms_recover.model.steps import Step
from ms_recover.planning.tree.lineage import RunRecord, find_lineage
from ms_recover.training.deciding.foreign_folder import HeldRuns, check_folders, find_foreign
from tests.support.ranks import on_all, thread_jobs


def run(name, started, before=None, newest=8, **more):
    resumed_from = None if before is None else RunStep(before[0], Step(1, 4), before[1])
    return RunRecord(run_id=name, started=started, resumed_from=resumed_from, newest=Step(1, newest), **more)


def held(*names, aside=()):
    place = frozenset((name, STARTED[name]) for name in names)
    return HeldRuns(in_place=place, anywhere=place | {(name, STARTED[name]) for name in aside})


STARTED = {"a": 1, "b": 2, "c": 3, "x": 9}


def find(records, *ranks):
    lineage = find_lineage(tuple(records))
    return find_foreign(lineage, records, ranks)


def test_a_folder_of_another_training_that_is_further_is_not_settled_for_two_ranks():
    found = find([run("a", 1), run("x", 9, newest=80)], held("a"), held("x"))
    assert (found.ranks, [one.run_id for one in found.runs], found.settled) == ((0,), ["a"], False)


def test_an_older_one_is_not_settled_for_two_ranks_either():
    found = find([run("a", 1), run("x", 9)], held("x"), held("a"))
    assert (found.ranks, found.settled) == ((1,), False)


def test_where_most_ranks_have_the_resumed_run_it_is_a_warning():
    assert find([run("a", 1), run("x", 9)], held("x"), held("x"), held("a")).settled
    assert not find([run("a", 1), run("x", 9)], held("a"), held("a"), held("x")).settled


@pytest.mark.parametrize("empty", [held(), held(aside=["a"])])
def test_a_lost_folder_and_one_with_nothing_in_place_are_ordinary(empty):
    assert find([run("a", 1), run("x", 9)], held("x", aside=["a"]), empty) is None


def test_an_older_copy_is_of_a_run_that_the_present_one_goes_on_from():
    chain = [run("a", 1), run("b", 2, ("a", 1)), run("c", 3, ("b", 2))]
    assert find(chain, held("c"), held("a")) is None
    assert find([chain[0], chain[2]], held("c"), held("a")).settled  # what lay between is gone: it may be


def test_an_abandoned_run_that_goes_on_from_the_same_is_ordinary():
    assert find([run("a", 1), run("b", 2, ("a", 1)), run("c", 3, ("a", 1))], held("c", "a"), held("b")) is None


def test_a_run_that_was_given_up_on_all_ranks_is_ordinary():
    assert find([run("a", 1), run("x", 9)], held("x", "a"), held("a")) is None
    assert find([run("a", 1), run("x", 9)], held("x", aside=["a"]), held("a")) is None


def checked(records, ranks, name=None):
    """Have ranks compare what each sees of its own folder; return what each is told or refused with."""
    jobs, facts = thread_jobs(len(ranks)), SimpleNamespace(lineage=find_lineage(tuple(records), name))

    def work(rank):
        seen = facts if ranks[rank] is not None else None
        own = {} if seen is None else {rank: ranks[rank]}
        return check_folders(jobs[rank], len(ranks), seen, records, own)

    return on_all(len(ranks), work)


def test_all_ranks_are_refused_or_told_alike():
    records = [run("a", 1), run("x", 9, newest=80)]
    refused = checked(records, [held("a"), held("x")])
    assert all(isinstance(one, UsageError) for one in refused)
    assert len({str(one) for one in refused}) == 1
    assert "the folder of rank(s) 0 is of another training" in str(refused[0])
    told = checked(records, [held("x"), held("x"), held("a")])
    assert len(set(told)) == 1
    assert told[0].startswith("the folder of rank(s) 2 is of another training")
    assert checked(records, [held("x"), held("x")]) == [None, None]


def test_where_a_run_is_chosen_nothing_is_asked():
    records = [run("a", 1), run("x", 9, newest=80)]
    assert checked(records, [held("a"), held("x")], "x") == [None, None]


def test_a_rank_without_slices_is_told_nothing():
    assert checked([run("x", 9)], [held("x"), None]) == [None, None]
    assert checked([], [None]) == [None]
