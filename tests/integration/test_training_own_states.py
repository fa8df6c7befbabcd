"""What belongs to one rank stays its own: seeds, shards, states and batches, when the other of two ranks has losses."""

import json

import pytest

from tests.support.msrun import run_ranks

pytestmark = pytest.mark.mindspore
pytest.importorskip("mindspore")


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    folder = tmp_path_factory.mktemp("own")
    code, text = run_ranks("own_states_training.py", 2, folder, folder, GLOG_v="3")
    written = [folder / f"seen{rank}.json" for rank in range(2)]
    assert all(one.exists() for one in written), (code, text)
    return [json.loads(one.read_text()) for one in written]


def same(seen, name, first, ranks=(0, 1)):
    """Both ranks go on behind a step as the undisturbed training does: these ranks to the last bit."""
    for rank in range(2):
        whole, found = seen[rank][f"whole {name.startswith('own')}"], seen[rank][name]
        assert found["failure"] == ""
        assert min(map(int, found["losses"])) == first
        assert found["losses"] == {step: loss for step, loss in whole["losses"].items() if int(step) >= first}
        if rank in ranks:
            assert found["drawn"] == {step: drawn for step, drawn in whole["drawn"].items() if int(step) >= first}


def said(seen, rank, name):
    return "\n".join(seen[rank][name]["said"])


@pytest.mark.parametrize("what", ["folder", "state"])
def test_a_lost_rank_with_a_seed_of_its_own_goes_on_in_its_own_order(seen, what):
    same(seen, f"alike, {what}", 13)
    (line,) = seen[0][f"alike, {what}"]["line"]
    assert "samples proven; " in line
    assert "those of rank" not in line
    assert "random generators" not in said(seen, 1, f"alike, {what}")


@pytest.mark.parametrize("what", ["nothing", "slice", "slice and manifest", "flipped"])
def test_the_ranks_own_state_is_used_where_it_lies_there(seen, what):
    same(seen, f"own, {what}", 13)
    assert "those of rank" not in seen[0][f"own, {what}"]["line"][0]


@pytest.mark.parametrize("what", ["newest", "state", "brought back"])
def test_states_that_differ_send_all_ranks_back_to_a_step_with_each_ranks_own(seen, what):
    same(seen, f"own, {what}", 9)
    (line,) = seen[0][f"own, {what}"]["line"]
    assert "resumed from step 1_8 (" in line
    assert "back from step 2_4, where states of rank(s) 1 are lost" in line
    for rank in range(2):
        assert "all ranks go back to step 1_8" in said(seen, rank, f"own, {what}")
        assert "rank_local='peer' stays at step 2_4" in said(seen, rank, f"own, {what}")


def test_states_alone_never_refuse_a_recovery(seen):
    same(seen, "own, folder", 13, ranks=(0,))
    assert "go on as those of rank 0" in said(seen, 1, "own, folder")
    (line,) = seen[0]["own, folder"]["line"]
    assert "samples proven; " in line
    assert "random numbers not proven: those of rank 0 (rank 1)" in line


def test_a_lost_rank_whose_samples_are_drawn_from_its_own_generator_goes_on_and_says_so(seen):
    """Its generator is lost with its folder, so that its samples cannot be the same, and prove nothing."""
    for rank in range(2):
        whole, nothing, lost = (seen[rank][name] for name in ("whole noise", "noise, nothing", "noise, folder"))
        assert nothing["losses"] == {step: loss for step, loss in whole["losses"].items() if int(step) >= 13}
        assert lost["failure"] == ""
        assert min(map(int, lost["losses"])) == 13
    assert "go on as those of rank 0" in said(seen, 1, "noise, folder")
    (line,) = seen[0]["noise, folder"]["line"]
    assert "samples not proven: on rank(s) 1 its own state is lost, and its samples are drawn from numpy" in line


def test_the_program_may_choose_the_newest_step_with_a_peers_states(seen):
    same(seen, "own, newest, peer", 13, ranks=(0,))
    assert "go on as those of rank 0" in said(seen, 1, "own, newest, peer")


def test_another_shard_that_is_allowed_is_one_warning_with_both_numbers(seen):
    name = "alike, other shard allowed"
    assert [rank[name]["failure"] for rank in seen] == ["", ""]
    (text,) = [one for one in seen[0][name]["said"] if "training goes on with other samples: rank 1 reads" in one]
    assert "rank 1 reads shard 0 of 2, and read shard 1 of 2; ranks 0, 1 read shard 0 of 2" in text
    assert "nobody reads shard 1" in text
    assert "goes on with other samples: rank 1 reads" not in said(seen, 1, name)


@pytest.mark.parametrize("name", ["alike, other shard", "alike, folder and other shard"])
def test_a_rank_that_reads_another_shard_is_refused_on_both_with_both_numbers(seen, name):
    for rank in range(2):
        found = seen[rank][name]
        assert found["losses"] == {}
        assert found["seconds"] < 5
        assert found["failure"].startswith("InputError: ")
        assert "rank 1 reads shard 0 of 2, and read shard 1 of 2" in found["failure"]
        assert "nobody reads shard 1" in found["failure"]
