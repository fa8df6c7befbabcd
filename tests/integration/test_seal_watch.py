"""recover-ckpt seal --watch beside a process that saves as MindSpore does, killed and signalled."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import jsonschema
import pytest

from ms_recover import api
from ms_recover.file_names import MANIFEST_SUFFIX
from ms_recover.formats.manifest import read_manifest
from ms_recover.testing.trees import make_tree

COMMAND = [sys.executable, "-c", "import sys; from ms_recover.cli.entry import main; sys.exit(main())", "seal"]
LIMIT = 60
SCHEMA = Path(__file__).parents[2] / "docs" / "schemas" / "seal-watch.schema.json"

WRITER = """
import os, sys, time
from ms_recover.execution.rank_lists import write_group_info
from ms_recover.testing.trees import slice_bytes
root, steps, pause, keep = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])
def paths(step, ending="ckpt"):
    return [os.path.join(root, f"rank_{rank}", f"CKP_rank_{rank}-1_{step}.{ending}") for rank in range(4)]
for step in range(1, steps + 1):
    for rank, (path, temporary) in enumerate(zip(paths(step), paths(step, "tmp"))):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        if step == 1:
            write_group_info(os.path.join(os.path.dirname(path), "group_info.pb"), [rank % 2, rank % 2 + 2])
        data = slice_bytes({"w": 20000, "b": 2}, seed=10 * step + rank % 2)
        with open(temporary, "wb") as file:
            for start in range(0, len(data), 20000):
                file.write(data[start:start + 20000])
                file.flush()
                time.sleep(0.01)
        os.rename(temporary, path)
        os.chmod(path, 0o400)
    for path in paths(step - keep) if step > keep else ():
        os.remove(path)
    time.sleep(pause)
"""


def start(root, *options):
    return subprocess.Popen(
        [*COMMAND, str(root), "--watch", "--quiet-for", "0.4", "--interval", "0.1", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for(condition):
    deadline = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def end(process, number=signal.SIGINT):
    process.send_signal(number)
    try:
        out, err = process.communicate(timeout=LIMIT)
    finally:
        process.kill()
        process.wait(timeout=LIMIT)
    assert "Traceback" not in err, err
    return process.returncode, out, err


def manifests(root):
    return sorted(root.rglob(f"*{MANIFEST_SUFFIX}"))


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_ends_by_a_signal_and_leaves_nothing_behind(tmp_path, number, code):
    tree = make_tree(tmp_path / "tree")
    process = start(tree, "--world-size", "4")
    wait_for(lambda: len(manifests(tree)) == 4)
    line = process.stdout.readline()
    assert "step 1_8: 4 manifests written" in line
    found, out, err = end(process, number)
    assert (found, out) == (code, "")
    assert err.strip().startswith("recover-ckpt: interrupted")
    assert not list(tree.rglob("*.ms_recover.tmp"))


def test_a_job_that_saves_and_rotates(tmp_path):
    """The root comes later; two watches; every step sealed once, none before it is whole."""
    tree = tmp_path / "checkpoint"
    first = start(tree, "--json", "--world-size", "4")
    second = start(tree, "--json", "--world-size", "4")
    time.sleep(0.5)
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(tree), "4", "1.2", "2"])
    assert writer.wait(timeout=LIMIT) == 0
    last = tree / "rank_3" / f"CKP_rank_3-1_4.ckpt{MANIFEST_SUFFIX}"
    wait_for(last.exists)
    wait_for(lambda: len(manifests(tree)) == 8)  # those of the rotated steps are gone
    lines, troubles = [], []
    for process in (first, second):
        code, out, err = end(process)
        assert code == 130
        lines += [json.loads(line) for line in out.splitlines()]
        troubles.append(err)
    steps = [(line["epoch"], line["step"]) for line in lines]
    assert len(set(steps)) == len(steps)
    assert {(1, 3), (1, 4)} <= set(steps)
    assert any("another watch is at work" in err for err in troubles)  # both, where one met a slice that was removed
    schema = json.loads(SCHEMA.read_text())
    for line in lines:
        jsonschema.validate(line, schema)
        assert line["ok"]
    assert {read_manifest(path).provenance.evidence for path in manifests(tree)} == {"vote"}
    assert not api.verify(api.scan(tree)).wrong


def test_killed_at_any_moment_the_next_watch_goes_on(tmp_path):
    tree = tmp_path / "checkpoint"
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(tree), "3", "0.4", "9"])
    for seconds in (0.6, 0.8, 0.9):
        process = start(tree)
        time.sleep(seconds)
        process.kill()
        process.communicate(timeout=LIMIT)
    assert writer.wait(timeout=LIMIT) == 0
    for path in manifests(tree)[:1]:
        path.unlink()  # which this watch writes again: it is at work when it is interrupted
    process = start(tree)
    wait_for(lambda: len(manifests(tree)) == 12)
    assert end(process)[0] == 130
    assert not api.verify(api.scan(tree)).wrong
    assert {read_manifest(path).world_size for path in manifests(tree)} == {4}


def test_a_killed_job_leaves_its_newest_step_alone(tmp_path):
    """Its ranks are killed while they write step 3: no manifest for a part of it, and the plan goes back to step 2."""
    tree = tmp_path / "checkpoint"
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(tree), "9", "0.1", "9"])
    process = start(tree, "--world-size", "4")
    wait_for((tree / "rank_1" / "CKP_rank_1-1_3.ckpt").exists)
    writer.kill()
    writer.wait(timeout=LIMIT)
    wait_for(lambda: len(manifests(tree)) == 8)
    time.sleep(1.5)
    _, _, err = end(process)
    assert "step 1_3 is not sealed: no slice of rank" in err
    assert {read_manifest(path).step.step for path in manifests(tree)} == {1, 2}
    plan = api.plan(api.scan(tree))
    assert str(plan.step) in ("1_2", "1_3")  # 1_3 where both of a group are there
    assert plan.recoverable


def test_options_of_the_watch_need_it(recover_ckpt, tmp_path):
    done = recover_ckpt("seal", tmp_path, "--quiet-for", "3")
    assert done.code == 2
    assert "--quiet-for goes with --watch only" in done.err
    done = recover_ckpt("seal", tmp_path, "--watch", "--ranks", "3-x")
    assert done.code == 2
    assert "neither a rank nor a range" in done.err


def test_a_closed_standard_output_ends_it(tmp_path):
    tree = make_tree(tmp_path / "tree")
    read, write = os.pipe()
    process = subprocess.Popen(
        [*COMMAND, str(tree), "--watch", "--quiet-for", "0", "--interval", "0.1"], stdout=write, stderr=subprocess.PIPE
    )
    os.close(write)
    os.close(read)
    try:
        assert process.wait(timeout=LIMIT) == 1
        assert b"Traceback" not in process.stderr.read()
    finally:
        process.kill()
        process.stderr.close()
