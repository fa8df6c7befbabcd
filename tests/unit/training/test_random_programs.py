"""The programs that are drawn, and the verdicts on them."""

from dataclasses import replace

import pytest

from tests.support.random_programs import (
    CALLBACKS,
    CHANGES,
    CRASHES,
    NETWORKS,
    OPERATIONS,
    OPTIMIZERS,
    REASONS,
    RETRIES,
    SCHEDULES,
    SHUFFLES,
    SOURCES,
    STEPS,
    draw_program,
    reasons_of,
    verdict_of,
)

DRAWN = [draw_program(number) for number in range(400)]
PLAIN = next(program for program in DRAWN if not reasons_of(program))


def test_a_number_stands_for_one_program():
    assert [draw_program(number) for number in range(50)] == DRAWN[:50]
    assert len(set(DRAWN)) == len(DRAWN)


@pytest.mark.parametrize(
    ("kinds", "taken"),
    [
        (NETWORKS, {program.network for program in DRAWN}),
        (OPTIMIZERS, {program.optimizer for program in DRAWN}),
        (SCHEDULES, {program.schedule for program in DRAWN}),
        (STEPS, {program.step for program in DRAWN}),
        (SOURCES, {program.source for program in DRAWN}),
        (SHUFFLES, {program.shuffle for program in DRAWN}),
        (OPERATIONS, {name for program in DRAWN for name in program.operations}),
        (CALLBACKS, {name for program in DRAWN for name in program.callbacks} - {"save"}),
        (CRASHES, {kind for program in DRAWN for kind, _ in program.crashes}),
        (RETRIES, {program.retry for program in DRAWN}),
        (("none", *CHANGES), {program.change for program in DRAWN}),
        (("graph", "pynative"), {program.mode for program in DRAWN}),
        (("ckpt", "safetensors"), {program.format for program in DRAWN}),
    ],
)
def test_everything_is_drawn(kinds, taken):
    assert set(kinds) == taken


def test_programs_crash_within_the_training_and_behind_a_save():
    for program in DRAWN:
        assert program.crashes, program
        for _, step in program.crashes:
            assert (program.save_steps or program.epoch_steps) < step < program.steps, program
        assert program.callbacks.count("save") == 1


def test_many_programs_have_to_be_equal():
    assert len([program for program in DRAWN if not reasons_of(program)]) > len(DRAWN) / 3


def verdict(program, *, equal=False, refusal=None, warnings=(), trained=True):
    return verdict_of(program, equal=equal, refusal=refusal, warnings=warnings, trained=trained)


def test_without_a_reason_only_equal_is_allowed():
    assert verdict(PLAIN, equal=True) == ("equal", True)
    assert verdict(PLAIN, warnings=("the ranks that hold the same slice are unknown",)) == ("SILENT", False)
    assert verdict(PLAIN, refusal="a dataset of 8 steps", trained=False)[1] is False


def test_a_warning_has_to_name_the_reason():
    program = replace(PLAIN, network="dropout")
    assert verdict(program, warnings=("rank 0: something else",)) == ("SILENT", False)
    assert verdict(program, warnings=("rank 0: Dropout starts anew",)) == ("warned: dropout", True)


def test_another_dataset_is_refused_before_anything_is_trained():
    program = replace(PLAIN, change="batch halved")
    assert verdict(program, refusal="8 steps instead of 4", trained=False) == ("refused: batch halved", True)
    assert verdict(program, refusal="8 steps instead of 4", trained=True)[1] is False
    assert verdict(program, warnings=("8 steps instead of 4",))[1] is False
    assert verdict(program, equal=True)[1] is False
    assert verdict(program, refusal="out of memory", trained=False)[1] is False


def test_every_reason_belongs_to_something_that_is_drawn():
    known = {*NETWORKS, *SHUFFLES, *SOURCES, *OPERATIONS, *CALLBACKS, *CHANGES}
    assert known >= REASONS.keys()
