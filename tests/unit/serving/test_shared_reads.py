import threading
from os import stat_result

import pytest

from ms_recover.model.actions import FileState
from ms_recover.model.contents import Contents
from ms_recover.model.manifest import Digests
from ms_recover.serving.shared_reads import KEPT_S, SeenFile, SharedReads
from ms_recover.stores.local import StoppedError

ONE, OTHER = (SeenFile(path, FileState(10, 1), 1, 1, None) for path in ("one", "other"))
DIGESTS = Digests("d")


class Reader:
    """Digests files, 10 bytes each, and notes which."""

    def __init__(self):
        self.read = []

    def __call__(self, files, progress):
        for file in files:
            self.read.append(file)
            progress(10)
        return Contents({file.path: DIGESTS for file in files})


def test_what_was_read_is_kept_for_a_while_and_for_one_state():
    now, read, progress = [0.0], Reader(), []
    reads = SharedReads(clock=lambda: now[0])
    for files, expected in (
        ([ONE], [ONE]),
        ([ONE, OTHER], [OTHER]),
        ([OTHER, ONE], []),
        ([ONE._replace(changed_ns=2)], [ONE._replace(changed_ns=2)]),
        ([ONE._replace(beside=FileState(1, 1))], [ONE._replace(beside=FileState(1, 1))]),
    ):
        read.read.clear()
        assert reads.contents(files, read, progress.append).digests == {file.path: DIGESTS for file in files}
        assert read.read == expected
    assert reads.bytes == sum(progress) == 40
    now[0], read.read[:] = KEPT_S + 1, []
    reads.contents([ONE], read, progress.append)
    assert read.read == [ONE]  # bytes on a disk may rot


def test_what_could_not_be_read_is_tried_again():
    reads = SharedReads()
    found = reads.contents([ONE], lambda files, progress: Contents(problems={"one": "gone"}), lambda count: None)
    assert found.problems == {"one": "gone"}
    assert reads.contents([ONE], Reader(), lambda count: None).digests == {"one": DIGESTS}


def test_some_that_wait_see_the_bytes_of_the_one_that_reads_and_go_on_when_it_fails():
    reads, began, fail, counted = SharedReads(), threading.Event(), threading.Event(), []

    def failing(files, progress):
        progress(4)
        began.set()
        fail.wait(30)
        raise StoppedError

    def first():
        with pytest.raises(StoppedError):
            reads.contents([ONE], failing, lambda count: None)

    def second():
        reads.contents([ONE, OTHER], read, counted.append)

    read, threads = Reader(), [threading.Thread(target=first)]
    threads[0].start()
    assert began.wait(30)
    threads.append(threading.Thread(target=second))
    threads[1].start()
    while 4 not in counted:
        threads[1].join(0.01)
    assert read.read == [OTHER]
    fail.set()
    for thread in threads:
        thread.join(30)
    assert read.read == [OTHER, ONE]
    assert sum(counted) == 24


def test_one_that_waits_may_stop():
    reads, began, end = SharedReads(), threading.Event(), threading.Event()

    def slow(files, progress):
        began.set()
        end.wait(30)
        return Reader()(files, progress)

    def stop(count):
        raise StoppedError

    thread = threading.Thread(target=lambda: reads.contents([ONE], slow, lambda count: None))
    thread.start()
    assert began.wait(30)
    with pytest.raises(StoppedError):
        reads.contents([ONE], Reader(), stop)
    end.set()
    thread.join(30)


def test_only_so_many_digests_are_kept(monkeypatch):
    monkeypatch.setattr("ms_recover.serving.shared_reads._MOST_KEPT", 5)
    reads, read = SharedReads(), Reader()
    files = [ONE._replace(path=str(number)) for number in range(10)]
    for _ in range(2):
        for file in files:
            reads.contents([file], read, lambda count: None)
    assert len(read.read) == 20
    reads.contents(files[-5:], read, lambda count: None)
    assert len(read.read) == 20


def test_a_file_is_seen_with_its_state_file():
    status, beside = stat_result((0, 7, 0, 0, 0, 0, 10, 0, 1, 2)), stat_result((0, 8, 0, 0, 0, 0, 5, 0, 3, 4))
    seen = SeenFile.of("one", status, beside)
    assert (seen.state.bytes, seen.inode, seen.beside.bytes) == (10, 7, 5)
    assert SeenFile.of("one", status, None) != seen
