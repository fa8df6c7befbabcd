"""What belongs to one rank stays its own in loops too: shards and `extra`; a shard without a reader is named."""

import json

import pytest

from tests.support.msrun import run_ranks

pytestmark = pytest.mark.mindspore
pytest.importorskip("mindspore")


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    folder = tmp_path_factory.mktemp("own")
    code, text = run_ranks("own_loops_training.py", 2, folder, folder, GLOG_v="3")
    written = [folder / f"seen{rank}.json" for rank in range(2)]
    assert all(one.exists() for one in written), (code, text)
    return [json.loads(one.read_text()) for one in written]


@pytest.mark.parametrize("begun", ["model", "loop", "manifests"])
def test_two_ranks_that_read_one_shard_from_the_start_are_one_warning_with_both_numbers(seen, begun):
    name = f"begins, {begun}"
    assert [rank[name]["failure"] for rank in seen] == ["", ""]
    (text,) = [text for rank in seen for text in rank[name]["said"] if "shard" in text]
    assert text.startswith("ranks 0, 1 read shard 0 of 2, and nobody reads shard 1: ")


def test_a_loop_with_another_shard_is_refused_on_both_with_both_numbers(seen):
    for rank in range(2):
        failure = seen[rank]["loop, other shard"]["failure"]
        assert failure.startswith("InputError: ")
        assert "rank 1 reads shard 0 of 2, and read shard 1 of 2; " in failure
        assert "go on without a dataset for resume()" in failure
        assert "allow_dataset_change" not in failure


@pytest.mark.parametrize("name", ["prefix", "prefix, state", "prefix, slice"])
def test_a_prefix_of_one_ranks_own_is_named_when_saving_begins_and_the_training_is_the_same(seen, name):
    assert [rank[name]["failure"] for rank in seen] == ["", ""]
    (text,) = [text for rank in seen for text in rank[name]["said"] if "give all ranks the same prefix" in text]
    assert text.startswith("prefix is 'net' on rank(s) 0, 'net_r' on rank(s) 1: a resume takes slices of one prefix")
    for rank in seen:
        whole = rank["whole"]["losses"]
        assert rank[name]["losses"] == {step: loss for step, loss in whole.items() if int(step) >= 13}


def test_a_loop_whose_own_extra_is_lost_goes_back_to_the_step_with_each_ranks_own(seen):
    for rank in range(2):
        found = seen[rank]["loop, state"]
        assert found["done"] == ["1_4", {"own": [rank, 4]}]
        (text,) = [one for one in found["said"] if "all ranks go back to step 1_4" in one]
        assert "the states of rank(s) 1 (random generators, callbacks, extra) are lost" in text
