"""An interleaved pipeline as MindSpore's own compiler cuts it: the last stage holds an embedding without layout.

`tests.support.ascend` says what is real here and what is not.
"""

import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from ms_recover import api
from ms_recover.execution.manifests import write_manifest
from ms_recover.file_names import MANIFEST_SUFFIX
from ms_recover.formats.header import read_header
from ms_recover.formats.manifest import read_manifest
from ms_recover.formats.strategy import read_strategy
from ms_recover.model.options import PlanOptions
from tests.support.ascend import libraries
from tests.support.sample import REPOSITORY

WHY_NOT = libraries.why_not()
pytestmark = [
    pytest.mark.mindspore,
    pytest.mark.timeout(900),
    pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT)),
]

SIZE = 8
TABLE = "embedding.table"
SLICE = "test-1_4.ckpt"
MANIFESTS = ["saved", "sealed", "none"]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """The tree of dp 2 x mp 2 on two stages in turn, its slices filled with known bytes by the layouts."""
    without_a_device = libraries.build(tmp_path_factory.mktemp("libraries"))
    folder = tmp_path_factory.mktemp("saved")
    (folder / "interleaved").mkdir()

    def save(rank):
        path = os.pathsep.join([str(REPOSITORY), without_a_device["PYTHONPATH"]])
        numbers = {"RANK_ID": str(rank), "RANK_SIZE": str(SIZE), "DEVICE_ID": str(rank), "GLOG_v": "3"}
        numbers["MS_RECOVER_RUN_ID"] = "run"
        done = subprocess.run(
            [sys.executable, "-m", "tests.support.ascend.rank", str(folder), "save:interleaved"],
            check=False,
            cwd=folder,
            env={**os.environ, **without_a_device, "PYTHONPATH": path, **numbers},
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-8000:]

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(save, range(SIZE)))
    for path in folder.rglob(SLICE):  # the time of the start is rank 0's, which no simulated rank gets from another
        manifest = read_manifest(f"{path}{MANIFEST_SUFFIX}")
        write_manifest(str(path), replace(manifest, training=replace(manifest.training, started=1)))
    return folder / "interleaved"


@pytest.fixture
def tree(saved, tmp_path):
    def make(manifests="saved"):
        root = tmp_path / "tree"
        shutil.copytree(saved, root)
        if manifests != "saved":
            for path in root.rglob(f"*{MANIFEST_SUFFIX}"):
                path.unlink()
        if manifests == "sealed":
            sealed, _ = api.seal(api.scan(root))
            assert len(sealed) == SIZE
        return root

    return make


def slices_of(root):
    return {path.parent.name: path.read_bytes() for path in root.rglob(SLICE)}


def recover(root, *, quick=False):
    plan = api.plan(api.scan(root), PlanOptions(world_size=SIZE, quick=quick))
    assert plan.recoverable, plan.disagreements
    outcome = api.apply(plan)
    assert outcome.exit_code == 0, outcome
    again = api.plan(api.scan(root), PlanOptions(world_size=SIZE))
    assert again.recoverable
    assert not again.changes_anything
    return plan


def test_the_last_stage_holds_halves_of_an_embedding_that_its_strategy_file_does_not_name(saved):
    for rank in range(4, SIZE):
        folder = saved / f"ckpt_dir{rank}"
        named = {layout.parameter for layout in read_strategy(folder / "strategy.ckpt").layouts}
        assert TABLE not in named
        assert {f"moment1.{TABLE}", f"accu_grads.{TABLE}"} <= named
        shapes = {one.name: one.shape for one in read_manifest(folder / f"{SLICE}{MANIFEST_SUFFIX}").parameters}
        assert shapes[TABLE] == shapes[f"moment1.{TABLE}"] == (32, 16)
    held = [contents_of(saved / f"ckpt_dir{rank}" / SLICE, TABLE) for rank in range(4, SIZE)]
    assert held[0] == held[2] != held[1] == held[3]


def contents_of(path, name):
    header, data = read_header(str(path)), path.read_bytes()
    number = [one.name for one in header.parameters].index(name)
    return b"".join(data[part.start : part.end] for part in header.contents[number])


@pytest.mark.parametrize("quick", [False, True], ids=["read", "quick"])
@pytest.mark.parametrize("manifests", MANIFESTS)
@pytest.mark.parametrize("rank", [4, 7])
def test_a_lost_rank_of_the_last_stage_is_recovered_and_nothing_else_is_written(saved, tree, rank, manifests, quick):
    root = tree(manifests)
    shutil.rmtree(root / f"ckpt_dir{rank}")
    plan = recover(root, quick=quick)
    assert [action.rank for action in plan.actions] == [rank]
    assert slices_of(root) == slices_of(saved)


@pytest.mark.parametrize("manifests", ["saved", "sealed"])
def test_a_flipped_bit_of_the_embedding_is_mended_alone(saved, tree, manifests):
    root = tree(manifests)
    path = root / "ckpt_dir7" / SLICE
    header = read_header(str(path))
    number = [one.name for one in header.parameters].index(TABLE)
    data = bytearray(path.read_bytes())
    data[header.contents[number][0].start + 5] ^= 4
    path.chmod(0o600)
    path.write_bytes(data)
    assert [action.rank for action in recover(root).actions] == [7]
    assert slices_of(root) == slices_of(saved)


@pytest.mark.parametrize("quick", [False, True], ids=["read", "quick"])
@pytest.mark.parametrize("manifests", MANIFESTS)
def test_where_both_ranks_of_a_half_are_lost_partial_gives_them_no_other_half(saved, tree, manifests, quick):
    root = tree(manifests)
    for rank in (5, 7):
        shutil.rmtree(root / f"ckpt_dir{rank}")
    plan = api.plan(api.scan(root), PlanOptions(world_size=SIZE, quick=quick))
    assert not plan.recoverable
    assert api.apply(plan, partial=True).exit_code == 4
    before = slices_of(saved)
    assert slices_of(root) == {name: before[name] for name in before.keys() - {"ckpt_dir5", "ckpt_dir7"}}
    for rank in (5, 7):
        (written,) = (root / f"ckpt_dir{rank}").glob("*.partial.ckpt")
        right = saved / f"ckpt_dir{rank}" / SLICE
        names = [one.name for one in read_header(str(written)).parameters]
        assert names
        assert TABLE not in names
        assert all(contents_of(written, name) == contents_of(right, name) for name in names)
