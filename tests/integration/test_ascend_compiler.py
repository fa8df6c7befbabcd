"""Networks that MindSpore's own parallel compiler cuts, for the Ascend target, on a machine without one.

`tests.support.ascend` says what is real here and what is not; docs/ascend.md what only a device can show.
"""

import json
import os
import shutil
import subprocess
import sys

import pytest

from ms_recover.execution.rank_lists import write_group_info
from ms_recover.formats.group_info import read_group_info
from ms_recover.formats.manifest import read_manifest
from ms_recover.formats.strategy import read_strategy
from tests.support.ascend import libraries
from tests.support.sample import REPOSITORY, SAMPLE, make_pairs

WHY_NOT = libraries.why_not()
pytestmark = [
    pytest.mark.mindspore,
    pytest.mark.timeout(900),
    pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT)),
]
more = pytest.mark.skipif("MS_RECOVER_EXAMPLES" not in os.environ, reason="only with MS_RECOVER_EXAMPLES: minutes")

SIZE = 16
SAME = {
    "mp4": {1, 5, 9, 13},
    "mp4-optimizer": {1},
    "mp4-optimizer-in-2": {1, 9},
    "2-stages": {1, 5},
    "2-stages-optimizer": {1},
}
"""The ranks that hold what rank 1 does: dp 4 x mp 4, and on two stages dp 2 x mp 4 each."""


@pytest.fixture(scope="session")
def without_a_device(tmp_path_factory):
    return libraries.build(tmp_path_factory.mktemp("libraries"))


@pytest.fixture(scope="module")
def start(without_a_device):
    """Run one simulated rank to its end."""

    def run(rank, folder, module, *arguments, size=SIZE, **variables):
        path = os.pathsep.join([str(REPOSITORY), without_a_device["PYTHONPATH"]])
        numbers = {"RANK_ID": str(rank), "RANK_SIZE": str(size), "DEVICE_ID": str(rank), "GLOG_v": "3"}
        done = subprocess.run(
            [sys.executable, "-m", module, *map(str, arguments)],
            check=False,
            cwd=folder,
            env={**os.environ, **without_a_device, "PYTHONPATH": path, **numbers, **variables},
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-8000:]
        return done.stdout + done.stderr

    return run


@pytest.fixture(scope="module")
def jobs(start):
    """Run jobs of `tests.support.ascend.rank`; return what the last one found."""

    def run(rank, folder, *names, **variables):
        for name in names:
            (folder / name.partition(":")[2]).mkdir(parents=True, exist_ok=True)
        start(rank, folder, "tests.support.ascend.rank", folder, *names, **variables)
        job, _, layout = names[-1].partition(":")
        return found(folder, layout, job, rank)

    return run


def found(folder, layout, job, rank):
    return json.loads((folder / layout / f"{job}{rank}.json").read_text())


def slice_digests(folder, layout, rank, name="test-1_4.ckpt"):
    manifest = read_manifest(folder / layout / f"ckpt_dir{rank}" / f"{name}.manifest.json")
    names = (parameter.name for parameter in manifest.parameters)
    return dict(zip(names, manifest.digests.parameters, strict=True))


@pytest.fixture(scope="module")
def saved(jobs, tmp_path_factory):
    """Every layout as rank 1 compiles, trains and saves it."""
    folder = tmp_path_factory.mktemp("saved")
    jobs(1, folder, *(f"save:{layout}" for layout in SAME))
    return folder


@pytest.mark.parametrize("layout", SAME)
def test_the_rank_list_lies_where_slices_do_and_says_what_follows_from_the_layouts(saved, layout):
    from ms_recover.training.layouts import same_slice

    directory = saved / layout / "ckpt_dir1"
    listed = read_group_info(directory / "group_info.pb", owner=1, world_size=SIZE)
    derived = same_slice(read_strategy(directory / "strategy.ckpt").layouts, 1, SIZE)
    assert set(listed.restore_ranks) == set(derived) == SAME[layout]
    assert listed.groups


