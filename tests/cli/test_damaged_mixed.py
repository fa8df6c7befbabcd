"""A group whose members have slices of different formats: no file ever holds one format under the other's ending."""

import os

import pytest

from ms_recover.formats.identify import identify
from ms_recover.testing.trees import make_tree
from tests.support.convert import as_safetensors

STEP = "test-2_77"
KINDS = {".ckpt": "ckpt", ".safetensors": "safetensors"}
OTHER = {".ckpt": ".safetensors", ".safetensors": ".ckpt"}


def slice_of(tree, rank, ending):
    return tree / f"ckpt_dir{rank}" / f"{STEP}{ending}"


def convert(tree, *ranks):
    for rank in ranks:
        path = slice_of(tree, rank, ".ckpt")
        as_safetensors(path)
        path.unlink()


def strike(path, kind="cut"):
    data = path.read_bytes()
    path.chmod(0o600)
    path.write_bytes(data[:-5] if kind == "cut" else data[:-1] + bytes([data[-1] ^ 1]))


def names_tell_formats(tree):
    held = [path for path in tree.glob(f"ckpt_dir*/{STEP}.*") if path.suffix in KINDS]
    return all(identify(path) in (KINDS[path.suffix], "empty") for path in held)


def is_at_rest(tree, recover_ckpt):
    """Nothing is left to do, with contents read and without."""
    for option in ((), ("--quick",)):
        planned = recover_ckpt("plan", tree, "--json", *option)
        assert planned.code == 0, planned.err
        assert planned.json["step"] == {"epoch": 2, "step": 77}
        assert planned.json["actions"] == []
    assert recover_ckpt("verify", tree).code == 0
    assert recover_ckpt("apply", tree).code == 0
    return names_tell_formats(tree)


@pytest.fixture
def mixed(fixture_tree):
    """Ranks 0 and 4 hold the same; rank 4 has the ending that is asked for, rank 0 the other."""

    def make(ending):
        tree = fixture_tree("dp2_mp4")
        convert(tree, 0 if ending == ".ckpt" else 4)
        return tree

    return make


@pytest.mark.parametrize("kind", ["cut", "empty"])
@pytest.mark.parametrize("ending", KINDS)
def test_a_damaged_slice_gets_one_of_the_other_format_beside_it(ending, kind, mixed, recover_ckpt):
    tree = mixed(ending)
    path, source = slice_of(tree, 4, ending), slice_of(tree, 0, OTHER[ending])
    if kind == "cut":
        strike(path)
    else:
        path.chmod(0o600)
        path.write_bytes(b"")
    left = path.read_bytes()
    planned = recover_ckpt("plan", tree, "--json")
    assert planned.code == 0, planned.err
    (action,) = planned.json["actions"]
    assert (action["source_rank"], action["replaces"]) == (0, None)
    assert action["target"] == f"ckpt_dir4/{STEP}{OTHER[ending]}"
    (note,) = [note for note in planned.json["notes"] if note["path"] == f"ckpt_dir4/{STEP}{ending}"]
    assert f"beside {action['target']}" in note["reason"]
    applied = recover_ckpt("apply", tree)
    assert applied.code == 0, applied.err
    assert slice_of(tree, 4, OTHER[ending]).read_bytes() == source.read_bytes()
    assert path.read_bytes() == left
    assert is_at_rest(tree, recover_ckpt)


@pytest.mark.parametrize("ending", KINDS)
def test_contents_that_only_a_manifest_tells(ending, mixed, recover_ckpt):
    tree = mixed(ending)
    assert recover_ckpt("seal", tree).code == 0
    strike(slice_of(tree, 4, ending), "flip")
    applied = recover_ckpt("apply", tree)
    assert applied.code == 0, applied.err
    assert slice_of(tree, 4, OTHER[ending]).read_bytes() == slice_of(tree, 0, OTHER[ending]).read_bytes()
    assert is_at_rest(tree, recover_ckpt)


@pytest.mark.parametrize("ending", KINDS)
def test_a_recovered_slice_that_is_damaged_again_is_replaced(ending, mixed, recover_ckpt):
    tree = mixed(ending)
    strike(slice_of(tree, 4, ending))
    assert recover_ckpt("apply", tree).code == 0
    path = slice_of(tree, 4, OTHER[ending])
    strike(path)
    assert recover_ckpt("apply", tree).code == 0
    assert path.read_bytes() == slice_of(tree, 0, OTHER[ending]).read_bytes()
    assert is_at_rest(tree, recover_ckpt)


