"""The end of a splitter, also by a kill; its use by several threads; its directory, report and timeline.

This file is also the program of the process that is ended: ``python -m tests.integration.test_splitting_ends WHAT``.
"""

import gc
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

pytestmark = pytest.mark.mindspore
ms = pytest.importorskip("mindspore")

from ms_recover.errors import UsageError  # noqa: E402
from ms_recover.splitting import FaultTolerantModelSplitter, ModelSplitter  # noqa: E402
from tests.support.splitting import (  # noqa: E402
    LONG,
    ROOT,
    close_to,
    given,
    make,
    marked,
    outcome,
    wait_for,
)
from tests.support.trace_events import faults_of_trace  # noqa: E402

HEARTBEAT = 1.0


def program(what):
    """Split a model, say so, and be ended."""
    model, x = make("mlp"), given("mlp", 200)
    devices = 1 if what == "fork" else 2
    splitter = FaultTolerantModelSplitter(model, devices, heartbeat=HEARTBEAT, spares=1 if what == "spare" else 0)
    right = close_to(splitter.forward(x).asnumpy(), outcome(model, x))
    if what == "fork":
        child = os.fork()
        if not child:
            for use in (lambda: splitter.forward(x), splitter.reset_device_states):
                try:
                    use()
                except UsageError as error:
                    print("refused" if "belongs to process" in str(error) else error, flush=True)
            splitter.close()
            sys.exit()
        wait_for(lambda: os.waitpid(child, os.WNOHANG)[0], "the child ends", 30)
        right = close_to(splitter.forward(x).asnumpy(), outcome(model, x))
        print("forked", "right" if right else "wrong")
        return
    try:
        print("right" if right else "wrong", *splitter.processes, flush=True)
        while what != "forget":
            splitter.forward(x)
    except KeyboardInterrupt:
        right = close_to(splitter.forward(x).asnumpy(), outcome(model, x))
        print("interrupted", "right" if right else "wrong", *splitter.processes, flush=True)
        raise  # nobody closes it


@pytest.fixture
def start(watched):
    """Start the program; return it and its workers' process ids once it has an answer."""
    started = []

    def go(what):
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.integration.test_splitting_ends", what],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        word, *workers = process.stdout.readline().split()
        assert word == "right"
        return process, [int(worker) for worker in workers]

    yield go
    for process in started:
        if process.poll() is None:
            process.kill()
        process.wait()
        process.stdout.close()
        process.stderr.close()


def gone(watched):
    wait_for(lambda: not marked(watched.mark), f"all processes end: {marked(watched.mark)}", 30)


def removed(place):
    """Remove what nobody was left to remove."""
    for path in place.glob("ms_recover-split-*"):
        shutil.rmtree(path)


def test_workers_end_with_a_killed_process(start, watched):
    """One that works, one that is frozen, one that waits to take over."""
    process, workers = start("spare")
    assert set(workers) < set(marked(watched.mark))
    # itself, the workers and the spare, and a heartbeat helper of each
    assert len(marked(watched.mark)) >= 1 + 1 + 2 * len(workers) + 2
    os.kill(workers[0], signal.SIGSTOP)
    process.kill()
    process.wait()
    gone(watched)
    removed(watched.place)


def test_workers_end_with_a_process_that_is_killed_while_they_start(watched):
    """Nobody has asked the kernel yet to end them, and nobody is there that they could join."""
    process = subprocess.Popen([sys.executable, "-m", "tests.integration.test_splitting_ends", "loop"], cwd=ROOT)
    wait_for(lambda: any("splitting.worker" in words for words in marked(watched.mark).values()), "a worker")
    process.kill()
    process.wait()
    gone(watched)
    removed(watched.place)


def test_ctrl_c_while_workers_start_ends_them_all(watched):
    command = [sys.executable, "-m", "tests.integration.test_splitting_ends", "loop"]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    wait_for(lambda: any("splitting.worker" in words for words in marked(watched.mark).values()), "a worker")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=LONG)
    assert "KeyboardInterrupt" in err
    assert "Error" not in err.replace("ImportError", ""), err
    gone(watched)


def test_workers_end_with_a_garbage_collected_splitter(watched):
    splitter = ModelSplitter(make("mlp"), 1)
    del splitter
    gc.collect()
    gone(watched)


def test_close_ends_forwards_that_wait(watched):
    """A forward that waits for a frozen device ends as well, and so does one that waits for its turn."""
    model, x = make("mlp"), given("mlp", 100)
    caught = []

    def ask(splitter):
        try:
            splitter.forward(x)
        except UsageError as error:
            caught.append(error)

    with FaultTolerantModelSplitter(model, 1, heartbeat=LONG) as splitter:
        splitter.forward(x)
        os.kill(splitter.processes[0], signal.SIGSTOP)
        threads = [threading.Thread(target=ask, args=(splitter,), daemon=True) for _ in range(3)]
        for thread in threads:
            thread.start()
        wait_for(lambda: splitter._engine.state.forward.busy, "the forward")
        splitter.close()
        wait_for(lambda: not any(thread.is_alive() for thread in threads), "all forwards end", 60)
        assert len(caught) == 3