@pytest.mark.parametrize("layout", SAME)
def test_slices_hold_the_local_parts_of_the_compiled_network(saved, layout):
    digests, manifest = found(saved, layout, "save", 1)["digests"], slice_digests(saved, layout, 1)
    assert digests
    assert manifest == digests
    shapes = {one.name: one.shape for one in read_manifest(next((saved / layout).rglob("*.manifest.json"))).parameters}
    shards = {"mp4": 1, "mp4-optimizer": 4, "mp4-optimizer-in-2": 2, "2-stages": 1, "2-stages-optimizer": 2}[layout]
    assert shapes["front.up"] == shapes["moment1.front.up"] == (32 // 4 // shards, 16)
    assert ("back.up" in shapes) == (not layout.startswith("2-stages"))


def lose_and_recover(jobs, folder, layout, lost):
    """Save as another rank too, lose what it has, and resume it; return what it had and what it found."""
    after = jobs(lost, folder, f"save:{layout}", f"lose:{layout}", f"recover:{layout}")
    before = found(folder, layout, "save", lost)["digests"]
    assert before == found(folder, layout, "save", 1)["digests"]
    return before, after


def check_recovered(folder, layout, rank, before, after, source):
    assert "the compiler of (semi-)auto parallel cuts its parameters, and has not yet: compile it" in after["early"]
    assert after["step"] == "1_4"
    assert after["digests"] == before
    manifest = read_manifest(folder / layout / f"ckpt_dir{rank}" / "test-1_4.ckpt.manifest.json")
    assert [one.rank for one in manifest.provenance.sources] == ([] if source is None else [source])
    assert slice_digests(folder, layout, rank, "test_1-2_4.ckpt") == before  # training goes on behind it


def test_a_lost_rank_gets_its_slice_and_loads_it_behind_the_build_only(saved, jobs, tmp_path):
    shutil.copytree(saved / "mp4", tmp_path / "mp4")
    before, after = lose_and_recover(jobs, tmp_path, "mp4", 9)
    check_recovered(tmp_path, "mp4", 9, before, after, 1)


@more
@pytest.mark.parametrize(("layout", "lost"), [("mp4-optimizer-in-2", 9), ("2-stages", 5)])
def test_a_lost_rank_of_other_layouts(saved, jobs, tmp_path, layout, lost):
    shutil.copytree(saved / layout, tmp_path / layout)
    before, after = lose_and_recover(jobs, tmp_path, layout, lost)
    check_recovered(tmp_path, layout, lost, before, after, 1)


@more
@pytest.mark.parametrize("layout", ["mp4-optimizer", "2-stages-optimizer"])
def test_where_nobody_holds_the_same_a_rank_loads_its_own_slice_and_a_lost_one_is_refused(
    saved, jobs, tmp_path, layout
):
    shutil.copytree(saved / layout, tmp_path / layout)
    after = jobs(1, tmp_path, f"recover:{layout}")
    check_recovered(tmp_path, layout, 1, found(tmp_path, layout, "save", 1)["digests"], after, None)
    jobs(5, tmp_path, f"save:{layout}")
    shutil.rmtree(tmp_path / layout / "ckpt_dir5")
    assert "UnrecoverableError" in jobs(5, tmp_path, f"recover:{layout}")["error"]


@more
def test_every_rank_of_the_world(jobs, tmp_path):
    """The rank lists of all ranks are those with the same regions, and with the same bytes."""
    for layout in SAME:
        for rank in range(SIZE):
            jobs(rank, tmp_path, f"save:{layout}")
        digests = [found(tmp_path, layout, "save", rank)["digests"] for rank in range(SIZE)]
        for rank in range(SIZE):
            listed = read_group_info(tmp_path / layout / f"ckpt_dir{rank}" / "group_info.pb", owner=rank).restore_ranks
            assert set(listed) == {other for other in range(SIZE) if digests[other] == digests[rank]}, (layout, rank)


@more
def test_evaluation_and_other_compiles_leave_the_files_of_the_training(jobs, tmp_path):
    seen = jobs(1, tmp_path, "fit:mp4")
    first = seen.pop("training")
    other = seen.pop("the next training")
    assert seen == dict.fromkeys(seen, first)
    assert len(seen) == 4
    assert other["group_info.pb"] != first["group_info.pb"]


@more
def test_an_auto_parallel_network_resumes_without_sink_mode(jobs, tmp_path):
    after = jobs(1, tmp_path, "wrapped:mp4")
    assert after["step"] == "1_4"
    assert after["digests"] == after["saved"]


@more
def test_a_restored_rank_list_does_not_break_the_compile_cache(jobs, tmp_path):
    cache = {"MS_COMPILER_CACHE_ENABLE": "1", "MS_COMPILER_CACHE_PATH": str(tmp_path / "cache")}
    first = jobs(1, tmp_path, "cache:mp4", **cache)["groups"]
    assert first
    shutil.rmtree(tmp_path / "mp4" / "ckpt_dir1")
    (tmp_path / "mp4" / "ckpt_dir1").mkdir()
    write_group_info(tmp_path / "mp4" / "ckpt_dir1" / "group_info.pb", SAME["mp4"])
    assert jobs(1, tmp_path, "cache:mp4", **cache)["groups"] == first


@pytest.mark.parametrize(
    ("layout", "rank", "rows"),
    [
        ("mp2", 0, 16),
        pytest.param("mp2", 1, 16, marks=more),
        pytest.param("mp2-optimizer", 0, 8, marks=more),
        pytest.param("mp2-optimizer", 3, 8, marks=more),
    ],
)
def test_slices_of_four_tensor_parallel_ranks_load_into_a_network_of_two(start, tmp_path, layout, rank, rows):
    (tmp_path / layout).mkdir()
    start(rank, tmp_path, "tests.support.ascend.rank", tmp_path, f"reshard:{layout}", size=4)
    after = found(tmp_path, layout, "reshard", rank)
    assert (after["step"], after["from"]) == ("1_4", 4)
    assert after["digests"] == after["expected"]
    assert after["shapes"]["front.up"] == after["shapes"]["moment1.front.up"] == [rows, 16]
    assert after["kept"] is after["now"] is (True if rank == 0 else None)


@more
@pytest.mark.parametrize(
    "options", [(), ("--enable_parallel_optimizer", 1), ("--pipeline_stage", 2)], ids=["mp", "optimizer", "stages"]
)
def test_the_samples_own_scripts(start, tmp_path, options):
    pairs, mp = make_pairs(tmp_path), 2 if options else 4
    lost = 3 if options else 5
    sizes = ("--batch_size", 16, "--hidden_size", 32, "--ffn_size", 64, "--heads", 4, "--vocab_size", 128)
    common = ("--file_path", pairs, "--output_dir", tmp_path, "--device_target", "Ascend", "--mp", mp, *sizes, *options)
    assert SAMPLE.is_dir()
    for rank in (1, lost):
        start(rank, tmp_path, "tests.support.ascend.sample", "parallel_save_ckpt_train", *common, size=8)
    if "--enable_parallel_optimizer" not in options:
        shutil.rmtree(tmp_path / f"ckpt_dir{lost}")
    text = start(lost, tmp_path, "tests.support.ascend.sample", "parallel_recover_train", *common, size=8)
    assert "parameters of the network have the digests of the manifest" in text
    assert "resumed from step 4_8, trained up to epoch 6" in text
    assert (tmp_path / f"ckpt_dir{lost}" / "test_1-6_8.ckpt.manifest.json").is_file()
