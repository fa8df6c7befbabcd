"""A watch over a tree, round by round with a clock of its own."""

import os
import shutil
import tempfile

import pytest

from ms_recover import api
from ms_recover.errors import MissingInputError, StorageError
from ms_recover.execution.lock import lock_tree
from ms_recover.file_names import MANIFEST_SUFFIX, WATCH_LOCK_PREFIX
from ms_recover.formats.group_info import read_group_info
from ms_recover.formats.manifest import read_manifest
from ms_recover.model.options import PlanOptions, ScanOptions
from ms_recover.model.steps import Step
from ms_recover.stores.local_store import LocalFile
from ms_recover.supervision.look import Directories
from ms_recover.supervision.quiet import QuietSteps
from ms_recover.supervision.watch import Watch
from ms_recover.testing.trees import make_tree, slice_bytes
from tests.support.iterations import Job, write_job

QUIET = 10.0


def without_lists(tree):
    """Remove the rank lists: the layouts alone say who holds the same."""
    for path in tree.rglob("group_info.pb"):
        path.unlink()
    assert next(tree.rglob("strategy.ckpt"))
    return tree


class Clocked:
    """A watch whose time passes by calls of `after`."""

    def __init__(self, root, **options):
        self.now = 0.0
        self.lines, self.troubles = [], []
        self.watch = Watch(
            root=str(root),
            quiet_for=QUIET,
            on_sealed=self.lines.append,
            on_trouble=self.troubles.append,
            clock=lambda: self.now,
            **options,
        )
        self.steps, self.directories = QuietSteps(QUIET), Directories(str(root))

    def after(self, seconds):
        """Let time pass in looks of a second; return the steps that were sealed."""
        before = len(self.lines)
        for _ in range(seconds):
            self.now += 1
            self.watch.round(self.steps, self.directories)
        return [str(line.step) for line in self.lines[before:]]


@pytest.fixture(autouse=True)
def locks(tmp_path_factory, monkeypatch):
    """Where the locks of watches lie."""
    folder = tmp_path_factory.mktemp("locks")
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(folder))
    yield folder
    assert all(path.name.startswith(WATCH_LOCK_PREFIX) for path in folder.iterdir())


@pytest.fixture
def clocked(tmp_path):
    return lambda root=tmp_path, **options: Clocked(root, **options)


def manifests(root):
    return sorted(
        str(path.relative_to(root)).removesuffix(MANIFEST_SUFFIX) for path in root.rglob(f"*{MANIFEST_SUFFIX}")
    )


def save(root, step, ranks=range(4), seed=0):
    """Write slices as MindSpore does: under another name, then renamed, then read-only."""
    for rank in ranks:
        folder = root / f"ckpt_dir{rank}"
        folder.mkdir(parents=True, exist_ok=True)
        name = folder / f"test-{step}.tmp"
        name.write_bytes(slice_bytes({"w": 6, "b": 2}, seed=seed + rank % 2))
        name.rename(folder / f"test-{step}.ckpt")
        (folder / f"test-{step}.ckpt").chmod(0o400)


def test_a_complete_step_is_sealed_when_it_is_quiet(tmp_path, clocked):
    make_tree(tmp_path)
    watch = clocked()
    assert watch.after(10) == []
    assert watch.after(2) == ["1_8"]
    (line,) = watch.lines
    assert (len(line.sealed), line.wrong, line.root) == (4, (), str(tmp_path))
    assert line.bytes == sum(path.stat().st_size for path in tmp_path.rglob("*.ckpt"))
    assert len(manifests(tmp_path)) == 4
    assert read_manifest(tmp_path / f"ckpt_dir0/test-1_8.ckpt{MANIFEST_SUFFIX}").provenance.evidence == "vote"
    assert not api.verify(api.scan(tmp_path)).wrong
    assert watch.after(200) == []


def test_steps_come_one_after_the_other(tmp_path, clocked):
    make_tree(tmp_path)
    watch = clocked()
    assert watch.after(30) == ["1_8"]
    save(tmp_path, "1_9")
    assert watch.after(9) == []
    assert watch.after(5) == ["1_9"]
    save(tmp_path, "2_1")
    save(tmp_path, "2_2")
    assert watch.after(30) == ["2_2", "2_1"]


