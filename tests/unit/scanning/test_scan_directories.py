"""Which directories are ranks, which cannot be read, and which names are refused, on real directories."""

import os
import shutil
from dataclasses import replace

import pytest

from ms_recover import api
from ms_recover.errors import FormatError, MissingInputError, PermissionDeniedError, StorageError
from ms_recover.formats.record import record
from ms_recover.model.options import PlanOptions, ScanOptions
from ms_recover.model.steps import Step
from ms_recover.testing.trees import make_tree, save_manifests
from tests.support.mishaps import manifest_of, remake_manifest
from tests.support.unprivileged import open_to_all, reachable_folder, run_unprivileged

NAME = "test-1_8.ckpt"
RUN = "run-1"
SCAN = """
found = api.scan(sys.argv[1])
print(json.dumps({
    "ranks": found.ranks,
    "denied": [(rank, note.path, note.reason) for rank, note in found.denied],
    "slices": [(f.path, f.denied, f.problem, f.manifest_problem) for f in found.slices if f.denied or f.problem],
    "groups": [(f.path, f.problem) for f in found.group_files if f.problem],
    "notes": [(note.path, note.reason) for note in found.notes],
}))
"""
REFUSED = """
try:
    api.scan(sys.argv[1], ScanOptions(group_info=tuple(sys.argv[2:])))
except PermissionDeniedError as error:
    print(json.dumps([error.exit_code, str(error)]))
"""


@pytest.fixture
def tree(tmp_path):
    return make_tree(tmp_path / "tree")


@pytest.fixture
def reachable():
    with reachable_folder() as folder:
        yield folder


def notes(inventory):
    return {note.path: note.reason for note in inventory.notes}


# --- directories without slices -------------------------------------------------------------------------------------


def test_directories_without_slices_are_no_ranks_and_get_one_note(tree):
    before = api.plan(api.scan(tree))
    (tree / "ckpt_dir8").mkdir()
    (tree / "rank_9").mkdir()
    (tree / "rank_9/train.log").write_text("step 1")
    (tree / "rank_1000000").mkdir()
    inventory = api.scan(tree)
    assert inventory.ranks == (0, 1, 2, 3)
    assert notes(inventory) == {"ckpt_dir8, rank_9, rank_1000000": "no slice in it: not counted as ranks"}
    assert replace(api.plan(inventory), notes=()) == replace(before, notes=())


def test_more_empty_directories_are_counted_in_the_note(tree):
    for rank in range(100, 140):
        (tree / f"rank_{rank}").mkdir()
    assert list(notes(api.scan(tree))) == ["rank_100, rank_101, rank_102 and 37 more"]


def test_an_empty_directory_of_a_rank_that_has_files_elsewhere_is_not_noted(tree):
    (tree / "rank_0").mkdir()
    assert not api.scan(tree).notes


@pytest.mark.parametrize("left", ["group_info.pb", "strategy.ckpt", f"{NAME}.manifest.json", NAME])
def test_a_rank_list_a_strategy_file_a_manifest_or_a_damaged_slice_makes_a_rank(tree, left):
    folder = tree / "ckpt_dir7"
    folder.mkdir()
    (folder / left).write_bytes(b"junk")
    assert api.scan(tree).ranks == (0, 1, 2, 3, 7)


def test_a_tree_of_empty_directories_is_a_clear_error(tmp_path):
    for rank in range(5):
        (tmp_path / f"ckpt_dir{rank}").mkdir()
    with pytest.raises(MissingInputError, match=r"no slice \(ckpt_dir0, ckpt_dir1, ckpt_dir2 and 2 more\): name ano"):
        api.scan(tmp_path)
    inventory = api.scan(tmp_path, ScanOptions(may_be_empty=True))
    assert inventory.ranks == ()
    assert len(inventory.notes) == 1


def test_directories_that_match_a_pattern_and_hold_no_slice_are_no_ranks(tmp_path):
    make_tree(tmp_path, directory="x{rank}")
    (tmp_path / "x9").mkdir()
    inventory = api.scan(tmp_path, ScanOptions(pattern="x{rank}/{prefix}-{epoch}_{step}.ckpt"))
    assert inventory.ranks == (0, 1, 2, 3)
    assert notes(inventory) == {"x9": "no slice in it: not counted as a rank"}


