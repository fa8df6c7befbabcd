"""--group and --axes: the operator says what no file says."""

import shutil

import pytest

from ms_recover.formats.manifest import read_manifest
from ms_recover.model.provenance import ProvenanceSource
from ms_recover.model.steps import Step
from ms_recover.testing.trees import make_tree, save_manifests

PAIRS = ("--group", "0,2", "--group", "1,3")
LOST = "ckpt_dir3/test-2_8.ckpt"


@pytest.fixture
def silent(tmp_path):
    """A tree, 2 x 2, of two steps, in which no file says who holds the same; rank 3 is lost."""
    root = make_tree(tmp_path / "tree", steps=(Step(1, 8), Step(2, 8)))
    for path in root.glob("*/group_info.pb"):
        path.unlink()
    shutil.rmtree(root / "ckpt_dir3")
    return root


def whole(tmp_path):
    return make_tree(tmp_path / "whole", steps=(Step(1, 8), Step(2, 8)))


@pytest.mark.parametrize("word", [PAIRS, ("--axes", "dp=2,mp=2"), ("--axes", "mp=2,dp=2", "--order", "tp-dp")])
def test_what_the_operator_says_brings_a_rank_back(word, silent, tmp_path, recover_ckpt):
    plan = recover_ckpt("plan", silent, *word)
    assert plan.code == 0
    assert "operator   no directory; rank 1 holds the same slice by the operator's word" in plan.out
    applied = recover_ckpt("apply", silent, *word, "--json")
    assert applied.code == 0
    assert (silent / LOST).read_bytes() == (whole(tmp_path) / LOST).read_bytes()
    manifest = read_manifest(f"{silent / LOST}.manifest.json")
    assert manifest.group == (1, 3)
    assert (manifest.provenance.kind, manifest.provenance.evidence) == ("copied", "operator")
    assert manifest.provenance.sources == (ProvenanceSource(1, "ckpt_dir1/test-2_8.ckpt"),)
    assert not manifest.provenance.proven
    assert "copied from rank 1 (ckpt_dir1/test-2_8.ckpt), by the operator's word" in recover_ckpt("scan", silent).out
    again = recover_ckpt("plan", silent)
    assert again.code == 0
    assert "which rests on the operator's word" in again.out


def test_a_saved_plan_carries_the_word(silent, tmp_path, recover_ckpt):
    saved = tmp_path / "plan.json"
    assert recover_ckpt("plan", silent, *PAIRS, "-o", saved).code == 0
    assert recover_ckpt("apply", saved, *PAIRS).code == 2
    assert recover_ckpt("apply", saved).code == 0
    assert (silent / LOST).read_bytes() == (whole(tmp_path) / LOST).read_bytes()


def test_the_option_that_a_hint_prints_is_taken(silent, tmp_path, recover_ckpt):
    found = recover_ckpt("plan", silent, "--world-size", 4)
    assert found.code == 4
    (hint,) = [line for line in found.out.splitlines() if line.startswith("HINT: ") and "equal bytes" in line]
    assert hint.startswith("HINT: ranks 0 and 2 hold equal bytes at steps 2_8, 1_8, but no file says who holds")
    words = hint.partition("accept it with: ")[2].split()
    assert words == [*PAIRS]
    assert hint.removeprefix("HINT: ") in recover_ckpt("plan", silent, "--world-size", 4, "--json").json["hints"]
    assert recover_ckpt("apply", silent, *words).code == 0
    assert (silent / LOST).read_bytes() == (whole(tmp_path) / LOST).read_bytes()


def test_without_reading_nothing_is_suggested(silent, recover_ckpt):
    found = recover_ckpt("plan", silent, "--world-size", 4, "--quick")
    assert found.code == 4
    assert "equal bytes" not in found.out


@pytest.mark.parametrize("command", ["plan", "apply", "verify", "seal"])
@pytest.mark.parametrize(
    ("word", "code", "why"),
    [
        (("--group", "0,1", "--group", "2,3"), 3, "ranks 0 and 1 hold different contents in 4 of 4 parameters"),
        (("--axes", "dp=2,mp=2", "--order", "dp,tp"), 3, "--axes dp=2,mp=2 --order dp,tp is contradicted by contents"),
        (("--axes", "dp=2,mp=3"), 2, "dp 2 x mp 3 = 6 ranks, but there are 3"),
        (("--group", "0,2", "--group", "2,3"), 2, "rank 2 is in two groups"),
        (("--group", "0,9"), 2, "--group names rank 9, but there are 3"),
        (("--group", "0,2", "--axes", "dp=2,mp=2"), 2, "give one of them"),
        (("--optimizer-shards", "2"), 2, "--optimizer-shards goes with --axes"),
    ],
)
def test_a_wrong_word_is_refused_by_every_command_and_changes_nothing(command, word, code, why, silent, recover_ckpt):
    before = {path: path.read_bytes() for path in silent.rglob("*.*")}
    found = recover_ckpt(command, silent, *word)
    assert found.code == code
    assert why in found.err
    assert {path: path.read_bytes() for path in silent.rglob("*.*") if not path.name.startswith(".")} == before