def test_a_step_that_is_being_saved_waits(tmp_path, clocked):
    make_tree(tmp_path)
    watch = clocked()
    watch.after(30)
    for rank in range(4):
        save(tmp_path, "1_9", [rank])
        assert watch.after(25) == (["1_9"] if rank == 3 else [])
    assert watch.troubles[1:] == [
        "step 1_9 is not sealed: no slice of ranks 1, 2, 3",
        "step 1_9 is not sealed: no slice of ranks 2, 3",
        "step 1_9 is not sealed: no slice of rank 3",
    ]


def test_a_slice_that_grows_in_place_waits(tmp_path, clocked):
    """Some file systems' writers do not rename."""
    make_tree(tmp_path)
    whole = (tmp_path / "ckpt_dir0/test-1_8.ckpt").read_bytes()
    path = tmp_path / "ckpt_dir0" / "test-1_9.ckpt"
    save(tmp_path, "1_9", [1, 2, 3])
    path.write_bytes(whole[:10])
    watch = clocked()
    for length in range(20, 60, 10):
        watch.after(8)
        path.write_bytes(whole[:length])
    assert "1_9" not in [str(line.step) for line in watch.lines]
    path.write_bytes(slice_bytes({"w": 6, "b": 2}, seed=0))
    assert watch.after(25) == ["1_9"]
    assert watch.lines[-1].wrong == ()


def test_what_is_sealed_is_not_read_again(tmp_path, clocked, monkeypatch):
    make_tree(tmp_path)
    watch = clocked()
    watch.after(60)
    read, scans = [], []
    through, scan = LocalFile.read_range, api.scan
    monkeypatch.setattr(LocalFile, "read_range", lambda *a, **k: read.append(1) or through(*a, **k))
    monkeypatch.setattr(api, "scan", lambda *a, **k: scans.append(1) or scan(*a, **k))
    watch.after(1000)
    assert (read, scans) == ([], [])
    save(tmp_path, "1_9")
    watch.after(60)
    assert len(read) == 4
    assert len(scans) <= 5


def test_a_damaged_slice_is_named_once_and_the_others_are_sealed(tmp_path, clocked):
    make_tree(tmp_path)
    path = tmp_path / "ckpt_dir1" / "test-1_8.ckpt"
    path.chmod(0o600)
    os.truncate(path, 30)
    watch = clocked()
    assert watch.after(200) == ["1_8"]
    (line,) = watch.lines
    assert [check.rank for check in line.wrong] == [1]
    assert len(line.sealed) == 3
    assert "ckpt_dir1/test-1_8.ckpt" not in manifests(tmp_path)
    path.write_bytes((tmp_path / "ckpt_dir3/test-1_8.ckpt").read_bytes())  # mended by hand
    assert watch.after(30) == ["1_8"]
    assert watch.lines[-1].sealed == ("ckpt_dir1/test-1_8.ckpt",)


def test_a_damaged_crc_is_found(tmp_path, clocked):
    make_tree(tmp_path, crc=True, data_parallel=1)
    path = tmp_path / "ckpt_dir1" / "test-1_8.ckpt"
    path.chmod(0o600)
    data = bytearray(path.read_bytes())
    data[-30] ^= 1
    path.write_bytes(data)
    watch = clocked()
    assert watch.after(30) == ["1_8"]
    assert [check.rank for check in watch.lines[0].wrong] == [1]
    unchecked = clocked(scanning=ScanOptions(crc=False))
    assert unchecked.after(30) == ["1_8"]


def test_a_slice_that_is_replaced_while_it_is_sealed_gets_no_manifest(tmp_path, clocked, monkeypatch):
    make_tree(tmp_path)
    watch = clocked()
    seal = api.seal

    def replace_and_seal(*arguments, **options):
        done = seal(*arguments, **options)
        fresh = tmp_path / "fresh"
        fresh.write_bytes(slice_bytes({"w": 6}, seed=9))
        fresh.rename(tmp_path / "ckpt_dir2" / "test-1_8.ckpt")
        monkeypatch.setattr(api, "seal", seal)
        return done

    monkeypatch.setattr(api, "seal", replace_and_seal)
    assert watch.after(12) == ["1_8"]
    assert manifests(tmp_path) == [f"ckpt_dir{rank}/test-1_8.ckpt" for rank in (0, 1, 3)]
    assert len(watch.lines[0].sealed) == 3


