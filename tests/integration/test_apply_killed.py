"""Killed at any moment, a final name holds the old bytes or the new ones, and the next run completes."""

import os
import random
import signal
import subprocess
import sys
import time

import pytest

from ms_recover.model.steps import Step
from ms_recover.testing.trees import make_tree

APPLY = [sys.executable, "-c", "import sys; from ms_recover.cli.entry import main; sys.exit(main())", "apply"]
NAME = "test-1_8.ckpt"


@pytest.fixture(scope="module")
def big_tree(tmp_path_factory):
    """Eight ranks, 16 MiB a slice."""
    return make_tree(
        tmp_path_factory.mktemp("big"),
        data_parallel=2,
        model_parallel=4,
        steps=[Step(1, 8)],
        parameters={"w": 2 << 20, "moment": 2 << 20},
    )


@pytest.fixture
def lose(big_tree):
    """Keep the truth for ranks 0 to 3, take their slices away, and bring everything back to the start afterwards."""
    truth = {rank: (big_tree / f"ckpt_dir{rank + 4}" / NAME).read_bytes() for rank in range(4)}
    old = b"old bytes, damaged"

    def again():
        for rank in range(4):
            folder = big_tree / f"ckpt_dir{rank}"
            for path in folder.iterdir() if folder.exists() else ():
                path.unlink()
        (big_tree / "ckpt_dir0" / NAME).write_bytes(old)

    yield big_tree, truth, old, again
    again()


def whole(tree, truth, old):
    """Return how many ranks are recovered; fail when a final name holds anything but old or new bytes."""
    count = 0
    for rank, expected in truth.items():
        path = tree / f"ckpt_dir{rank}" / NAME
        content = path.read_bytes() if path.exists() else old
        assert content in (expected, old), f"rank {rank} holds {len(content)} bytes that are neither old nor new"
        count += content == expected
    return count


def leftovers(tree):
    return [path.name for path in tree.rglob("*") if path.name.endswith(".tmp")]


def test_sigkill_at_random_moments(lose):
    tree, truth, old, again = lose
    again()
    start = time.monotonic()
    subprocess.run([*APPLY, tree], check=True, timeout=120, stdout=subprocess.DEVNULL)
    took = time.monotonic() - start
    assert whole(tree, truth, old) == 4
    source, partial = random.Random(20), 0
    for _ in range(25):
        again()
        process = subprocess.Popen([*APPLY, tree], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(source.uniform(0.3 * took, 0.95 * took))
        process.kill()
        process.wait(timeout=30)
        partial += whole(tree, truth, old) < 4
        done = subprocess.run([*APPLY, tree], check=False, timeout=120, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert whole(tree, truth, old) == 4
        assert leftovers(tree) == []
    assert partial > 0  # some kills struck before the end


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupting_leaves_no_temporary_file(lose, number):
    tree, truth, old, again = lose
    struck = 0
    for attempt in range(20):
        again()
        process = subprocess.Popen(
            [*APPLY, tree, "--jobs", "2"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True
        )
        deadline = time.monotonic() + 60
        while not leftovers(tree) and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(0.002 * attempt)
        os.kill(process.pid, number)
        _, errors = process.communicate(timeout=60)
        assert leftovers(tree) == []
        assert b"Traceback" not in errors
        whole(tree, truth, old)
        if process.returncode == 128 + number:
            struck += 1
            assert b"interrupted" in errors
        else:
            assert process.returncode == 0
        if struck >= 3:
            break
    assert struck > 0
