"""recover-ckpt history on trees of real files."""

import json
from pathlib import Path

import jsonschema
import pytest

from ms_recover.file_names import MANIFEST_SUFFIX
from ms_recover.model.steps import Step
from ms_recover.testing.trees import make_tree, save_manifests

SCHEMA = json.loads((Path(__file__).parents[2] / "docs" / "schemas" / "history.schema.json").read_text())


def flip(path, offset=100):
    path.chmod(0o600)
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


def trained(root, *, since, rank=3, replicas=3, steps=20):
    """Write a tree in which a rank has a flipped bit in ``embedding`` from a step on, and the manifests of that."""
    make_tree(root, data_parallel=replicas, steps=[Step(1, number) for number in range(1, steps + 1)])
    for number in range(since, steps + 1):
        flip(root / f"ckpt_dir{rank}" / f"test-1_{number}.ckpt")
    save_manifests(root)
    return root


@pytest.mark.parametrize("since", [1, 7, 20])
def test_a_flip_is_named_by_step_parameter_and_rank_from_manifests_alone(tmp_path, recover_ckpt, since):
    tree = trained(tmp_path / "tree", since=since)
    for path in tree.rglob("*.ckpt"):  # what is left of the slices says nothing
        path.chmod(0o600)
        path.write_bytes(b"")
    done = recover_ckpt("history", tree, "--json")
    assert done.code == 5
    jsonschema.validate(done.json, SCHEMA)
    (one,) = done.json["disagreements"]
    assert (one["parameter"], one["first"], one["outvoted"]) == ("embedding", {"epoch": 1, "step": since}, [3])
    assert done.json["clean"] == ({"epoch": 1, "step": since - 1} if since > 1 else None)
    text = recover_ckpt("history", tree)
    assert text.out.splitlines()[1].startswith(f"WRONG: rank 3 differs in 'embedding' from step 1_{since}; ")


def test_two_replicas_are_a_tie_and_both_are_named(tmp_path, recover_ckpt):
    done = recover_ckpt("history", trained(tmp_path / "tree", since=7, replicas=2))
    assert (done.code, "ranks 1 against 3 differ in 'embedding' from step 1_7; last clean step 1_6" in done.out) == (
        5,
        True,
    )


def test_a_sound_tree_ends_with_0(tmp_path, recover_ckpt):
    done = recover_ckpt("history", trained(tmp_path / "tree", since=4, steps=3))
    assert (done.code, done.out.splitlines()[1]) == (
        0,
        "SOUND: all ranks that hold the same agree at the newest step, 1_3",
    )


def test_manifests_whose_slices_are_gone_are_enough(tmp_path, recover_ckpt):
    tree = trained(tmp_path / "tree", since=7)
    for path in tree.rglob("*.ckpt"):
        path.unlink()
    done = recover_ckpt("history", tree, "--json")
    assert (done.code, done.json["clean"]) == (5, {"epoch": 1, "step": 6})


def test_a_plan_of_clean_steps_is_applied(tmp_path, recover_ckpt):
    tree = trained(tmp_path / "tree", since=7)
    (tree / "ckpt_dir0" / "test-1_6.ckpt").unlink()
    done = recover_ckpt("plan", tree, "--clean", "--json")
    assert (done.code, done.json["step"]) == (0, {"epoch": 1, "step": 6})
    assert len(done.json["rejected_steps"]) == 14
    assert recover_ckpt("apply", tree, "--clean").code == 0
    assert (tree / "ckpt_dir0" / "test-1_6.ckpt").exists()
    assert recover_ckpt("plan", tree, "--clean", "--step", "1_6").code == 2
    assert recover_ckpt("plan", tree, "--clean", "--require-newest").code == 4


def test_without_manifests_the_history_says_what_is_missing(tmp_path, recover_ckpt):
    tree = make_tree(tmp_path / "tree", steps=(Step(1, 8), Step(2, 8)))
    done = recover_ckpt("history", tree)
    assert done.code == 0
    assert "NOT COMPARED: no slice has a manifest" in done.out
    assert "recover-ckpt seal" in done.out


def test_a_manifest_that_cannot_be_read_makes_its_step_uncompared(tmp_path, recover_ckpt):
    tree = trained(tmp_path / "tree", since=4, steps=3)
    (tree / "ckpt_dir2" / f"test-1_3.ckpt{MANIFEST_SUFFIX}").write_text("{}")
    done = recover_ckpt("history", tree, "--json")
    assert (done.code, done.json["clean"]) == (0, {"epoch": 1, "step": 2})
    assert "no manifest of rank 2" in done.json["steps"][-1]["reason"]


@pytest.mark.parametrize("name", sorted(path.name for path in (Path(__file__).parents[1] / "data/fixtures").iterdir()))
def test_every_fixture_has_a_history(name, fixtures, recover_ckpt):
    if not (fixtures / name).is_dir():
        pytest.skip("no tree")
    done = recover_ckpt("history", fixtures / name, "--json")
    assert done.code in (0, 3)
    if done.code == 0:
        jsonschema.validate(done.json, SCHEMA)


def test_an_empty_folder_ends_with_3(tmp_path, recover_ckpt):
    assert recover_ckpt("history", tmp_path).code == 3


def test_names_from_files_stay_text(tmp_path, recover_ckpt):
    tree = tmp_path / "tree"
    make_tree(tree, data_parallel=3, steps=(Step(1, 1),), parameters={"a\x1b[31m\nWRONG: b": 8})
    path = tree / "ckpt_dir3" / "test-1_1.ckpt"
    flip(path, path.stat().st_size - 3)
    save_manifests(tree)
    done = recover_ckpt("history", tree)
    assert done.code == 5
    assert "\x1b" not in done.out
    assert not any(line.startswith("WRONG: b") for line in done.out.splitlines())


def test_a_tree_is_not_changed(tmp_path, recover_ckpt):
    tree = trained(tmp_path / "tree", since=2, steps=3)
    before = {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in sorted(tree.rglob("*"))}
    recover_ckpt("history", tree)
    assert {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in sorted(tree.rglob("*"))} == before
