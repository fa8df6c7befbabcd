"""The judge of random programs: it sees what is silent, and what a message names that there is not."""

from dataclasses import replace

import pytest

from tests.support import random_programs as programs
from tests.support.program_causes import TOUCHED, Seen, causes_of, verdict_of
from tests.support.program_summary import problems_of
from tests.support.random_programs import IN_SAVES, draw_program

PROGRAMS = [draw_program(number) for number in range(2000)]
CAUSED = [(one, cause) for one in PROGRAMS for cause in causes_of(one) if cause.effect != "noted"]
FREE = [one for one in PROGRAMS if not causes_of(one)]
STRANGE = "the moon is full"


def test_programs_are_drawn_the_same_each_time():
    assert [one.digest for one in PROGRAMS] == [draw_program(one.number).digest for one in PROGRAMS]
    assert len({one.digest for one in PROGRAMS}) == len(PROGRAMS)


@pytest.mark.parametrize(
    ("kinds", "taken"),
    [
        (programs.TRAINERS, {one.trainer for one in PROGRAMS}),
        (programs.MODES, {one.mode for one in PROGRAMS}),
        (programs.NETWORKS, {one.network for one in PROGRAMS}),
        (programs.OPTIMIZERS, {one.optimizer for one in PROGRAMS}),
        (programs.SCHEDULES, {one.schedule for one in PROGRAMS}),
        (programs.STEPS, {one.step for one in PROGRAMS}),
        (programs.LEVELS, {one.level for one in PROGRAMS}),
        (programs.SOURCES, {one.source for one in PROGRAMS}),
        (programs.SHUFFLES, {one.shuffle for one in PROGRAMS}),
        (programs.OPERATIONS, {name for one in PROGRAMS for name in one.operations}),
        (programs.PLACES, {one.place for one in PROGRAMS} - {"none"}),
        (programs.CALLBACKS, {name for one in PROGRAMS for name in one.callbacks} - {"save"}),
        (
            {**programs.FAILURES, **programs.NETWORK_FAILURES, **programs.KILLS},
            {kind for one in PROGRAMS for kind, _ in one.crashes},
        ),
        (programs.RETRIES, {one.retry for one in PROGRAMS}),
        (programs.CHANGES, {one.change for one in PROGRAMS}),
        (programs.NEIGHBOURS, {one.neighbour for one in PROGRAMS}),
        (programs.PREFIXES, {one.prefix for one in PROGRAMS}),
    ],
)
def test_everything_is_drawn(kinds, taken):
    assert set(kinds) == taken


def test_most_programs_have_nothing_that_keeps_them_from_going_on_exactly():
    caused = {one.number for one, _ in CAUSED}
    assert len(PROGRAMS) // 5 < len(caused) < len(PROGRAMS) // 2
    assert len(FREE) > len(PROGRAMS) // 4


def test_crashes_lie_within_the_training_and_in_order():
    for one in PROGRAMS:
        times = [at for _, at in one.crashes]
        assert times, one
        assert times == sorted(times) or any(kind in IN_SAVES for kind, _ in one.crashes), one
        assert 0 < times[0] <= times[-1] < one.trained or one.trained == 1, one


def test_what_differs_without_a_word_is_silent():
    for one in PROGRAMS:
        assert verdict_of(one, Seen(equal=False, trained=True)).kind == "silent"
        assert verdict_of(one, Seen(equal=False, trained=True, warnings=(STRANGE,))).kind == "silent"


def test_what_is_equal_is_exact_and_a_warning_of_nothing_undeserved():
    for one in PROGRAMS:
        assert verdict_of(one, Seen(equal=True, trained=True)).kind == "exact"
        found = verdict_of(one, Seen(equal=True, trained=True, warnings=(STRANGE,)))
        assert (found.kind, found.undeserved) == ("exact", (STRANGE,))


@pytest.mark.parametrize("lost", ["went back: trained step 3 with a slice of step 4", f"{TOUCHED}: a"])
def test_what_is_lost_in_silence_is_silent_though_it_is_equal(lost):
    for one in FREE:
        assert verdict_of(one, Seen(equal=True, trained=True, lost=lost)).kind == "silent"


def test_a_word_on_samples_does_not_excuse_other_weights():
    for one, cause in CAUSED:
        if cause.effect == "differs" and cause.first != "either":
            other = "batch" if cause.first == "values" else "values"
            rest = [it for it in causes_of(one) if it.first != cause.first]
            found = verdict_of(one, Seen(equal=False, trained=True, first=other, warnings=(cause.name,)))
            assert found.kind == "silent" or any(it.is_named(cause.name) for it in rest)


