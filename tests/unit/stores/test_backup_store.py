"""Which files of a backup are one tree."""

import pytest

from ms_recover.errors import FormatError
from ms_recover.model.backup import BackupFile, BackupIndex
from ms_recover.model.manifest import DIGEST
from ms_recover.model.steps import Step
from ms_recover.stores.backup_index import check_mark, decode_index, encode_index, encode_mark, index_path, object_path
from ms_recover.stores.backup_store import files_of, in_order, is_slice, read_indexes
from ms_recover.stores.local_store import LocalStore


def file(path, content=1, size=8):
    return BackupFile(path=path, digest=f"{DIGEST}:{content:032x}", size=size, mode=0o640, mtime_ns=5)


def index(step, *files, run="run", made=1):
    return BackupIndex(step=Step(1, step), run_id=run, world_size=2, root="/tree", made=made, files=files)


LIST = file("ckpt_dir0/group_info.pb", 9)
FIRST = index(1, file("ckpt_dir0/a-1_1.ckpt"), LIST)
SECOND = index(2, file("ckpt_dir0/a-1_2.ckpt", 2), file(LIST.path, 10))
SAME = index(1, file("ckpt_dir0/a-1_1.ckpt"), file("ckpt_dir0/a-1_1.ckpt.manifest.json", 4))
OTHER = index(1, file("ckpt_dir0/a-1_1.ckpt", 3), file("ckpt_dir1/a-1_1.ckpt", 5), run="other")


def test_steps_share_small_files_and_a_slice_under_a_name_that_is_taken_leaves_its_step_out():
    files, left_out = files_of({"first": FIRST, "second": SECOND, "other": OTHER, "same": SAME})
    assert left_out == ("other",)
    expected = (*FIRST.files, SECOND.files[0], SAME.files[1])
    assert files == {one.path: one for one in expected}
    assert files_of({"other": OTHER, "first": FIRST})[1] == ("first",)
    assert files_of({}) == ({}, ())


def test_the_chosen_index_comes_first_and_its_run_before_others():
    indexes = {"a": OTHER, "b": FIRST, "c": SECOND, "d": index(3, run="")}
    assert list(in_order(indexes, None)) == ["a", "b", "c", "d"]
    assert list(in_order(indexes, "c")) == ["c", "b", "a", "d"]
    assert next(iter(in_order({"d": indexes["d"], "e": index(4, run=""), **indexes}, "e"))) == "e"
    assert list(in_order({"x": FIRST, "y": index(3, run=""), "z": index(4, run="")}, "z")) == ["z", "x", "y"]


def test_strategy_files_and_sidecars_are_no_slices():
    slices = ["a-1_1.ckpt", "d/a.safetensors"]
    others = ["d/strategy.ckpt", "a-1_1.ckpt.manifest.json", "group_info.pb", "a-1_1.ckpt.state"]
    assert [path for path in slices + others if is_slice(path)] == slices


def test_indexes_are_read_newest_first_and_nothing_else(tmp_path):
    folder = tmp_path / "steps"
    folder.mkdir()
    made = [index(step, LIST, made=moment) for step, moment in ((1, 5), (2, 9), (3, 5))]
    for one in made:
        (tmp_path / index_path(one)).write_bytes(encode_index(one))
    for name in ("notes.txt", ".x.json", "y.json.unfinished"):
        (folder / name).write_bytes(b"?")
    (folder / "folder.json").mkdir()
    found = read_indexes(LocalStore(str(tmp_path)))
    assert list(found.values()) == [made[1], *sorted((made[0], made[2]), key=index_path)]
    assert list(found) == [index_path(one) for one in found.values()]


@pytest.mark.parametrize("size", [0, (1 << 63) - 1])
def test_an_index_is_read_as_it_was_written(size):
    made = index(1, file("a\udcff/b", size=size), run="\u00fc")
    assert decode_index(encode_index(made), "x") == made


def test_equal_backups_have_one_index_and_others_have_others():
    made = [FIRST, SECOND, SAME, OTHER, index(1, run="other"), index(1)]
    made += [index(1, file("a", 2)), index(1, file("a", 2, 9)), index(1, file("b", 2))]
    assert len({index_path(one) for one in made}) == len(made)
    assert index_path(FIRST) == index_path(index(1, *FIRST.files, made=77))
    assert index_path(FIRST).startswith("steps/1_1-")


def test_a_mark_is_that_of_this_version():
    check_mark(encode_mark(), "x")
    for data, why in (
        (b"", "not the mark"),
        (b"[" * 10_000, "not the mark"),
        (b"3", "not the mark"),
        (encode_mark().replace(b"ms_recover", b"other"), "not the mark"),
        (b'{"format": "ms_recover.backup", "version": 99}', "of version . only"),
    ):
        with pytest.raises(FormatError, match=f"x.*{why}"):
            check_mark(data, "x")


def test_an_object_has_the_name_of_its_digest():
    assert object_path(f"{DIGEST}:{'ab' * 16}", 7) == f"objects/ab/{'ab' * 16}-7"
    for digest in (f"{DIGEST}:{'ab' * 15}", f"{DIGEST}:{'AB' * 16}", f"{DIGEST}:{'ab' * 16}\n", "md5:00"):
        with pytest.raises(ValueError, match="no digest of this version"):
            object_path(digest, 7)