@pytest.mark.parametrize("ending", KINDS)
def test_bytes_under_the_wrong_ending_are_not_repeated(ending, mixed, recover_ckpt):
    tree = mixed(ending)
    path, source = slice_of(tree, 4, ending), slice_of(tree, 0, OTHER[ending])
    path.chmod(0o600)
    path.write_bytes(source.read_bytes())
    assert recover_ckpt("apply", tree).code == 0
    assert slice_of(tree, 4, OTHER[ending]).read_bytes() == source.read_bytes()
    path.unlink()
    assert is_at_rest(tree, recover_ckpt)


@pytest.mark.parametrize("ending", KINDS)
def test_a_missing_slice_is_named_as_its_replica(ending, mixed, recover_ckpt):
    tree = mixed(ending)
    slice_of(tree, 4, ending).unlink()
    assert recover_ckpt("apply", tree).code == 0
    assert slice_of(tree, 4, OTHER[ending]).exists()
    assert is_at_rest(tree, recover_ckpt)


@pytest.mark.parametrize("ending", KINDS)
def test_a_whole_slice_that_is_declared_lost_is_left(ending, mixed, recover_ckpt):
    tree = mixed(ending)
    before = {path: path.read_bytes() for path in tree.rglob("test-*")}
    refused = recover_ckpt("apply", tree, "--lost", "4", "--step", "2_77")
    assert refused.code == 4
    assert "of the other format" in refused.out + refused.err
    planned = recover_ckpt("plan", tree, "--lost", "4", "--json")
    assert planned.json["step"] == {"epoch": 1, "step": 77}
    assert "of the other format" in planned.json["rejected_steps"][0]["reason"]
    assert {path: path.read_bytes() for path in tree.rglob("test-*")} == before
    slice_of(tree, 4, ending).unlink()
    assert recover_ckpt("apply", tree, "--lost", "4").code == 0
    assert is_at_rest(tree, recover_ckpt)


@pytest.mark.parametrize("ending", KINDS)
def test_a_damaged_slice_that_is_declared_lost_is_recovered(ending, mixed, recover_ckpt):
    tree = mixed(ending)
    strike(slice_of(tree, 4, ending))
    assert recover_ckpt("apply", tree, "--lost", "4").code == 0
    assert slice_of(tree, 4, OTHER[ending]).exists()
    assert is_at_rest(tree, recover_ckpt)


@pytest.fixture
def four(tmp_path):
    """Return a tree in which ranks 0, 2, 4 and 6 hold the same, 0 and 4 as .ckpt, 2 and 6 as safetensors."""
    tree = make_tree(tmp_path / "four", data_parallel=4, model_parallel=2)
    for rank in (2, 6):
        (path,) = (tree / f"ckpt_dir{rank}").glob("*.ckpt")
        as_safetensors(path)
        path.unlink()
    return tree


@pytest.mark.parametrize("struck", [0, 2, 4, 6])
@pytest.mark.parametrize("how", ["cut", "flip", "lost"])
def test_of_several_members_those_of_the_same_format_are_sources(struck, how, four, recover_ckpt):
    alike = {0: 4, 4: 0, 2: 6, 6: 2}[struck]
    (path,) = (file for file in (four / f"ckpt_dir{struck}").glob("test-*") if file.suffix in KINDS)
    data = path.read_bytes()
    if how != "lost":
        strike(path, how)
    options = ("--lost", str(struck)) if how == "lost" else ()
    planned = recover_ckpt("plan", four, "--json", *options)
    assert planned.code == 0, planned.err
    (action,) = planned.json["actions"]
    assert (action["source_rank"], action["alternatives"]) == (alike, [])
    assert action["target"] == os.path.relpath(path, four)
    assert action["evidence"] == "vote"
    assert recover_ckpt("apply", four, *options).code == 0
    assert path.read_bytes() == data
    assert recover_ckpt("verify", four).code == 0


def test_alternatives_are_of_one_format(four, recover_ckpt):
    strike(next((four / "ckpt_dir0").glob("*.ckpt")))
    (four / "ckpt_dir4").joinpath(next((four / "ckpt_dir0").glob("*.ckpt")).name).unlink()
    planned = recover_ckpt("plan", four, "--json").json
    for action in planned["actions"]:
        endings = {os.path.splitext(one["path"])[1] for one in action["alternatives"]}
        assert endings == {os.path.splitext(action["target"])[1]} == {".safetensors"}
        assert len(action["alternatives"]) == 1
    assert [action["rank"] for action in planned["actions"]] == [0, 4]
    assert recover_ckpt("apply", four).code == 0
    assert recover_ckpt("plan", four, "--json").json["actions"] == []
    assert recover_ckpt("verify", four).code == 0
