import threading

import pytest

from ms_recover.errors import StorageError
from ms_recover.training.background import Background, wait_for_tasks


def fail():
    raise StorageError("rank 0, step 1_4: disk full")


def test_work_is_done_beside_and_waited_for():
    background, go = Background(), threading.Event()
    done = []
    background.begin(lambda: (go.wait(10), done.append(threading.current_thread().name)), "save-1_4")
    assert done == []
    go.set()
    assert background.outcome() is None
    assert done[0].startswith("save-1_4")
    assert background.outcome() is None
    assert not any(thread.name.startswith("save-1_4") for thread in threading.enumerate())


@pytest.mark.parametrize("way", ["begin", "do_now"])
def test_a_failure_is_kept_and_logged(way, caplog):
    background = Background()
    if way == "begin":
        background.begin(fail, "save")
    else:
        background.do_now(fail)
    error = background.outcome()
    assert isinstance(error, StorageError)
    assert ("disk full" in caplog.text) == (way == "begin")
    assert background.outcome() is None


def test_nothing_but_errors_is_kept():
    def interrupted():
        raise KeyboardInterrupt

    background = Background()
    with pytest.raises(KeyboardInterrupt):
        background.do_now(interrupted)
    assert background.outcome() is None


def test_whoever_resumes_waits_for_what_is_still_written():
    background, go, done = Background(), threading.Event(), []
    background.begin(lambda: (go.wait(10), done.append("written")), "save-1_4")
    threading.Timer(0.1, go.set).start()
    assert wait_for_tasks() == 1
    assert done == ["written"]
    assert wait_for_tasks() == 0
    assert background.outcome() is None