# --- orphan manifests -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pattern", [None, "ckpt_dir{rank}/{prefix}-{epoch}_{step}.ckpt"])
def test_a_manifest_whose_slice_is_gone_is_recorded(tree, pattern):
    save_manifests(tree)
    (tree / "ckpt_dir2" / NAME).unlink()
    inventory = api.scan(tree, ScanOptions(pattern=pattern))
    (orphan,) = inventory.orphans
    assert (orphan.rank, orphan.step, orphan.path) == (2, Step(1, 8), f"ckpt_dir2/{NAME}")
    assert orphan.place.of(3) == f"ckpt_dir3/{NAME}"
    assert orphan.manifest is not None
    assert orphan.manifest.rank == 2
    assert [file.rank for file in inventory.slices] == [0, 1, 3]
    (printed,) = record(inventory)["orphans"]
    assert printed == {"rank": 2, "epoch": 1, "step": 8, "path": f"ckpt_dir2/{NAME}", "problem": None}


def test_an_orphan_manifest_alone_keeps_its_rank(tree):
    save_manifests(tree)
    for name in (NAME, "group_info.pb"):
        (tree / "ckpt_dir3" / name).unlink()
    assert api.scan(tree).ranks == (0, 1, 2, 3)


def test_a_damaged_orphan_manifest_is_recorded_with_its_problem(tree):
    (tree / "ckpt_dir1" / NAME).rename(tree / "ckpt_dir1" / "aside")
    (tree / "ckpt_dir1" / f"{NAME}.manifest.json").write_text("{")
    (orphan,) = api.scan(tree).orphans
    assert orphan.manifest is None
    assert orphan.problem.startswith("its manifest is not a manifest")


def test_manifests_of_slices_set_aside_are_no_orphans(tree):
    (tree / "ckpt_dir1" / f"{NAME}.superseded.manifest.json").write_text("{}")
    (tree / "ckpt_dir1" / "test-1_8.partial.ckpt.manifest.json").write_text("{}")
    assert api.scan(tree).orphans == ()


# --- links, inodes, special files -----------------------------------------------------------------------------------


def test_slices_carry_their_inode_through_links(tree):
    target = tree / "ckpt_dir0" / NAME
    for rank, link in ((1, os.link), (2, os.symlink)):
        (tree / f"ckpt_dir{rank}" / NAME).unlink()
        link(target, tree / f"ckpt_dir{rank}" / NAME)
    status = target.stat()
    inodes = {file.rank: file.inode for file in api.scan(tree).slices}
    assert inodes[0] == inodes[1] == inodes[2] == (status.st_dev, status.st_ino)
    assert inodes[3] != inodes[0]


def test_names_of_ranks_that_are_no_directories_get_one_clear_note_each(tree):
    (tree / "rank_4").symlink_to(tree / "nowhere")
    (tree / "rank_5").symlink_to("rank_5")
    (tree / "rank_6").write_text("a file")
    os.mkfifo(tree / "rank_7")
    inventory = api.scan(tree)
    assert inventory.ranks == (0, 1, 2, 3)
    assert inventory.denied == ()
    reasons = notes(inventory)
    assert {path: reason.partition(":")[0] for path, reason in reasons.items()} == {
        "rank_4": "a link to a directory that is not there",
        "rank_5": "a link that leads to itself",
        "rank_6": "named like a rank's directory, but it is none",
        "rank_7": "named like a rank's directory, but it is none",
    }


def test_a_looping_rank_directory_of_a_pattern_is_noted(tmp_path):
    make_tree(tmp_path, directory="x{rank}")
    (tmp_path / "x9").symlink_to("x9")
    inventory = api.scan(tmp_path, ScanOptions(pattern="x{rank}/{prefix}-{epoch}_{step}.ckpt"))
    assert notes(inventory) == {"x9": "a link that leads to itself: not counted as a rank"}


def test_a_root_with_too_long_a_name_is_one_clear_error(tmp_path):
    with pytest.raises(StorageError, match=r"cannot be read: File name too long"):
        api.scan(tmp_path / ("x" * 300))


