"""Every loss of a file, of a rank and of two ranks in the trees that MindFormers wrote; and files that are damaged."""

from itertools import combinations

import pytest

from ms_recover import api
from ms_recover.file_names import weights_name
from ms_recover.model.options import PlanOptions
from ms_recover.model.steps import Step
from tests.support.iteration_trees import contents, lost_shards, of_rank, unpack
from tests.support.mindformers import TREES, truth

NEWEST = "iteration_00000200"
AT_200 = PlanOptions(step=Step.iteration(200))


def without_kept(root, plan):
    """Return the contents of a tree without the slices that a plan kept, each of which is there; remove them."""
    for action in plan.actions:
        if action.set_aside is not None:
            (root / action.set_aside).unlink()
    return contents(root)


def losses(tree):
    """Return losses of one file, of one rank's files, and of two ranks': all where ranks have replicas, else some."""
    ranks = sorted({file["rank"] for file in truth(tree)["files"].values()})
    every = [
        *((name,) for name in truth(tree)["files"]),
        *(tuple(of_rank(tree, rank)) for rank in ranks),
        *(tuple(of_rank(tree, *pair)) for pair in combinations(ranks, 2)),
    ]
    return every if tree == "dp2_mp2_pp2" else every[::5]


def missing_of(plan):
    return {(rank.rank, one.parameter, one.region) for rank in plan.ranks for one in rank.missing}


def check_targets(plan):
    """Each action writes the file of its own rank, from a file of the same kind."""
    for action in plan.actions:
        folder, _, name = action.target.rpartition("/")
        target = weights_name(name)
        assert (folder, target.file_index) == (NEWEST, action.rank)
        for replica in action.replicas:
            source = weights_name(replica.path.rpartition("/")[2])
            assert (source.kind, source.file_index) == (target.kind, replica.rank)


@pytest.mark.parametrize("tree", TREES)
def test_what_is_lost_comes_back_or_is_named(tree, tmp_path):
    root = unpack(tree, tmp_path, 200)
    whole = contents(root)
    recovered = 0
    for gone in losses(tree):
        for name in gone:
            (root / NEWEST / name).unlink()
        lost = lost_shards(tree, gone)
        plan = api.plan(api.scan(root), AT_200)
        check_targets(plan)
        assert missing_of(plan) == lost, gone
        if lost:
            assert (plan.recoverable, plan.actions, plan.documents) == (False, (), ())
        else:
            assert {action.target.rpartition("/")[2] for action in plan.actions} == set(gone)
            assert api.apply(plan).exit_code == 0
            assert contents(root) == whole, gone
            assert all((root / NEWEST / name).stat().st_mode & 0o777 == 0o400 for name in gone)
            recovered += 1
        for name in gone:
            (root / NEWEST / f"{name}.manifest.json").unlink(missing_ok=True)
            (root / NEWEST / name).unlink(missing_ok=True)
            (root / NEWEST / name).write_bytes(whole[f"{NEWEST}/{name}"])
            (root / NEWEST / name).chmod(0o400)
    assert recovered == {"dp2_mp2_pp2": 16}.get(tree, 0)


def flip(path, at):
    data = bytearray(path.read_bytes())
    data[at] ^= 4
    path.unlink()
    path.write_bytes(data)


def place_of(path, parameter):
    """Return where the contents of a parameter begin in a file."""
    header = api.inspect(path).header
    place = [one.name for one in header.parameters].index(parameter)
    return header.contents[place][0].start


@pytest.mark.parametrize("tree", TREES)
def test_a_flipped_bit_is_outvoted_where_three_hold_it(tree, tmp_path):
    root = unpack(tree, tmp_path)
    whole = contents(root)
    counts = {"recovered": 0, "undecided": 0, "alone": 0}
    for name, file in list(truth(tree)["files"].items())[1::7]:
        for shard in file["shards"][::5]:
            one = truth(tree)["shards"][shard]
            path = root / NEWEST / name
            flip(path, place_of(path, one["parameter"]) + 3)
            holders = len(one["in_files"])
            plan = api.plan(api.scan(root))
            if holders > 2:
                check_targets(plan)
                assert [action.target for action in plan.actions] == [f"{NEWEST}/{name}"]
                assert api.apply(plan).exit_code == 0
                assert without_kept(root, plan) == whole
                counts["recovered"] += 1
            elif holders == 2:
                assert plan.disagreements
                assert not plan.recoverable
                assert any(one["parameter"] in text for text in plan.disagreements)
                counts["undecided"] += 1
            else:
                assert plan.recoverable
                counts["alone"] += 1
            (root / NEWEST / f"{name}.manifest.json").unlink(missing_ok=True)
            path.unlink()
            path.write_bytes(whole[f"{NEWEST}/{name}"])
    assert counts["recovered"]
    assert counts["undecided"]


def test_the_operator_names_the_wrong_one_of_two(tmp_path):
    root = unpack("dp2_mp2_pp2", tmp_path)
    whole = contents(root)
    path = root / NEWEST / "llama_tiny-opt-0000002-0000008.safetensors"
    flip(path, place_of(path, "adam_m.embedding.word_embeddings.weight"))
    assert api.plan(api.scan(root)).disagreements
    plan = api.plan(api.scan(root), PlanOptions(lost=frozenset([2])))
    assert [action.rank for action in plan.actions] == [2, 2]
    assert plan.ranks[2].state == "lost"
    assert [file.kind for file in plan.ranks[2].files] == ["model", "opt"]
    api.apply(plan)
    assert contents(root) == whole


@pytest.mark.parametrize("damage", ["cut", "header", "empty", "parameter"])
@pytest.mark.parametrize("kind", ["model", "opt"])
def test_a_damaged_file_comes_back_under_its_name(damage, kind, tmp_path):
    root = unpack("dp2_mp2_pp2", tmp_path)
    whole = contents(root)
    path = root / NEWEST / f"llama_tiny-{kind}-0000003-0000008.safetensors"
    data = path.read_bytes()
    path.unlink()
    if damage == "cut":
        path.write_bytes(data[:-7])
    elif damage == "header":
        path.write_bytes(data[:20] + b"\xff" + data[21:])
    elif damage == "empty":
        path.write_bytes(b"")
    else:  # whole in itself, and of another rank's stage
        path.write_bytes((root / NEWEST / f"llama_tiny-{kind}-0000005-0000008.safetensors").read_bytes())
    plan = api.plan(api.scan(root))
    assert plan.ranks[3].state == "damaged"
    assert [action.target for action in plan.actions] == [f"{NEWEST}/{path.name}"]
    assert api.apply(plan).exit_code == 0
    assert without_kept(root, plan) == whole


def test_a_file_of_the_iteration_before_is_suspect(tmp_path):
    """The names are the same in all iterations, so that a copy of an older file is a likely mistake."""
    root = unpack("dp2_mp2_pp2", tmp_path)
    whole = contents(root)
    name = "llama_tiny-opt-0000001-0000008.safetensors"
    (root / NEWEST / name).unlink()
    (root / NEWEST / name).write_bytes((root / "iteration_00000100" / name).read_bytes())
    plan = api.plan(api.scan(root))
    assert plan.recoverable
    assert "iteration_00000100" in plan.ranks[1].reason
    api.apply(plan)
    assert without_kept(root, plan) == whole