def test_manifests_of_rotated_steps_are_removed(tmp_path, clocked):
    make_tree(tmp_path)
    watch = clocked()
    watch.after(30)
    save(tmp_path, "1_9")
    watch.after(30)
    for rank in range(3):
        (tmp_path / f"ckpt_dir{rank}" / "test-1_8.ckpt").unlink()
    watch.after(30)
    assert "ckpt_dir0/test-1_8.ckpt" in manifests(tmp_path)  # rank 3 still has its slice: perhaps the others are lost
    (tmp_path / "ckpt_dir3" / "test-1_8.ckpt").unlink()
    watch.after(30)
    assert manifests(tmp_path) == [f"ckpt_dir{rank}/test-1_9.ckpt" for rank in range(4)]


def test_manifests_of_a_newest_step_that_is_lost_stay(tmp_path, clocked):
    make_tree(tmp_path)
    save(tmp_path, "1_9")
    watch = clocked()
    watch.after(60)
    for path in tmp_path.rglob("test-1_9.ckpt"):
        path.unlink()
    watch.after(60)
    assert len(manifests(tmp_path)) == 8


def test_a_root_that_is_not_there_yet_or_goes_away(tmp_path, clocked):
    root = tmp_path / "later"
    watch = clocked(root)
    with pytest.raises(MissingInputError, match="later"):
        watch.after(1)
    root.mkdir()
    with pytest.raises(MissingInputError, match="holds no slices"):
        watch.after(1)
    make_tree(root)
    assert watch.after(30) == ["1_8"]
    shutil.rmtree(root)
    with pytest.raises(MissingInputError):
        watch.after(1)
    make_tree(root)
    assert watch.after(30) == ["1_8"]


def test_a_full_disk_is_tried_again_later(tmp_path, clocked, monkeypatch):
    make_tree(tmp_path)
    watch = clocked()
    seal, attempts = api.seal, []

    def full(*arguments, **options):
        attempts.append(watch.now)
        raise StorageError("writing x: No space left on device")

    monkeypatch.setattr(api, "seal", full)
    watch.after(200)
    assert 3 <= len(attempts) <= 6
    assert watch.troubles[1:] == ["step 1_8 is not sealed yet: writing x: No space left on device"]
    monkeypatch.setattr(api, "seal", seal)
    assert watch.after(400) == ["1_8"]


def test_a_recovery_at_work_is_waited_for(tmp_path, clocked):
    make_tree(tmp_path)
    watch = clocked()
    with lock_tree(str(tmp_path)):
        assert watch.after(15) == []
    assert "another recovery is at work" in watch.troubles[-1]
    assert watch.after(60) == ["1_8"]


def test_a_part_of_the_ranks_is_sealed_where_it_is_said_so(tmp_path, clocked):
    make_tree(tmp_path)
    for rank in (0, 1):
        shutil.rmtree(tmp_path / f"ckpt_dir{rank}")
    whole = clocked()
    assert whole.after(40) == []
    assert "no slice of ranks 0, 1" in whole.troubles[-1]
    part = clocked(judging=PlanOptions(ranks=frozenset({2, 3}), world_size=4))
    assert part.after(40) == ["1_8"]
    assert part.troubles == []
    assert read_manifest(tmp_path / f"ckpt_dir2/test-1_8.ckpt{MANIFEST_SUFFIX}").world_size == 4


def test_one_step_alone(tmp_path, clocked):
    make_tree(tmp_path, steps=[Step(1, 4), Step(1, 8)])
    assert clocked(judging=PlanOptions(step=Step(1, 4))).after(60) == ["1_4"]


def test_doubts_about_the_world_are_named(tmp_path, clocked):
    make_tree(tmp_path)
    watch = clocked()
    watch.after(30)
    assert watch.troubles == ["the world is taken to be 4 ranks by the ranks that have files; --world-size states it"]
    save(tmp_path, "1_9", range(6))
    watch.after(30)
    assert "rank 4 has files, but the world has 4 ranks" in watch.troubles[-1]


def running(root, rounds, **options):
    """Run a watch for some rounds of its loop; return what it was told."""
    troubles, left = [], [rounds]

    def sleep(seconds):
        left[0] -= 1
        if not left[0]:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Watch(root=str(root), on_sealed=lambda line: None, on_trouble=troubles.append, sleep=sleep, **options).run()
    return troubles


def test_the_same_trouble_is_told_once(tmp_path):
    troubles = running(tmp_path / "none", 5)
    assert len(troubles) == 1
    assert "it is watched as soon as it is there" in troubles[0]