def test_lists_manifests_and_layouts_refuse_it_too(tmp_path, fixture_tree, recover_ckpt):
    wrong = ("--group", "0,1")
    listed = make_tree(tmp_path / "listed")
    found = recover_ckpt("plan", listed, *wrong)
    assert found.code == 3
    assert "ckpt_dir0/group_info.pb lists [0, 2] for rank 0" in found.err
    save_manifests(listed)
    for path in listed.glob("*/group_info.pb"):
        path.unlink()
    found = recover_ckpt("plan", listed, *wrong)
    assert found.code == 3
    assert ".manifest.json lists [0, 2] for rank 0" in found.err
    cut = fixture_tree("dp2_mp4")
    for path in cut.glob("*/group_info.pb"):
        path.unlink()
    found = recover_ckpt("plan", cut, "--axes", "dp=4,mp=2")
    assert found.code == 3
    assert "ranks 0 and 2 hold the same slice by the operator's word, but different parts of" in found.err
    assert "strategy.ckpt" in found.err


def test_a_flipped_bit_is_a_dispute_and_lost_settles_it(silent, tmp_path, recover_ckpt):
    path = silent / "ckpt_dir2/test-2_8.ckpt"
    right = path.read_bytes()
    data = bytearray(right)
    data[-3] ^= 1
    path.chmod(0o600)
    path.write_bytes(data)
    assert recover_ckpt("plan", silent, *PAIRS).code == 5
    assert recover_ckpt("apply", silent, *PAIRS).code == 5
    assert not (silent / LOST).exists()
    assert recover_ckpt("apply", silent, *PAIRS, "--lost", 2).code == 0
    assert path.read_bytes() == right
    assert (silent / LOST).read_bytes() == (whole(tmp_path) / LOST).read_bytes()


def test_sealing_keeps_the_groups_so_that_the_word_is_not_needed_again(silent, tmp_path, recover_ckpt):
    assert recover_ckpt("seal", silent, "--axes", "dp=2,mp=2").code == 0
    assert read_manifest(silent / "ckpt_dir1/test-2_8.ckpt.manifest.json").group == (1, 3)
    assert recover_ckpt("apply", silent).code == 0
    assert (silent / LOST).read_bytes() == (whole(tmp_path) / LOST).read_bytes()


def test_sealing_without_the_word_does_not_speak_against_it(tmp_path, recover_ckpt):
    """Manifests of a tree without rank lists name their own rank alone."""
    root = whole(tmp_path)
    for path in root.glob("*/group_info.pb"):
        path.unlink()
    assert recover_ckpt("seal", root).code == 0
    right = (root / LOST).read_bytes()
    shutil.rmtree(root / "ckpt_dir3")
    assert recover_ckpt("plan", root).code == 4
    assert recover_ckpt("apply", root, *PAIRS).code == 0
    assert (root / LOST).read_bytes() == right


@pytest.mark.parametrize(
    ("folder", "word"),
    [
        ("dp2_mp4", ("--axes", "dp=2,mp=4")),
        ("dp2_mp2_pp2", ("--axes", "dp=2,mp=2,pp=2")),
        ("dp4_mp2_opt2", ("--axes", "dp=4,mp=2", "--optimizer-shards", "2")),
    ],
)
def test_real_slices_come_back_by_the_axes_alone(folder, word, fixture_tree, recover_ckpt):
    root = fixture_tree(folder)
    for name in ("group_info.pb", "strategy.ckpt"):
        for path in root.glob(f"*/{name}"):
            path.unlink()
    lost = {path: path.read_bytes() for path in (root / "ckpt_dir7").glob("*-1_77.ckpt")}
    shutil.rmtree(root / "ckpt_dir7")
    for path in root.glob("*/*-2_77.ckpt"):
        path.unlink()
    found = recover_ckpt("apply", root, *word, "--json")
    assert found.code == 0, found.err
    assert lost
    assert all(path.read_bytes() == data for path, data in lost.items())


def test_where_all_replicas_are_sharded_nothing_is_copied(fixture_tree, recover_ckpt):
    root = fixture_tree("dp4_mp2_optfull")
    for name in ("group_info.pb", "strategy.ckpt"):
        for path in root.glob(f"*/{name}"):
            path.unlink()
    shutil.rmtree(root / "ckpt_dir5")
    found = recover_ckpt("plan", root, "--axes", "dp=4,mp=2", "--optimizer-shards", "all")
    assert found.code == 4
    assert "by the operator's word --axes dp=4,mp=2 --optimizer-shards -1: no other rank is sure to hold" in found.out
