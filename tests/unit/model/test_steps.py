from __future__ import annotations

import pytest

from ms_recover.model.inventory import RankPath
from ms_recover.model.steps import Step


@pytest.mark.parametrize("text", ["2_77", "0_0", "200", "0"])
def test_a_step_is_read_as_it_is_written(text):
    assert str(Step.parse(text)) == text


def test_an_iteration_is_no_step_of_an_epoch():
    assert Step.parse("200") == Step.iteration(200) != Step(0, 200)
    assert Step.parse("200").is_iteration
    assert not Step.parse("1_200").is_iteration


def test_iterations_are_ordered_by_their_number():
    assert sorted(map(Step.iteration, (1000, 99, 200))) == [Step.iteration(n) for n in (99, 200, 1000)]


def test_a_path_pads_the_rank_and_may_number_it_otherwise():
    place = RankPath(("a-model-", "-0000004.safetensors"), digits=7)
    assert place.of(3) == "a-model-0000003-0000004.safetensors"
    assert RankPath(place.parts, 7, (0, 2, 1)).of(1) == "a-model-0000002-0000004.safetensors"
