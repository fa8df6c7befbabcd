"""Slices that are set aside in any store: with what lies beside them, under a free name, however often it is tried."""

import errno
import os
from itertools import count

import pytest

pytest.importorskip("fsspec")

from ms_recover.errors import StorageError, VerificationError
from ms_recover.execution.set_aside import give_up, keep_outvoted, rename_slice, supersede
from ms_recover.file_names import MANIFEST_SUFFIX, STATE_SUFFIX
from ms_recover.model.actions import FileState
from ms_recover.model.plan import GivenUpSlice
from ms_recover.stores.local_store import LocalStore
from ms_recover.stores.urls import open_plain
from tests.support.faults import Faults

NUMBERS = count()
PATH = "ckpt_dir1/test-1_8.ckpt"
KEPT = f"{PATH}.outvoted"
GONE = f"{PATH}.superseded"


@pytest.fixture(params=["local", "memory"])
def store(request, tmp_path):
    if request.param == "local":
        yield LocalStore(str(tmp_path))
    else:
        with open_plain(f"memory://aside{next(NUMBERS)}/run") as opened:
            yield opened


def put(store, **files):
    """Write a slice's files: `slice`, `manifest` and `state`, or with `kept_` or `gone_` before that those aside."""
    for name, data in files.items():
        path = KEPT if name.startswith("kept") else GONE if name.startswith("gone") else PATH
        suffix = {"manifest": MANIFEST_SUFFIX, "state": STATE_SUFFIX}.get(name.rpartition("_")[2], "")
        with store.create(path + suffix) as file:
            file.write(data)
            file.commit()


def files(store):
    found = {}
    for entry in store.list("ckpt_dir1"):
        with store.open(f"ckpt_dir1/{entry.name}") as file:
            found[entry.name.removeprefix("test-1_8.ckpt")] = file.read_at(0, file.size)
    return found


def test_an_outvoted_slice_has_two_names_with_all_that_lies_beside_it(store):
    put(store, slice=b"old", manifest=b"its manifest", state=b"its state")
    assert keep_outvoted(store, PATH) == KEPT
    beside = {MANIFEST_SUFFIX: b"its manifest", STATE_SUFFIX: b"its state"}
    kept = {f".outvoted{suffix}": data for suffix, data in {"": b"old", **beside}.items()}
    assert files(store) == {"": b"old", **beside, **kept}
    if isinstance(store, LocalStore):
        assert store.stat(PATH).inode == store.stat(KEPT).inode


def test_keeping_it_again_adds_nothing(store):
    put(store, slice=b"old", manifest=b"m")
    keep_outvoted(store, PATH)
    before = files(store)
    assert keep_outvoted(store, PATH) == KEPT
    assert files(store) == before


def test_a_copy_of_its_bytes_counts_as_kept(store):
    put(store, slice=b"old", kept=b"old")
    assert keep_outvoted(store, PATH) == KEPT
    assert files(store) == {"": b"old", ".outvoted": b"old"}


def test_another_slice_that_was_kept_stays(store):
    put(store, slice=b"now", manifest=b"m", kept=b"old")
    assert keep_outvoted(store, PATH) == f"{PATH}.2.outvoted"
    put(store, slice=b"new", manifest=b"m")
    assert keep_outvoted(store, PATH) == f"{PATH}.3.outvoted"
    found = files(store)
    assert (found[".outvoted"], found[".2.outvoted"], found[".3.outvoted"]) == (b"old", b"now", b"new")


@pytest.mark.parametrize("manifest", [b"of another slice", None])
def test_a_kept_manifest_is_never_paired_with_another_slice(store, manifest):
    put(store, slice=b"old", kept_manifest=b"left")
    if manifest is not None:
        put(store, manifest=manifest)
    assert keep_outvoted(store, PATH) == f"{PATH}.2.outvoted"


def test_a_slice_that_is_gone_needs_no_name(store):
    put(store, manifest=b"m")
    assert keep_outvoted(store, PATH) is None
    assert list(files(store)) == [MANIFEST_SUFFIX]