def test_what_is_not_the_same_twice_by_itself_is_not_judged():
    """Whether it differs behind a resume or before; but a dataset that nothing seeds must be named at a resume."""
    for one in PROGRAMS:
        names = {cause.name for cause in causes_of(one)}
        stops = any(cause.effect == "stops" for cause in causes_of(one))
        for seen in (Seen(equal=False, trained=True), Seen(equal=False, repeatable=False, resumed=False)):
            found = verdict_of(one, replace(seen, repeats=False))
            must_say = seen.resumed and ("unseeded" in names or stops)
            assert (found.kind == "silent") == must_say, one
            assert verdict_of(one, replace(seen, lost="went back")).kind == "silent" or not seen.resumed
            assert verdict_of(one, replace(seen, repeats=False, failure="died")).kind == "silent"


def test_only_the_loss_function_of_a_loop_that_no_saver_is_given_cannot_be_seen():
    """As docs/resume.md says; what differs elsewhere, or before the change, or was given, is silent."""
    of_loops = [draw_program(number) for number in range(40_000)]
    of_loops = [one for one in of_loops if one.trainer == "loop" and one.change == "loss" and len(causes_of(one)) < 3]
    assert {one.gives_loss for one in of_loops} == {True, False}
    for one in of_loops:
        seen = Seen(equal=False, trained=True, first="loss")
        assert verdict_of(one, seen).kind == ("silent" if one.gives_loss else "not judged")
        for other in (replace(seen, earlier=True), replace(seen, first="batch"), replace(seen, lost="went back")):
            assert verdict_of(one, other).kind == "silent"
    assert not any(cause.effect == "unseen" for one, cause in CAUSED if one.change != "loss" or one.trainer != "loop")


def test_a_failure_is_silent_unless_a_message_named_what_the_training_begins_anew_with():
    left = [one for one, cause in CAUSED if cause.effect == "fails"]
    assert left
    for one in PROGRAMS:
        failed = Seen(equal=False, failure="RuntimeError: the index is out of range", trained=True)
        assert verdict_of(one, failed).kind == "silent"
        failed = replace(failed, warnings=("the process of an attempt that saved nothing",))
        assert verdict_of(one, failed).kind == ("warned" if one in left else "silent")


def test_a_refusal_names_what_there_is_and_trains_nothing():
    for one in PROGRAMS:
        assert verdict_of(one, Seen(equal=False, refusal=STRANGE)).undeserved == (STRANGE,)
        assert verdict_of(one, Seen(equal=False, refusal=STRANGE, trained=True)).kind == "silent"
    for one, cause in CAUSED:
        text = f"{cause.name}: seed, sample, steps, parameter, {cause.says.split('|')[0]}"
        if cause.is_named(text):
            found = verdict_of(one, Seen(equal=False, refusal=text))
            assert (found.kind, found.undeserved) == ("refused", ())


def test_without_a_slice_only_the_refusal_that_says_so_is_not_judged():
    nothing = "no rank has a slice under /tree: name the folder, or train from the start with fresh='start'"
    gan = "parameters: two are named global_step, so that a slice could not hold both; update_parameters_name"
    for one in PROGRAMS:
        assert verdict_of(one, Seen(equal=False, refusal=nothing, sound=False)).kind == "not judged"
        found = verdict_of(one, Seen(equal=False, refusal=gan, sound=False))
        assert found.kind == "refused"
        assert found.undeserved == () or one.network != "gan" or one.renames


def test_a_refusal_does_not_excuse_what_it_did_to_others():
    for one, cause in CAUSED:
        assert verdict_of(one, Seen(equal=False, refusal=cause.name, lost=f"{TOUCHED}: a")).kind == "silent"


def test_an_exact_program_of_before_may_not_be_refused():
    before = {"1": "a", "2": "b", "3": "c"}
    found = [
        {"number": 1, "digest": "a", "verdict": "exact", "why": "", "undeserved": ()},
        {"number": 2, "digest": "b", "verdict": "refused", "why": "seed", "undeserved": ()},
        {"number": 3, "digest": "other", "verdict": "exact", "why": "", "undeserved": ()},
        {"number": 4, "digest": "d", "verdict": "silent", "why": "buffer", "undeserved": ()},
    ]
    assert [line.split(":")[0] for line in problems_of(found, before)] == [
        "SILENT",
        "NO LONGER EXACT",
        "ANOTHER PROGRAM",
    ]


def test_a_change_that_no_slice_could_show_is_not_judged():
    for one in PROGRAMS:
        stops = any(cause.effect == "stops" for cause in causes_of(one))
        if one.change in ("rate", "level", "loss", "optimizer") and not stops:
            anew = Seen(equal=False, trained=True, first="values", sound=False)
            assert verdict_of(one, anew).kind == "not judged", one
            assert verdict_of(one, replace(anew, lost="went back")).kind == "silent"