def test_a_slice_that_is_a_dangling_link_is_noted(tree):
    path = tree / "ckpt_dir0" / NAME
    path.unlink()
    path.symlink_to("gone")
    inventory = api.scan(tree)
    assert notes(inventory) == {f"ckpt_dir0/{NAME}": "a link to a file that is not there"}
    assert inventory.ranks == (0, 1, 2, 3)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", ["group_info.pb", "strategy.ckpt", f"{NAME}.manifest.json", NAME])
def test_pipes_in_place_of_files_are_refused_without_waiting(tree, name):
    path = tree / "ckpt_dir1" / name
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    inventory = api.scan(tree)
    problems = [file.problem for file in inventory.group_files] + [file.manifest_problem for file in inventory.slices]
    told = [text for text in (*problems, *notes(inventory).values()) if text]
    assert len(told) == 1
    assert "no regular file" in told[0] or "not a file" in told[0]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("option", ["group_info", "strategy"])
def test_named_pipes_and_devices_are_refused_without_waiting(tree, tmp_path, option):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", "/dev/zero", tmp_path):
        with pytest.raises(FormatError, match="this is"):
            api.scan(tree, ScanOptions(**{option: (str(path),)}))


# --- permissions ----------------------------------------------------------------------------------------------------


@pytest.mark.processes
def test_a_slice_that_may_not_be_opened_is_denied_and_not_damaged(reachable):
    tree = make_tree(reachable / "tree")
    open_to_all(tree)
    (tree / "ckpt_dir1" / NAME).chmod(0)
    found = run_unprivileged(SCAN, tree)
    ((path, denied, problem, _),) = found["slices"]
    assert (path, denied) == (f"ckpt_dir1/{NAME}", True)
    assert problem.startswith("permission denied for user ")
    assert "uid 65534" in problem
    assert found["ranks"] == [0, 1, 2, 3]


@pytest.mark.processes
def test_a_manifest_that_may_not_be_opened_makes_its_slice_denied(reachable):
    tree = make_tree(reachable / "tree")
    save_manifests(tree)
    open_to_all(tree)
    (tree / "ckpt_dir1" / f"{NAME}.manifest.json").chmod(0)
    ((_, denied, problem, manifest_problem),) = run_unprivileged(SCAN, tree)["slices"]
    assert denied
    assert problem == manifest_problem
    assert problem.startswith("its manifest: permission denied for user ")


@pytest.mark.processes
def test_a_directory_that_may_not_be_listed_stays_a_rank(reachable):
    tree = make_tree(reachable / "tree")
    open_to_all(tree)
    (tree / "ckpt_dir2").chmod(0)
    found = run_unprivileged(SCAN, tree)
    assert found["ranks"] == [0, 1, 2, 3]
    ((rank, path, reason),) = found["denied"]
    assert (rank, path) == (2, "ckpt_dir2")
    assert "uid 65534" in reason
    assert found["notes"] == []


@pytest.mark.processes
@pytest.mark.parametrize("place", ["", "checkpoints", "named"])
def test_a_root_or_a_named_file_that_may_not_be_read_is_an_error_that_names_path_and_user(reachable, place):
    root = make_tree(reachable / "tree" / (place if place == "checkpoints" else ""))
    top = reachable / "tree"
    open_to_all(top)
    secret = reachable / "lists"
    secret.mkdir(mode=0o700)
    shutil.copy(root / "ckpt_dir0/group_info.pb", secret / "group_info.pb")
    if place != "named":
        root.chmod(0)
    named = [secret / "group_info.pb"] if place == "named" else []
    code, text = run_unprivileged(REFUSED, top, *named)
    assert code == 1
    assert "uid 65534" in text
    assert str(named[0] if named else root) in text


def test_permission_denied_is_a_storage_error_and_a_permission_error():
    assert issubclass(PermissionDeniedError, StorageError)
    assert issubclass(PermissionDeniedError, PermissionError)
    assert PermissionDeniedError("x").exit_code == 1


