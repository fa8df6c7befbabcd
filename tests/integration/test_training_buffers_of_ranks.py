"""Buffers of two data-parallel ranks: kept, taken from an equal rank, or named; a refusal is the same on both."""

import json

import pytest

from tests.support.msrun import run_ranks
from tests.support.sample import REPOSITORY

pytestmark = pytest.mark.mindspore
pytest.importorskip("mindspore")

RANKS = range(2)


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    folder = tmp_path_factory.mktemp("buffers")
    code, text = run_ranks("buffers_training.py", 2, folder, folder, GLOG_v="3", PYTHONPATH=str(REPOSITORY))
    written = [folder / f"seen{rank}.json" for rank in RANKS]
    assert all(one.exists() for one in written), (code, text)
    return [json.loads(one.read_text()) for one in written]


def later(losses, step=6):
    return {number: loss for number, loss in losses.items() if int(number) > step}


def about_buffers(said):
    return [text for text in said if "these buffers are" in text]


def test_manifests_name_the_buffers_that_are_a_ranks_own(seen):
    assert [found["own"] for found in seen] == [[["mean"]] * 3] * 2
    assert any("differ in buffer mean" in text for text in seen[0]["whole"]["said"])


def test_buffers_of_ranks_go_on_where_their_state_lives(seen):
    for found in seen:
        assert found["kept"]["failure"] == ""
        assert found["kept"]["losses"] == later(found["whole"]["losses"])
        assert found["kept"]["buffers"] == found["whole"]["buffers"]
        assert about_buffers(found["kept"]["said"]) == []


def test_a_rank_whose_state_is_lost_takes_equal_buffers_from_another_and_names_its_own(seen):
    for found in seen:
        assert found["state"]["losses"] == later(found["whole"]["losses"])
        assert found["state"]["buffers"]["turns"] == found["whole"]["buffers"]["turns"]
    assert seen[0]["state"]["buffers"] == seen[0]["whole"]["buffers"]
    said = [text for text in about_buffers(seen[1]["state"]["said"]) if "lost, and no rank has equal ones" in text]
    assert len(said) == 1
    assert said[0].endswith(": mean")


def test_a_rank_whose_slice_is_lost_goes_on_with_the_buffers_of_the_other_and_names_its_own(seen):
    for found in seen:
        assert found["slice"]["failure"] == ""
        assert found["slice"]["losses"] == later(found["whole"]["losses"])
        assert found["slice"]["buffers"]["turns"] == found["whole"]["buffers"]["turns"]
    said = [text for text in about_buffers(seen[1]["slice"]["said"]) if "this rank's own and lost" in text]
    assert len(said) == 1
    assert said[0].endswith(": mean")


def test_what_a_callback_of_one_rank_writes_is_refused_on_both(seen):
    """With the parameter and the callback on each, in time, and nothing is trained or changed."""
    said = "net.0.bias would not be what was resumed: a callback writes it in on_train_begin (OnRank1), behind"
    for found in (rank["refused"] for rank in seen):
        assert said in found["failure"]
        assert found["seconds"] < 30
        assert found["losses"] == {}
        assert found["same"]
    assert seen[1]["refused"]["failure"].startswith("InputError: rank 1, ")
    assert "comparing what was loaded failed on rank(s) 1: InputError: rank 1, " in seen[0]["refused"]["failure"]


def test_callbacks_without_a_state_are_named_on_rank_0_alone(seen):
    for run in ("whole", "kept"):
        said = [[text for text in found[run]["said"] if "what these callbacks remember" in text] for found in seen]
        assert [len(one) for one in said] == [1, 0], run
        assert "begins them anew: Losses; give them state_dict()" in said[0][0]