@pytest.mark.parametrize("code", ["EPERM", "EOPNOTSUPP", "ENOSYS", "EMLINK", "EXDEV"])
def test_without_hard_links_it_is_copied(tmp_path, code):
    store = LocalStore(str(tmp_path))
    put(store, slice=b"old" * 10_000, manifest=b"m")
    os.utime(tmp_path / PATH, ns=(5 * 10**9, 7 * 10**9))
    (tmp_path / PATH).chmod(0o440)

    def refuse(*_, **__):
        raise OSError(getattr(errno, code), os.strerror(getattr(errno, code)))

    link, os.link = os.link, refuse
    try:
        assert keep_outvoted(store, PATH) == KEPT
        assert keep_outvoted(store, PATH) == KEPT
    finally:
        os.link = link
    assert (tmp_path / KEPT).read_bytes() == b"old" * 10_000
    assert (tmp_path / KEPT).stat().st_mode & 0o777 == 0o440
    assert (tmp_path / KEPT).stat().st_mtime_ns == 7 * 10**9
    assert store.stat(PATH).inode != store.stat(KEPT).inode
    assert len(files(store)) == 4


def test_a_link_is_kept_as_it_is(tmp_path):
    store = LocalStore(str(tmp_path))
    put(store, slice=b"elsewhere")
    (tmp_path / PATH).rename(tmp_path / "elsewhere")
    (tmp_path / PATH).symlink_to("../elsewhere")
    assert keep_outvoted(store, PATH) == KEPT
    (tmp_path / PATH).unlink()
    assert (tmp_path / KEPT).is_symlink()
    assert (tmp_path / KEPT).read_bytes() == b"elsewhere"


@pytest.mark.parametrize("calls", [("link",), ("fsync",)])
def test_an_error_names_the_slice_and_leaves_it(tmp_path, calls):
    store = LocalStore(str(tmp_path))
    put(store, slice=b"old")
    with (
        Faults(str(tmp_path), 1, "ENOSPC", calls).installed(),
        pytest.raises(StorageError, match=rf"nothing was replaced: setting aside {tmp_path}/{PATH}: No space left"),
    ):
        keep_outvoted(store, PATH)
    assert files(store)[""] == b"old"


def test_a_slice_that_is_given_up_is_renamed_with_what_lies_beside_it(store):
    put(store, slice=b"s", manifest=b"m", state=b"t")
    assert supersede(store, PATH) == GONE
    renamed = {".superseded": b"s", f".superseded{MANIFEST_SUFFIX}": b"m", f".superseded{STATE_SUFFIX}": b"t"}
    assert files(store) == renamed
    assert supersede(store, PATH) is None
    put(store, slice=b"later")
    assert supersede(store, PATH) == f"{PATH}.2.superseded"
    assert files(store) == {**renamed, ".2.superseded": b"later"}


@pytest.mark.parametrize(
    "left",
    [
        {"manifest": b"m", "gone_manifest": b"m", "slice": b"s"},
        {"gone_manifest": b"m", "slice": b"s"},
        {"gone_manifest": b"m", "slice": b"s", "gone": b"s"},
    ],
    ids=["manifest copied", "manifest gone", "slice copied"],
)
def test_giving_up_goes_on_where_it_was_interrupted(store, left):
    put(store, **left)
    assert supersede(store, PATH) == GONE
    assert files(store) == {".superseded": b"s", f".superseded{MANIFEST_SUFFIX}": b"m"}


def given_up(store, **changes):
    return GivenUpSlice(**{"rank": 1, "path": PATH, "state": store.stat(PATH).state, "reason": "newer", **changes})


def test_a_slice_that_changed_after_the_plan_is_not_given_up(store):
    put(store, slice=b"s")
    one = given_up(store)
    put(store, slice=b"another")
    with pytest.raises(VerificationError, match=r"test-1_8.ckpt changed after the plan was made; it stays"):
        give_up(store, one)
    assert files(store) == {"": b"another"}
    with pytest.raises(VerificationError):
        give_up(store, given_up(store, state=None))
    assert give_up(store, given_up(store, state=FileState(7, store.stat(PATH).mtime_ns))) == GONE
    assert give_up(store, one) is None


@pytest.mark.parametrize("linked", [(), ("manifest",), ("manifest", "state"), ("manifest", "state", "slice")])
def test_a_slice_that_a_crash_left_with_both_names_ends_with_the_new_one(linked, store):
    parts = {"manifest": b"its manifest", "state": b"its state", "slice": b"old"}
    put(store, **parts)
    put(store, gone_manifest=b"of a slice that is gone")
    suffixes = {"manifest": MANIFEST_SUFFIX, "state": STATE_SUFFIX, "slice": ""}
    for name in linked:
        if name == "manifest":
            store.remove(GONE + MANIFEST_SUFFIX)
        store.link(PATH + suffixes[name], GONE + suffixes[name])
    rename_slice(store, PATH, GONE)
    assert files(store) == {f".superseded{suffixes[name]}": data for name, data in parts.items()}
