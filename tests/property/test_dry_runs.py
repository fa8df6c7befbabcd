"""A dry run writes nothing, and ends as the run does: over random trees, whatever lies at the target."""

import os
import random
import shutil

import pytest

from ms_recover import api
from ms_recover.testing.trees import make_tree
from tests.support.examples import examples
from tests.support.iteration_trees import of_rank, unpack
from tests.support.law_files import make
from tests.support.law_scenes import random_scene

TREES = range(examples(12))


def state_of(folder):
    """Return every name below a folder with what a dry run may not change."""
    found = {}
    for path in [folder, *sorted(folder.rglob("*"))]:
        status = path.lstat()
        data = path.read_bytes() if path.is_file() else os.readlink(path) if path.is_symlink() else None
        found[str(path)] = (status.st_mode, status.st_mtime_ns, status.st_ino, data)
    return found


def ends_alike(run, tmp_path, *command):
    """Run a command dry, look that nothing changed, and run it; return both."""
    before = state_of(tmp_path)
    dry = run(*command, "--dry-run")
    assert state_of(tmp_path) == before
    real = run(*command)
    assert dry.code == real.code, (command, dry.out, dry.err, real.out, real.err)
    return dry, real


@pytest.fixture
def run(recover_ckpt):
    return recover_ckpt


def draw_target(draw, tmp_path, tree, run, verb):
    """Return a target, and lay there what a person may have left."""
    kind = draw.choice(
        ["nothing", "deep", "empty", "begun", "begun", "foreign file", "a file", "inside", "below a file", "long name"]
    )
    target = tmp_path / "out"
    if kind == "deep":
        target = tmp_path / "of" / "several" / "folders"
    elif kind == "empty":
        target.mkdir()
    elif kind == "begun":
        run(*verb, target)
        files = [path for path in sorted(target.rglob("*")) if path.is_file()] if target.exists() else []
        for path in draw.sample(files, min(len(files), draw.randint(0, 2))):
            path.chmod(0o600)
            if draw.random() < 0.5:
                path.unlink()
            else:
                path.write_bytes(path.read_bytes()[:-1] + b"\n")
    elif kind == "foreign file":
        target.mkdir()
        (target / "notes.txt").write_text("mine")
    elif kind == "a file":
        target.write_text("mine")
    elif kind == "inside":
        target = tree / "out"
    elif kind == "below a file":
        target.write_text("mine")
        target = target / "out"
    elif kind == "long name":
        target = tmp_path / ("x" * 256)
    return target


def step_option(draw, scene):
    return ["--step", str(draw.choice(scene.job.steps))] if draw.random() < 0.4 else []


@pytest.mark.parametrize("seed", TREES)
def test_a_copy_ends_as_its_dry_run(run, tmp_path, seed):
    draw = random.Random(seed)
    scene = random_scene(seed)
    tree = make(scene, tmp_path / "tree").root
    verify = draw.choice([[], ["--verify"], ["--no-verify"]])
    target = draw_target(draw, tmp_path, tree, run, ["copy", tree])
    dry, real = ends_alike(run, tmp_path, "copy", tree, target, *verify, *step_option(draw, scene), "--json")
    if dry.out:
        told, done = dry.json, real.json
        assert (told.pop("dry_run"), done.pop("dry_run")) == (True, False)
        for one in (told, done):
            del one["read_back"]
        assert told == done


@pytest.mark.parametrize("seed", TREES)
def test_a_reshard_ends_as_its_dry_run(run, tmp_path, seed):
    draw = random.Random(seed)
    scene = random_scene(seed)
    tree = make(scene, tmp_path / "tree").root
    how = draw.choice(
        [["--full"], ["--full", "--format", "safetensors"], ["--full", "--dtype", "float16"], ["--axes", "dp=2,tp=1"]]
    )
    how += draw.choice([[], ["--partial"], ["--quick"], ["--partial", "--verify"]])
    command = ["reshard", tree, *how, *step_option(draw, scene)]
    target = draw_target(draw, tmp_path, tree, run, [*command, "-o"])
    dry, real = ends_alike(run, tmp_path, *command, "-o", target, "--json")
    if dry.out and "results" in dry.json:
        told = [(one["path"], one["bytes"], one["digest"]) for one in dry.json["results"]]
        assert told == [(one["path"], one["bytes"], one["digest"]) for one in real.json["results"]]
        assert dry.json["documents"] == real.json["documents"]
        assert {one["status"] for one in dry.json["results"]} <= {"planned", "already there", "failed"}