# --- names of another rank ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["CKP_rank_2-1_9.ckpt", "CKP_rank_2_1-1_9.ckpt", "CKP_rank_2_x-1_9.ckpt"])
def test_a_name_of_another_rank_is_refused_with_a_pattern_too(tmp_path, name):
    make_tree(tmp_path, directory="x{rank}", name="CKP_rank_{rank}-{step}.ckpt")
    shutil.copy(tmp_path / "x2/CKP_rank_2-1_8.ckpt", tmp_path / "x0" / name)
    inventory = api.scan(tmp_path, ScanOptions(pattern="x{rank}/{prefix}-{epoch}_{step}.ckpt"))
    assert {file.step for file in inventory.slices} == {Step(1, 8)}
    assert "the name says rank 2, the directory says rank 0" in notes(inventory)[f"x0/{name}"]


@pytest.mark.parametrize("name", ["CKP_rank_{rank}-{step}.ckpt", "CKP_rank_{rank}_1-{step}.ckpt"])
def test_a_recovered_slice_is_named_after_its_own_rank_with_a_pattern(tmp_path, name):
    make_tree(tmp_path, directory="x{rank}", name=name)
    kept = {rank: path.name for rank in range(4) for path in (tmp_path / f"x{rank}").glob("CKP*")}
    (tmp_path / "x3" / kept[3]).unlink()
    inventory = api.scan(tmp_path, ScanOptions(pattern=f"x{{rank}}/{{prefix}}-{{epoch}}_{{step}}{kept[0][-5:]}"))
    plan = api.plan(inventory, PlanOptions())
    assert [action.target for action in plan.actions] == [f"x3/{kept[3]}"]


# --- cost -----------------------------------------------------------------------------------------------------------


def test_many_leftovers_of_one_kind_in_a_directory_are_one_note(tree):
    folder = tree / "ckpt_dir0"
    for number in range(2000):
        (folder / f"{number:05}.tmp").touch()
        (folder / f"lora_rank_{number + 4}-1_8.ckpt").touch()
    for number in range(3):
        (folder / f".x{number}.ms_recover.tmp").touch()
    found = notes(api.scan(tree))
    assert found.pop("ckpt_dir0/00000.tmp, ckpt_dir0/00001.tmp, ckpt_dir0/00002.tmp").endswith(
        "interrupted save; and 1,997 more like it"
    )
    assert {f"ckpt_dir0/.x{number}.ms_recover.tmp" for number in range(3)} < set(found)
    assert len(found) == 4
    (folded,) = [reason for path, reason in found.items() if "lora" in path]
    assert folded == "the name says another rank than the directory does; and 1,997 more like it"


def test_equal_doubles_are_read_once_each(tree, monkeypatch):
    from ms_recover.scanning import doubles

    read = []

    class Counting(doubles.Digester):
        def digests(self):
            read.append(self)
            return super().digests()

    monkeypatch.setattr(doubles, "Digester", Counting)
    folder = tree / "ckpt_dir0"
    for number in range(20):
        shutil.copy(folder / NAME, folder / f"test_{number}-1_8.ckpt")
    for number in range(20):
        data = bytearray((folder / NAME).read_bytes())
        data[-1 - number % 4] ^= 1 << number // 4
        (folder / f"other_{number}-1_8.ckpt").write_bytes(data)
    os.link(folder / NAME, folder / "linked-1_8.ckpt")
    inventory = api.scan(tree)
    assert len(read) == 41
    assert len([file for file in inventory.slices if file.rank == 0]) == 21


@pytest.mark.parametrize(("run", "kept"), [("another-run", 2), (RUN, 1), (None, 1)])
def test_equal_slices_whose_manifests_name_two_runs_are_both_kept(run, kept, tree):
    save_manifests(tree, RUN)
    other = tree / "ckpt_dir0" / "test_1-1_8.ckpt"
    shutil.copy(tree / "ckpt_dir0" / NAME, other)
    if run is not None:
        shutil.copy(manifest_of(tree / "ckpt_dir0" / NAME), manifest_of(other))
        remake_manifest(other, run_id=run)
    assert len([file for file in api.scan(tree).slices if file.rank == 0]) == kept
