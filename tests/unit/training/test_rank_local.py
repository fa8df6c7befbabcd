"""Ranks find the parameters of which each has its own values, in one gather as long as nothing differs."""

import pytest

from ms_recover.model.steps import Step
from ms_recover.training.deciding.rank_values import RankValues, Value, find_rank_local, rank_local_text
from tests.support.ranks import on_all, thread_jobs

NOTHING, STEP = frozenset(), Step(1, 4)


def compare(groups, digests, known=(), steps=None):
    """Return what each rank finds, and the number of gathers."""
    jobs, gathers = thread_jobs(len(groups)), []
    steps = steps or [STEP] * len(groups)

    def work(rank):
        job = jobs[rank]
        held = {name: Value(4, digest) for name, digest in digests[rank].items()}
        values = RankValues(groups[rank], steps[rank], held, frozenset(known))
        summaries = job.gather(values.summary())
        gathers.append(rank)
        exchange, job_gather = gathers, job.gather

        def counted(numbers, *doing, **named):
            exchange.append(rank)
            return job_gather(numbers)

        object.__setattr__(job, "gather", counted)
        return find_rank_local(job, values, summaries)

    found = on_all(len(groups), work)
    return found, len(gathers) // len(groups)


def held(**changed):
    return {"weight": "w", "bias": "b", "bank": "k", **changed}


def test_equal_values_take_one_gather():
    assert compare([(0, 1)] * 2, [held(), held()]) == ([NOTHING, NOTHING], 1)


def test_what_differs_is_found_by_one_gather_more():
    assert compare([(0, 1)] * 2, [held(), held(bank="other")]) == ([{"bank"}, {"bank"}], 2)


def test_what_is_known_is_not_compared_again():
    values = [held(), held(bank="other")]
    assert compare([(0, 1)] * 2, values, known=["bank"]) == ([{"bank"}, {"bank"}], 1)
    values[1]["bias"] = "other"
    assert compare([(0, 1)] * 2, values, known=["bank"]) == ([{"bank", "bias"}] * 2, 2)


def test_one_odd_rank_of_three_makes_it_rank_local_for_all():
    assert compare([(0, 1, 2)] * 3, [held(), held(), held(bank="odd")]) == ([{"bank"}] * 3, 2)


def test_groups_are_compared_by_themselves():
    """Ranks 0 and 2 differ from 1 and 3 everywhere; only within the first pair the bank differs."""
    pairs = [(0, 2), (1, 3), (0, 2), (1, 3)]
    other = {"part": "p"}
    found, gathers = compare(pairs, [held(), other, held(bank="x"), other])
    assert found == [{"bank"}, NOTHING, {"bank"}, NOTHING]
    assert gathers == 2


def test_groups_of_different_length_take_part_in_one_gather():
    many = {f"p{index}": "v" for index in range(50)}
    found, _ = compare([(0, 1), (0, 1), (2, 3), (2, 3)], [held(), held(bank="x"), many, {**many, "p7": "x"}])
    assert found == [{"bank"}, {"bank"}, {"p7"}, {"p7"}]


def test_a_rank_alone_and_one_that_knows_nothing_compare_nothing():
    assert compare([(0,), (1,)], [held(), held(bank="x")]) == ([NOTHING, NOTHING], 1)
    assert compare([(0, 1)] * 2, [held(), {}]) == ([NOTHING, NOTHING], 1)


def test_values_of_different_steps_are_not_compared():
    values = [held(), held(weight="of the next step")]
    assert compare([(0, 1)] * 2, values, steps=[STEP, Step(1, 5)]) == ([NOTHING, NOTHING], 1)


def test_a_parameter_that_only_one_has_is_rank_local_there():
    assert compare([(0, 1)] * 2, [held(extra="e"), held()]) == ([{"extra"}, NOTHING], 2)


def test_names_of_files_with_odd_bytes_are_compared():
    odd = "bank\udcff"
    assert compare([(0, 1)] * 2, [{odd: "1"}, {odd: "2"}]) == ([{odd}] * 2, 2)


HELD = RankValues((0, 1), STEP, {name: Value(4, "digest") for name in ("weight", "bank", "bn.moving_mean")})


@pytest.mark.parametrize(
    ("new", "first", "said"),
    [
        ({"bank"}, True, ["ranks 0, 1 differ in bank: recorded as rank-local", "rank_local of recover_train"]),
        ({"bank"}, False, ["bank since this save, which were equal before", "a device or its memory is faulty"]),
        ({"bn.moving_mean"}, True, ["batch statistics of ranks 0, 1 differ, as they may: bn.moving_mean"]),
        ({"bank", "bn.moving_mean"}, True, ["differ in bank:", "batch statistics"]),
        ({"weight", "bank", "bn.moving_mean"}, True, ["differ in every parameter", "gradients are averaged"]),
    ],
)
def test_the_sentence_names_what_differs(new, first, said):
    text = rank_local_text(new, HELD, first=first)
    assert all(part in text for part in said), text