@pytest.mark.parametrize("seed", TREES)
def test_complete_ends_as_its_dry_run(run, tmp_path, seed):
    draw = random.Random(seed)
    scene = random_scene(seed)
    tree = make(scene, tmp_path / "tree").root
    (tmp_path / "there").write_text("mine")
    names = [tmp_path / "out.ckpt", tmp_path / "there", tmp_path / "there" / "x.ckpt", tmp_path / "new" / "x.ckpt"]
    names += [tmp_path / ("x" * 240 + ".ckpt"), tmp_path / ("x" * 256)]
    where = draw.choice([[], [], ["-o", draw.choice(names)]])
    rank = draw.choice([draw.randrange(scene.job.size), scene.job.size])
    dry, real = ends_alike(run, tmp_path, "complete", tree, rank, *where, *step_option(draw, scene), "--json")
    if dry.out:
        assert dry.json["status"] == "planned"
        assert (dry.json["target"], dry.json["bytes"]) == (real.json["target"], real.json["bytes"])


@pytest.mark.parametrize("seed", TREES)
def test_sealing_ends_as_its_dry_run(run, tmp_path, seed):
    draw = random.Random(seed)
    scene = random_scene(seed)
    tree = make(scene, tmp_path / "tree").root
    if draw.random() < 0.5:
        for path in tree.rglob("*.manifest.json"):
            path.unlink()
    if draw.random() < 0.2:
        shutil.rmtree(tree)
        run("copy", make(random_scene(0), tree).root, tmp_path / "backup")
        tree = tmp_path / "backup"
    dry, real = ends_alike(run, tmp_path, "seal", tree, *step_option(draw, scene), "--json")
    if dry.out:
        assert dry.json["sealed"] == real.json["sealed"]


@pytest.mark.parametrize("lost", [(), (0,), (0, 1, 2, 3)])
def test_iterations_end_as_their_dry_runs(run, tmp_path, lost):
    tree = unpack("dp4_mp2_opt2", tmp_path / "tree", 100)
    for name in of_rank("dp4_mp2_opt2", *lost):
        (tree / name).unlink(missing_ok=True)
    ends_alike(run, tmp_path, "copy", tree, tmp_path / "backup")
    ends_alike(run, tmp_path, "reshard", tree, "--full", "-o", tmp_path / "whole")
    dry, real = ends_alike(run, tmp_path, "complete", tree, 1, "--json")
    if dry.out:
        assert [one["bytes"] for one in dry.json["results"]] == [one["bytes"] for one in real.json["results"]]
    ends_alike(run, tmp_path, "seal", tree)


def test_a_dry_run_of_a_reshard_finds_what_only_writing_finds(run, tmp_path):
    """A value that the wanted type cannot hold is found when it is cast, and a source that flipped when it is read."""
    tree = make_tree(tmp_path / "tree", parameters={"w": 300})
    dry, real = ends_alike(run, tmp_path, "reshard", tree, "--full", "--dtype", "float16", "-o", tmp_path / "half")
    assert dry.code == real.code


def test_the_words_say_that_nothing_was_written(run, tmp_path, fixture_tree):
    tree = fixture_tree("dp2_mp4")
    api.seal(api.scan(tree))
    for path in tree.glob("ckpt_dir[01]/*.manifest.json"):
        path.unlink()
    assert "4 manifests would be written, " in run("seal", tree, "--dry-run").out
    told = run("complete", tree, 1, "--dry-run").out
    assert told.startswith("ckpt_dir1/test-2_77.complete.ckpt: ")
    assert "would be written, from" in told
    told = run("reshard", tree, "--full", "-o", tmp_path / "whole", "--dry-run").out
    assert "DRY RUN: step 2_77 can be cut anew: 1 file would be written, " in told
    told = run("copy", tree, tmp_path / "backup", "--dry-run").out
    assert f"can go to {tmp_path / 'backup'}" in told
    assert "would be sent, " in told
    assert told.count("nothing was written") == 1


def test_watching_is_no_dry_run(run, tmp_path):
    done = run("seal", make_tree(tmp_path / "tree"), "--watch", "--dry-run")
    assert (done.code, "leave --watch out" in done.err) == (2, True)
