"""Trainings that go on with other ranks, in real processes that communicate."""

import json
import os
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest

from ms_recover import api
from ms_recover.errors import StorageError, UnrecoverableError
from ms_recover.formats.manifest import read_manifest
from ms_recover.model.steps import Step
from tests.support.cuts import CutTensor, cut_layout, make_cut_tree
from tests.support.sample import REPOSITORY, losses, make_pairs, script
from tests.support.serving import serving, split

pytestmark = [pytest.mark.mindspore, pytest.mark.timeout(600)]
pytest.importorskip("mindspore")
more = pytest.mark.skipif("MS_RECOVER_EXAMPLES" not in os.environ, reason="only with MS_RECOVER_EXAMPLES: minutes")

SAME = {"same losses on all ranks": True, "distance": 0.0}


def run(folder, *names):
    """Run scenarios of `tests.support.resharded_scenarios` in a process of their own; return their answers."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.resharded_jobs", str(folder), *names],
        check=False,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "GLOG_v": "4"},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def scenarios(tmp_path_factory):
    return run(tmp_path_factory.mktemp("scenarios"), "there_and_back", "mistakes")


def test_cut_anew_there_and_back_the_values_are_the_same_bits(scenarios):
    found = scenarios["there_and_back"]
    steps = [{"step": f"1_{step}", "from": 4, "right": True} for step in (2, 3, 4)]
    assert found["answers"] == [[*steps, {"step": "1_5", "from": None, "right": True}]] * 4, found["said"]
    assert set(found["checks"]) == {"tree", "4_ranks_1_2", "4_ranks_1_3", "4_ranks_1_4"}
    assert all(status == "sound" for checks in found["checks"].values() for status in checks)


@pytest.mark.parametrize(
    ("name", "step"), [("lost", "1_2"), ("one bad", "1_2"), ("all bad", "1_1"), ("sources", "1_2")]
)
def test_what_is_there_is_enough(scenarios, name, step):
    for answers in scenarios["mistakes"]["answers"]:
        assert answers[name] == {"step": step, "from": 4, "right": True}


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("plain", ["those of 4 ranks, and this job has 2: reshard=True"] * 2),
        ("half", [r"reshard is True on rank\(s\) 0, False on rank\(s\) 1"] * 2),
        ("all bad, chosen", ["holds other contents of 'count'"] * 2),
        ("nobody holds it", ["nobody holds all of 'up', 'down'"] * 2),
        ("nothing", ["no rank has a slice under"] * 2),
        (
            "one sees nothing",
            [r"rank\(s\) 1 can have none; rank 0 sees 8", r"rank\(s\) 1 can have none; rank 1 sees 0"],
        ),
        ("one source is gone", [r"scanning the tree failed on rank\(s\) 1", "gone is not a directory"]),
        (
            "does not divide",
            [r"this job cuts 'bias' of \[5\] into 2 parts"] * 2,
        ),
        ("another model", ["'other', which no slice of the source holds"] * 2),
        ("another shape", [r"the network has 'bias' as Float32 \[3\] .* it is Float32 \[5\]"] * 2),
        ("no such step", [r"no step .* step 1_9"] * 2),
    ],
)
def test_what_cannot_be_ends_on_all_ranks_with_the_reason_and_changes_nothing(scenarios, name, said):
    for answers, text in zip(scenarios["mistakes"]["answers"], said, strict=True):
        assert re.search(text, answers[name]["error"]), answers[name]["error"]
        assert answers[name].get("untouched", True)
    assert scenarios["mistakes"]["untouched"]


@pytest.fixture(scope="module")
def dealt(tmp_path_factory):
    """Slices of four ranks, two on each of two nodes, and the whole arrays that they are parts of."""
    folder = tmp_path_factory.mktemp("dealt")
    whole = {"up": np.arange(32, dtype=np.float32).reshape(8, 4), "bias": np.arange(5, dtype=np.float32)}
    layouts = {"up": cut_layout("up", (2, 2), (0,), ()), "bias": cut_layout("bias", (2, 2), ())}
    tensors = {name: CutTensor("Float32", array, layouts[name]) for name, array in whole.items()}
    groups = {rank: (rank % 2, rank % 2 + 2) for rank in range(4)}
    tree = make_cut_tree(folder / "tree", tensors, 4, steps=[Step(1, 2)], manifests=True, groups=groups)
    return split(tree, folder, first=(0, 2), second=(1, 3)), whole


def test_pieces_come_from_other_nodes_over_http(dealt, tmp_path):
    import mindspore as ms

    from ms_recover import resume

    (first, second), whole = dealt
    own = [ms.Parameter(ms.Tensor(np.zeros_like(array)), name=name) for name, array in whole.items()]
    with serving(first, second) as served:
        sources = [served[0].address, f"http://{served[1].address}"]  # as `apply --from` takes them
        resumed = resume(own, tmp_path / "here", reshard=True, sources=sources)
        with pytest.raises(UnrecoverableError, match="nobody holds all of 'up'"):
            resume(own, tmp_path / "here", reshard=True, sources=sources[:1])
    assert (resumed.step, resumed.resharded_from) == (Step(1, 2), 4)
    assert {one.name: one.asnumpy().tobytes() for one in own} == {name: one.tobytes() for name, one in whole.items()}
    with pytest.raises(StorageError, match="cannot be reached"):
        resume(own, tmp_path / "here", reshard=True, sources=sources)
    assert not (tmp_path / "here").exists()


@more
def test_a_node_is_lost_and_comes_back_and_no_loss_differs(tmp_path):
    """Four ranks, two, a crash before the first save, one behind it, four again."""
    found = run(tmp_path, "lose_a_node")["lose_a_node"]
    assert "those of 4 ranks, and this job has 2: reshard=True" in found["refused"]
    assert found["unsaved"]["steps"] == []
    assert found["unsaved"]["values"] == found["resumed"]["values"]
    assert found["tree"] == sorted(
        f"resharded_from/4_ranks_2_2/ckpt_dir{rank}/net-{step}.ckpt"
        for rank in (0, 1)
        for step in ("1_2", "1_4", "2_2")
    )
    assert "resharded_from/4_ranks_2_2" in found["plain"]
    assert "reshard=True" in found["plain"]
    for name, steps in {"resumed": [7, 11], "again": [11, 13], "back": [13, 16]}.items():
        assert found[name]["steps"] == steps
        assert {key: found[name][key] for key in SAME} == SAME
    assert (found["back"]["step"], found["back"]["from"], found["back"]["accumulate"]) == ("3_4", 2, 1)
    assert found["trees"] == ["2_ranks_3_4", "4_ranks_2_2"]
    # what one of the two had is gone: both go on from the slices of the four
    lost = found["lost again"]
    assert (lost["step"], lost["from"], lost["accumulate"], lost["steps"]) == ("2_2", 4, 2, [7, 16])
    assert {key: lost[key] for key in SAME} == SAME
    assert lost["trees"] == ["2_ranks_3_4", "4_ranks_2_2"]
    # over four tensor-parallel ranks sums are made in another order
    assert found["wide"]["steps"] == [7, 9]
    assert found["wide"]["values"] == found["unsaved"]["values"]
    assert found["wide"]["distance"] <= 1e-5
    assert found["shards"]["anew"] == 4
    assert found["shards"]["distance"] <= 1e-5
    assert found["shards"]["bytes"] == 32 * 8 * 4 // 4  # two tensor-parallel parts in two shards
    assert "first.weight" in found["otherwise"]
    assert "cut otherwise than the layouts of this job say" in found["otherwise"]


@more
def test_a_run_of_other_ranks_is_abandoned_named_and_chosen_and_no_loss_differs(tmp_path):
    """Four ranks, two, two from the run of the four once more, four again: from that, or from the abandoned one."""
    found = run(tmp_path, "abandon_a_run")["abandon_a_run"]
    assert len(set(found["runs"])) == 3
    starts = {"gone on": [7, 11], "from the first": [7, 9], "back": [9, 16], "chosen": [11, 16]}
    for name, steps in starts.items():
        assert found[name]["steps"] == steps, found[name]
        assert {key: found[name][key] for key in SAME} == SAME
    assert (found["back"]["step"], found["back"]["from"]) == ("2_4", 2)
    assert (found["chosen"]["step"], found["chosen"]["from"]) == ("3_2", 2)
    assert found["names the abandoned one"]


@more
def test_the_sample_goes_on_with_half_of_its_ranks(tmp_path):
    """Its two commands; the undisturbed losses come out to the last bit, for more than 50 steps."""
    pairs, whole, root = make_pairs(tmp_path), tmp_path / "whole", tmp_path / "run"
    code, text = script("save", pairs, whole, "--epochs", "8")
    assert code == 0, text
    code, text = script("save", pairs, root, "--epochs", "1")
    assert code == 0, text
    for rank in (2, 3):
        shutil.rmtree(root / f"ckpt_dir{rank}")
    code, text = script("recover", pairs, root, "--epochs", "8", "--reshard", "--micro_batch_num", "2", ranks=2)
    assert code == 0, text
    assert "resumed from step 1_8" in text
    expected = {step: loss for step, loss in losses(whole, 0).items() if step > Step(1, 8)}
    assert losses(root, 0) == losses(root, 1) == expected
    assert len(expected) == 56
    manifest = read_manifest(next((root / "ckpt_dir0").glob("test-8_8.ckpt.manifest.json")))
    assert (manifest.world_size, manifest.training.resharded_from, manifest.training.resumed_from.step) == (
        2,
        4,
        Step(1, 8),
    )
    assert {check.status for check in api.verify(api.scan(root)).checks} == {"sound"}