def test_a_forked_child_that_ends_harms_no_worker(watched):
    """It has the splitter's memory, but neither its thread nor its workers."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.integration.test_splitting_ends", "fork"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=LONG,
        check=False,
    )
    assert done.stdout.splitlines()[-3:] == ["refused", "refused", "forked right"], done.stderr
    assert done.returncode == 0, done.stderr
    gone(watched)


def test_a_paused_splitter_keeps_its_workers_and_ctrl_c_cancels_a_forward(start, watched):
    """Stopped for longer than a heartbeat, as by Ctrl-Z; then the next forwards are right, and nothing is lost."""
    process, workers = start("interrupted")
    process.send_signal(signal.SIGSTOP)
    time.sleep(2.5 * HEARTBEAT)
    assert set(workers) <= set(marked(watched.mark))
    process.send_signal(signal.SIGCONT)
    time.sleep(HEARTBEAT)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=LONG)
    assert out == " ".join(["interrupted right", *map(str, workers)]) + "\n", err
    assert process.returncode in (130, -signal.SIGINT)
    assert err.rstrip().endswith("KeyboardInterrupt")
    assert " ERROR " not in err
    gone(watched)


def test_an_unclosed_splitter_ends_with_the_interpreter(start, watched):
    process, _ = start("forget")
    out, err = process.communicate(timeout=LONG)
    assert (process.returncode, out) == (0, ""), err
    assert "error" not in err.lower(), err
    gone(watched)


def test_threads_can_share_a_splitter(watched):
    model = make("mlp")
    inputs = [given("mlp", rows, seed) for seed, rows in enumerate((1, 30, 100, 64, 200, 7))]
    wants = [outcome(model, x) for x in inputs]
    wrong, done = [], []
    with FaultTolerantModelSplitter(model, 2, heartbeat=HEARTBEAT) as splitter:

        def ask(number):
            try:
                for _ in range(3):
                    if not close_to(splitter.forward(inputs[number]).asnumpy(), wants[number]):
                        wrong.append(number)
                    done.append(number)
            except BaseException as error:
                wrong.append(error)

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(len(inputs))]
        for thread in threads:
            thread.start()
        wait_for(lambda: len(done) > 4, "some forwards")
        os.kill(splitter.processes[0], signal.SIGKILL)
        for thread in threads:
            thread.join(LONG)
        assert not wrong
        assert len(done) == 18
        assert splitter.last_report.call == 17


def test_commands_understand_the_directory(watched, tmp_path, recover_ckpt, capsys):
    """Scan, verify and plan; a slice that is deleted comes back; report and page; the next splitter takes over."""
    model, x = make("mlp"), given("mlp", 100)
    want = outcome(model, x)
    directory = tmp_path / "slices"
    with FaultTolerantModelSplitter(model, 2, directory=directory, heartbeat=HEARTBEAT) as splitter:
        assert splitter.directory == os.path.realpath(directory)
        assert close_to(splitter.forward(x).asnumpy(), want)
        found = recover_ckpt("scan", splitter.directory, "--json")
        assert found.code == 0, found.err
        names = sorted(path.relative_to(directory).as_posix() for path in directory.rglob("split-*.ckpt"))
        assert names == [f"rank_{rank}/split-1_0.ckpt" for rank in range(4)]
        assert recover_ckpt("verify", splitter.directory).code == 0
        assert recover_ckpt("plan", splitter.directory, "--json").code == 0

        before = {path: path.read_bytes() for path in directory.glob("rank_*/split-*.ckpt")}
        lost = directory / "rank_1" / "split-1_0.ckpt"
        lost.unlink()
        planned = recover_ckpt("plan", splitter.directory, "--world-size", 4)
        assert "rank_0" in planned.out, planned.out
        applied = recover_ckpt("apply", splitter.directory, "--world-size", 4)
        assert applied.code == 0, applied.out + applied.err
        assert lost.read_bytes() == before[lost]
        assert recover_ckpt("verify", splitter.directory).code == 0

        os.kill(splitter.processes[1], signal.SIGKILL)
        assert close_to(splitter.forward(x).asnumpy(), want)
        wait_for(lambda: all(splitter.device_states), "the device is back")
        capsys.readouterr()
        splitter.report()
        printed = capsys.readouterr().out
        assert printed == splitter.summary() + "\n"
        assert "device" in printed.splitlines()[0]
        assert "recovered device 1" in printed
        page = tmp_path / "timeline.html"
        splitter.timeline(page)
        text = (tmp_path / "timeline.trace.json").read_text()
        assert faults_of_trace(text) == []
        trace = json.loads(text)
        assert "recovered" in {event["name"] for event in trace["traceEvents"]}
        assert "<svg" in page.read_text() or "<canvas" in page.read_text()
        assert "recovered" in page.read_text()
        with pytest.raises(ValueError, match="another splitter"):
            ModelSplitter(model, 1, directory=directory)
    assert {path: path.read_bytes() for path in directory.glob("rank_*/split-*.ckpt")} == before, (
        "a directory that was given is kept"
    )
    with ModelSplitter(model, 3, directory=directory) as splitter:
        assert np.array_equal(splitter.forward(x).asnumpy(), splitter.forward(x).asnumpy())
        assert close_to(splitter.forward(x).asnumpy(), want)
    assert len(list(directory.rglob("split-*.ckpt"))) == 6


if __name__ == "__main__":
    program(sys.argv[1])
