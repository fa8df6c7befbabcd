import os
from itertools import count

import pytest

pytest.importorskip("fsspec")

from ms_recover.errors import MissingInputError, StorageError, UsageError, VerificationError
from ms_recover.execution.destination import LocalDestination, StoreDestination
from ms_recover.stores.atomic import FileForm
from ms_recover.stores.digest import digest_of
from ms_recover.stores.store import never
from ms_recover.stores.urls import open_plain

NUMBERS = count()
PATH, DATA = "ckpt_dir0/a.ckpt", b"some bytes"


@pytest.fixture(params=["directory", "store"])
def destination(request, tmp_path):
    if request.param == "directory":
        (tmp_path / "tree").mkdir()
        yield LocalDestination(str(tmp_path / "tree"))
    else:
        (tmp_path / "scratch").mkdir()
        with open_plain(f"memory://destination{next(NUMBERS)}") as store:
            yield StoreDestination(store, str(tmp_path / "scratch"))
            assert os.listdir(tmp_path / "scratch") == []


def written(destination, data, digest=None):
    """Write a slice; return where one that lay there is kept."""
    with destination.new_file(PATH, len(data), "ckpt_dir1/a.ckpt") as file:
        file.write(data)
        file.settle(FileForm(0o640, 10**18))
        destination.check_written(file, digest_of(data), never)
        return destination.commit(file, PATH, digest or digest_of(data), set_aside=True)


def test_a_file_has_its_name_when_it_is_whole(destination):
    with pytest.raises(KeyError), destination.new_file(PATH, 3, "b") as file:
        file.write(b"abc")
        raise KeyError
    assert not destination.lies(PATH)
    assert written(destination, DATA) is None
    assert destination.is_file(PATH)
    assert destination.store.read_small(PATH, "a file", 99) == DATA


def test_what_lay_there_is_kept(destination):
    written(destination, b"old")
    assert written(destination, DATA) == f"{PATH}.outvoted"
    assert destination.store.read_small(f"{PATH}.outvoted", "a file", 99) == b"old"


def test_a_file_holds_bytes_by_size_and_digest(destination):
    assert destination.holds(PATH, 3, None, never) is None
    written(destination, DATA)
    assert destination.holds(PATH, len(DATA), digest_of(DATA), never) == digest_of(DATA)
    assert destination.holds(PATH, len(DATA), None, never) == digest_of(DATA)
    assert destination.holds(PATH, len(DATA), digest_of(b""), never) is None
    assert destination.holds(PATH, len(DATA) + 1, None, never) is None


def test_a_small_file_is_written_over_another(destination):
    written(destination, DATA)
    for data in (b"{}", b"[]"):
        destination.write_small(f"{PATH}.json", data, 0o600, of=PATH)
        assert destination.store.read_small(f"{PATH}.json", "a file", 99) == data


def test_only_what_the_plan_saw_is_replaced(destination):
    destination.check_target(PATH, None)
    written(destination, DATA)
    destination.check_target(PATH, destination.store.stat(PATH).state)
    with pytest.raises(VerificationError, match="nothing was replaced: plan again"):
        destination.check_target(PATH, None)


def test_what_was_altered_before_it_is_sent_gets_no_name(tmp_path):
    with open_plain(f"memory://destination{next(NUMBERS)}") as store:
        destination = StoreDestination(store, str(tmp_path), verify=False)
        with pytest.raises(VerificationError, match="alters data"):
            written(destination, DATA, digest_of(b"others"))
        with pytest.raises(MissingInputError):
            store.stat(PATH)


def test_a_slice_for_which_the_folder_has_no_room_is_not_begun(tmp_path):
    with open_plain(f"memory://destination{next(NUMBERS)}") as store:
        destination = StoreDestination(store, str(tmp_path))
        with pytest.raises(StorageError, match="--scratch"), destination.new_file(PATH, 1 << 60, PATH):
            pass


def test_a_web_server_is_only_read():
    with open_plain("http://127.0.0.1:9") as store, pytest.raises(UsageError, match="only read"):
        StoreDestination(store).check_place(PATH, 0)