def test_a_second_watch_waits_for_the_first(tmp_path):
    make_tree(tmp_path)
    told = []
    first = Watch(
        root=str(tmp_path),
        on_sealed=lambda line: None,
        on_trouble=lambda text: None,
        sleep=lambda seconds: told.extend(running(tmp_path, 3)) or (_ for _ in ()).throw(KeyboardInterrupt),
    )
    with pytest.raises(KeyboardInterrupt):
        first.run()
    assert told == [f"another watch is at work on {tmp_path}; waiting for its end"]
    assert {path.suffix for path in tmp_path.rglob("*") if path.is_file()} == {".ckpt", ".pb"}
    assert running(tmp_path, 2)[0].startswith("the world is taken")  # the lock is free again


def test_a_tree_that_cannot_be_locked_is_watched_all_the_same(tmp_path, monkeypatch):
    make_tree(tmp_path)
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path / "none"))
    assert "the world" in running(tmp_path, 2)[0]


def test_links_that_lead_in_a_circle_are_looked_at_once(tmp_path):
    make_tree(tmp_path / "tree")
    (tmp_path / "tree" / "again").symlink_to(tmp_path / "tree")
    (tmp_path / "tree" / "elsewhere").symlink_to(tmp_path / "nowhere")
    looked = Directories(str(tmp_path / "tree")).look()
    assert len(looked) == 5


def test_rank_lists_are_written_where_layouts_and_contents_agree(fixture_tree, clocked):
    tree = without_lists(fixture_tree("dp2_mp4"))
    watch = clocked(tree)
    watch.after(60)
    for rank in range(8):
        listed = read_group_info(str(tree / f"ckpt_dir{rank}" / "group_info.pb"))
        assert listed.restore_ranks == (rank % 4, rank % 4 + 4)
    assert not api.verify(api.scan(tree)).wrong
    assert len(watch.lines) == len(api.scan(tree).steps)


def test_no_rank_list_is_written_where_contents_differ(fixture_tree, clocked):
    """The slices of ranks 1 and 5 were exchanged with those of 2 and 6: so are two of another layout."""
    tree = without_lists(fixture_tree("dp2_mp4"))
    for path in (tree / "ckpt_dir1").glob("*-*.ckpt"):
        other = tree / "ckpt_dir2" / path.name
        data = path.read_bytes()
        for one, content in ((path, other.read_bytes()), (other, data)):
            one.chmod(0o600)
            one.write_bytes(content)
    watch = clocked(tree)
    watch.after(60)
    for rank in (1, 2, 5, 6):
        assert not (tree / f"ckpt_dir{rank}" / "group_info.pb").exists()


def test_manifests_that_were_sealed_without_lists_stay_right_when_lists_come(tmp_path, clocked):
    make_tree(tmp_path)
    lists = {path: path.read_bytes() for path in tmp_path.rglob("group_info.pb")}
    for path in lists:
        path.unlink()
    clocked().after(60)
    for path, data in lists.items():
        path.write_bytes(data)
    found = api.verify(api.scan(tmp_path))
    assert {(check.status, check.evidence) for check in found.checks} == {("sound", "vote")}


@pytest.fixture
def iterations(tmp_path):
    """A tree of two iterations, of eight ranks."""
    return write_job(tmp_path / "iterations", Job(data_parallel=4))


def test_the_newest_iterations_are_sealed_and_the_oldest_is_left_to_the_job(iterations, clocked):
    watch = clocked(iterations)
    assert watch.after(60) == ["200"]
    assert watch.troubles == []
    folders = {path.split("/")[0] for path in manifests(iterations)}
    assert folders == {"iteration_00000200"}
    assert len(watch.lines[0].sealed) == 16
    assert not api.verify(api.scan(iterations)).wrong


@pytest.mark.parametrize("kind", ["model", "opt"])
def test_an_iteration_without_its_last_file_waits(iterations, clocked, kind):
    """No other file of the tree is of rank 7: the names of the others say that it is one of eight."""
    for path in iterations.rglob("*-0000007-0000008.safetensors"):
        if kind in path.name or "00000100" in str(path):
            path.unlink()
    watch = clocked(iterations)
    assert watch.after(60) == []
    assert f"step 200 is not sealed: no {kind} file of rank 7" in watch.troubles
