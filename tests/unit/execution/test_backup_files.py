"""The files of a step that a backup takes, and whom it blames where one cannot be read."""

from dataclasses import replace

import pytest

from ms_recover import api
from ms_recover.errors import PermissionDeniedError, StorageError, UsageError
from ms_recover.execution.backup import CopyOptions, Given, copy_step, files_of_step
from ms_recover.execution.backup_target import open_target
from ms_recover.execution.lock import lock_tree
from ms_recover.file_names import BACKUP_MARK, MANIFEST_SUFFIX, STATE_SUFFIX
from ms_recover.model.actions import FileState
from ms_recover.model.backup import BackupIndex
from ms_recover.model.inventory import MetaFile, RankPath, StrategyFile
from ms_recover.model.iterations import Document, Iteration
from ms_recover.model.steps import Step
from ms_recover.model.strategy import Strategy
from ms_recover.stores.digest import digest_of
from ms_recover.stores.local_store import LocalStore
from ms_recover.testing.trees import make_tree
from tests.support.inventories import OLDER, STEP, group_file, slice_file, tree

ITERATION = Step.iteration(100)
INDEX = BackupIndex(step=STEP, run_id="", world_size=2, root="/tree", made=0, files=())


def taken(inventory, step=STEP, **known):
    """What is taken of a step, by path; slices have their paths as digests."""
    digests = {file.path: file.path for file in inventory.slices}
    options = {"digests": digests, "read": lambda path: False, "manifests": {}, "states": {}}
    given = files_of_step(inventory, step, **{**options, **known})
    assert len({one.path for one in given}) == len(given)
    return {one.path: one for one in given}


def test_slices_of_the_step_are_taken_with_their_manifests_and_sound_states():
    new, old, unknown = slice_file(0), slice_file(0, OLDER), slice_file(1)
    found = taken(
        tree([new, old, unknown], {}),
        digests={new.path: "digest", old.path: "old"},
        read=lambda path: path == new.path,
        states={new.path: "of the state", old.path: "of an old state"},
    )
    beside = [new.path + MANIFEST_SUFFIX, new.path + STATE_SUFFIX]
    assert list(found) == [new.path, *beside]
    known = found[new.path]
    assert (known.state, known.digest, known.read) == (FileState(100, 1), "digest", True)
    assert (found[beside[0]].digest, found[beside[0]].state, found[beside[0]].data) == (None, None, None)
    assert (found[beside[1]].digest, found[beside[1]].read) == ("of the state", True)


def test_a_manifest_that_is_made_for_it_is_as_old_as_its_slice():
    file = slice_file(0, mtime=7)
    made = taken(tree([file], {}), manifests={file.path: b"made"})[file.path + MANIFEST_SUFFIX]
    assert (made.data, made.state) == (b"made", FileState(4, 7))


def test_lists_and_layouts_below_the_root_are_taken_that_can_be_read():
    sound, damaged = group_file(0, [0]), replace(group_file(1, [1]), info=None, problem="cut off")
    strategy = Strategy((0,), 1, ())
    files = [StrategyFile(0, path, strategy) for path in ("ckpt_dir0/strategy.ckpt", "/named/strategy.ckpt")]
    inventory = replace(tree([], {}), group_files=(sound, damaged), strategy_files=(*files, files[0]))
    assert list(taken(inventory)) == [sound.path, files[0].path]


def test_records_and_documents_are_taken_that_name_the_step():
    def record(step):
        place = RankPath(("ckpt_dir", f"/meta-{step}.json"))
        return MetaFile(rank=0, path=place.of(0), place=place, step=step, file="")

    def iteration(step, common):
        documents = (Document(f"{step.step}/metadata", value=object()), Document(f"{step.step}/common", value=common))
        return Iteration(step=step, directory="", metadata=documents[0], common=documents[1])

    def found(step, tracked, common=None):
        inventory = replace(
            tree([], {}),
            meta_files=(record(STEP), record(OLDER)),
            iterations=(iteration(ITERATION, common), iteration(Step.iteration(50), object())),
            tracker=None if tracked is None else Document("tracker", value=tracked),
        )
        return list(taken(inventory, step))

    assert found(STEP, None) == [record(STEP).path]
    assert found(ITERATION, 100, object()) == ["100/metadata", "100/common", "tracker"]
    assert found(ITERATION, 50) == ["100/metadata"]
    assert found(ITERATION, None) == ["100/metadata"]
    assert found(STEP, STEP.step) == [record(STEP).path]  # which counts steps in an epoch, and no iterations


@pytest.mark.parametrize(
    ("error", "distant", "blamed"),
    [
        (StorageError("the host is gone"), True, False),
        (PermissionDeniedError("not yours"), True, True),
        (PermissionDeniedError("not yours"), False, True),
        (StorageError("input/output error"), False, True),
    ],
    ids=["distant", "distant, denied", "denied", "here"],
)
def test_a_source_is_passed_over_unless_all_of_a_distant_tree_is_at_fault(error, distant, blamed, tmp_path):
    """Two slices hold the same, so that the other one serves; the first is lost after it was looked at."""
    root = make_tree(tmp_path / "tree", data_parallel=2, model_parallel=1)
    first, second = (file.path for file in api.scan(root).slices)
    digest = digest_of((root / first).read_bytes())
    opened = []

    class Source(LocalStore):
        near = not distant

        def open(self, path, expected=None):
            opened.append(path)
            if opened.count(first) == 2 and path == first:
                raise error
            return super().open(path, expected)

    def copy():
        given = [Given(path=path, digest=digest) for path in (first, second)]
        with open_target(str(tmp_path / "backup"), str(root)) as target:
            return copy_step(Source(str(root)), target, given, INDEX, CopyOptions())

    if blamed:
        assert [(note.path, note.reason) for note in copy().passed_over] == [(first, f"cannot be read: {error}")]
    else:
        with pytest.raises(StorageError, match=str(error)):
            copy()


def test_a_dry_run_of_a_backup_makes_nothing_and_says_what_would_not_go(tmp_path):
    root, place = make_tree(tmp_path / "tree"), tmp_path / "new" / "backup"
    with open_target(str(place), str(root), dry_run=True) as target:
        assert target.url == str(place)
    assert not place.parent.exists()
    with pytest.raises(UsageError, match="lies in"), open_target(f"{root}/backup", str(root), dry_run=True):
        pass
    (tmp_path / "file").touch()
    with (
        pytest.raises(StorageError, match="Not a directory"),
        open_target(str(tmp_path / "file" / "backup"), str(root), dry_run=True),
    ):
        pass
    place.mkdir(parents=True)
    with open_target(str(place), str(root), dry_run=True), pytest.raises(StorageError), lock_tree(str(place)):
        pass  # another copy may be at work there
    assert list(place.iterdir()) == []


def test_a_folder_in_which_nothing_was_written_goes_again_and_one_with_a_backup_stays(tmp_path):
    root, place = make_tree(tmp_path / "tree"), tmp_path / "new" / "backup"
    with open_target(str(place), str(root)):
        assert list(place.iterdir()) == []
    assert not place.parent.exists()
    with open_target(str(place), str(root)) as target, target.create(BACKUP_MARK) as new:
        new.write(b"{}")
        new.commit()
    assert [path.name for path in place.iterdir()] == [BACKUP_MARK]
