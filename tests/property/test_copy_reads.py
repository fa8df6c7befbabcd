"""How much of a tree a copy reads: what has no manifest once to prove it, each contents once to send, once to look.

The unit is the slice; headers, manifests and rank lists are what is left over.
"""

import os
import random

import pytest

from ms_recover import api
from ms_recover.model.steps import Step
from ms_recover.testing.trees import make_tree, save_manifests
from tests.support.examples import examples

SLICE = 1 << 20
LITTLE = SLICE // 4
"""Headers, manifests, rank lists, the index, each written, read back and looked for."""


def bytes_read():
    """Return what this process has read by system calls."""
    with open("/proc/self/io") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("rchar"))


def copied(tree, url, **options):
    """Copy, and return the outcome and the bytes that were read for it in slices."""
    inventory = api.scan(tree)
    before = bytes_read()
    outcome = api.copy(inventory, str(url), **options)
    return outcome, (bytes_read() - before) / SLICE


def tree_of(root, *, data_parallel=2, model_parallel=1, manifests=True):
    tree = make_tree(
        root, data_parallel=data_parallel, model_parallel=model_parallel, parameters={"w": SLICE // 4, "b": 7}
    )
    if manifests:
        save_manifests(tree)
    return tree


@pytest.fixture(autouse=True)
def _loaded(tmp_path):
    """Import what a copy imports before anything is counted."""
    copied(make_tree(tmp_path / "small"), tmp_path / "first")


def close_to(slices):
    return pytest.approx(slices, abs=LITTLE / SLICE)


@pytest.mark.parametrize(
    ("manifests", "options", "first", "second"),
    [
        (False, {}, 2 + 1 + 1, 2),
        (True, {}, 1 + 1, 0),
        (False, {"verify": False}, 2 + 1, 2),
        (True, {"verify": False}, 1, 0),
        (False, {"verify": True}, 2 + 1 + 1, 2 + 1),
        (True, {"verify": True}, 2 + 1 + 1, 2 + 1),
    ],
)
def test_two_replicas(tmp_path, manifests, options, first, second):
    """Proven where no manifest does it, sent, and read back; a second copy sends nothing."""
    tree = tree_of(tmp_path / "tree", manifests=manifests)
    assert copied(tree, tmp_path / "backup", **options)[1] == close_to(first)
    outcome, again = copied(tree, tmp_path / "backup", **options)
    assert again == close_to(second)
    assert outcome.uploaded == 0


@pytest.mark.parametrize("seed", range(examples(6)))
def test_what_a_copy_reads_is_what_it_proves_sends_and_reads_back(tmp_path, seed):
    """Any number of ranks and replicas, of which some are sealed."""
    draw = random.Random(seed)
    replicas, contents = draw.randint(1, 3), draw.randint(1, 2)
    tree = tree_of(tmp_path / "tree", data_parallel=replicas, model_parallel=contents, manifests=False)
    api.seal(api.scan(tree))
    share = 0.5 if replicas > 1 else draw.choice([0.0, 1.0])  # a lone slice without, beside others with, is refused
    bare = [path for path in sorted(tree.rglob("*.manifest.json")) if draw.random() < share]
    for path in bare:
        path.unlink()
    _, read = copied(tree, tmp_path / "backup", jobs=draw.randint(1, 4))
    assert read == close_to(len(bare) + 2 * contents)
    _, again = copied(tree, tmp_path / "backup")
    assert again == close_to(len(bare))


@pytest.mark.parametrize(("manifests", "proven"), [(False, 2), (True, 1)])
def test_a_dry_run_reads_what_proves_the_step(tmp_path, manifests, proven):
    """Each contents once where manifests say what they are, every slice otherwise, and nothing twice."""
    tree = tree_of(tmp_path / "tree", manifests=manifests)
    assert copied(tree, tmp_path / "backup", dry_run=True)[1] == close_to(proven)
    copied(tree, tmp_path / "backup")
    assert copied(tree, tmp_path / "backup", dry_run=True)[1] == close_to(0 if manifests else 2)


@pytest.mark.parametrize("newest", ["no slice", "no manifest", "half a slice"])
def test_a_newest_step_that_is_not_whole_costs_little(tmp_path, newest):
    """As a training leaves it that was killed while it saved: the step before is copied as if that were not there."""
    tree = make_tree(
        tmp_path / "tree",
        data_parallel=2,
        model_parallel=1,
        steps=(Step(1, 7), Step(1, 8)),
        parameters={"w": SLICE // 4, "b": 7},
    )
    save_manifests(tree)
    path = tree / "ckpt_dir1" / "test-1_8.ckpt"
    (tree / "ckpt_dir1" / "test-1_8.ckpt.manifest.json").unlink()
    (tree / "ckpt_dir0" / "test-1_8.ckpt.manifest.json").unlink()
    if newest == "no slice":
        path.unlink()
    elif newest == "half a slice":
        path.chmod(0o600)
        os.truncate(path, SLICE // 2)
    outcome, read = copied(tree, tmp_path / "backup")
    assert outcome.step == Step(1, 7)
    assert read == close_to(2)
