"""A save is struck at every call to the file system; started as a script, this file is the training that is struck.

Processes are forked after MindSpore is imported and before it computes anything, so that hundreds take seconds.
"""

import json
import os
import subprocess
import sys
import traceback
from pathlib import Path
from types import SimpleNamespace

import pytest

from ms_recover import api
from ms_recover.file_names import MANIFEST_SUFFIX
from ms_recover.model.steps import Step
from tests.support import faulty_disk
from tests.support.faults import WRITING, Faults

pytestmark = pytest.mark.mindspore
pytest.importorskip("mindspore")

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
KINDS = ("kill", "kill after", "ENOSPC", "EIO")
CALLS = (*WRITING, "chmod", "remove", "rmdir")
KEEP = 2
BEFORE, STRUCK, NEXT = ((1, 2), (1, 4)), (2, 2), (2, 4)
BATCHES = 4
FORMS = {"sync": "ckpt", "async": "ckpt", "safetensors": "safetensors"}
base = faulty_disk.base  # a fixture


@pytest.mark.parametrize("mode", FORMS)
def test_a_save_that_is_struck_leaves_the_tree_old_or_new(base, mode):
    form = FORMS[mode]
    done = subprocess.run(
        [sys.executable, __file__, base, "walk", mode],
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
        env=ENVIRONMENT,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.splitlines()[-1])
    trace = found["trace"]
    assert len([call for call in trace if call.startswith("write") and ".saving" in call]) > 1
    assert any(call.startswith("rename") and call.endswith(f"test-2_2.{form}") for call in trace)
    assert f"unlink ckpt_dir0/test-1_2.{form}{MANIFEST_SUFFIX}" in trace
    assert found["strikes"] == len(KINDS) * len(trace)
    committed = trace.index(f"rename ckpt_dir0/.saving.ms_recover.tmp/test-2_2.{form}")
    assert trace.index(f"rename ckpt_dir0/.test-2_2.{form}{MANIFEST_SUFFIX}.ms_recover.tmp") < committed
    # at the commit only "kill after" is too late; of the directory's sync behind it an error takes the commit back;
    # an error of the removal of the hidden directory takes nothing back, because another saver may use it
    assert [call.split()[0] for call in trace[committed + 1 : committed + 3]] == ["rmdir", "fsync"]
    assert found["old"] == len(KINDS) * committed + 3 + 2
    assert found["new"] == len(KINDS) * len(trace) - found["old"]


@pytest.mark.parametrize("mode", ["sync", "safetensors"])
def test_a_save_on_a_file_system_that_is_full(tmp_path, mode):
    mount = 'mount -t tmpfs -o size=400k tmpfs "$0" && echo mounted && exec "$@"'
    command = [sys.executable, __file__, tmp_path, "fill", mode]
    done = subprocess.run(
        ["unshare", "--mount", "--map-root-user", "sh", "-c", mount, tmp_path, *command],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=ENVIRONMENT,
    )
    if "mounted" not in done.stdout:
        pytest.skip(f"no file system can be mounted here: {done.stderr}")
    assert done.returncode == 0, done.stderr[-4000:]
    error, committed = json.loads(done.stdout.splitlines()[-1])
    assert "rank 0, step 2_2, " in error
    assert "No space left on device" in error
    assert "free some space" in error
    assert committed == "2_4"


class Training:
    """What `Model.train` does for a callback, as far as a `SliceCheckpoint` looks at it."""

    def __init__(self, root, networks, mode):
        from ms_recover.training import SliceCheckpoint

        self._networks = networks
        self._params = SimpleNamespace(
            batch_num=BATCHES, cur_step_num=0, cur_epoch_num=1, train_network=networks[STRUCK]
        )
        self._context = SimpleNamespace(original_args=lambda: self._params)
        self.callback = SliceCheckpoint(
            f"{root}/ckpt_dir{{rank}}", "test", 2, KEEP, async_save=mode == "async", format=FORMS[mode]
        )

    def begin(self, epoch=1, step=0):
        self._params.cur_step_num = (epoch - 1) * BATCHES + step
        self.callback.on_train_begin(self._context)

    def save(self, epoch, step):
        self._params.cur_epoch_num, self._params.cur_step_num = epoch, (epoch - 1) * BATCHES + step
        self._params.train_network = self.callback.saver._network = self._networks[epoch, step]
        self.callback.on_train_step_end(self._context)

    def end(self):
        self.callback.on_train_end(self._context)


def in_child(report, work, *arguments):
    """Run `work` in a forked process, which writes what it returns to `report`; return the wait status."""
    process = os.fork()
    if process:
        return os.waitpid(process, 0)[1]
    code = 1
    try:
        report.write_text(json.dumps(work(*arguments)))
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def train_struck(root, networks, mode, strike_at, kind):
    """Save two steps, and a third while being struck; return the error that reached the training, and the calls."""
    from ms_recover.execution import write_slice

    training = Training(root, networks, mode)
    training.begin()
    for step in BEFORE:
        training.save(*step)
    training.callback.saver._background.outcome()
    faults = Faults(str(root), strike_at, kind, CALLS)
    write_slice._TOGETHER = write_slice._BEGUN = 16000  # several writes
    error = None
    with faults.installed():
        try:
            training.save(*STRUCK)
            training.end()
        except Exception as failure:
            error = [type(failure).__name__, str(failure)]
    return {"error": error, "trace": faults.trace}


def train_next(root, networks, mode):
    training = Training(root, networks, mode)
    training.begin(*STRUCK)
    training.save(*NEXT)
    training.end()
    return str(training.callback.committed)


def check(root, form, reference, error, place):
    """Check a tree that was struck; return whether the new step is committed."""
    folder = root / "ckpt_dir0"
    slices = {path.name: path for path in folder.glob(f"*.{form}")}
    stated = {path.name.removesuffix(MANIFEST_SUFFIX) for path in folder.glob(f"*{MANIFEST_SUFFIX}")}
    committed = stated & slices.keys()
    for name, path in slices.items():
        assert path.read_bytes() == reference[name], f"{place}: wrong bytes in {name}"
    assert slices.keys() <= stated, f"{place}: a slice without its manifest"
    struck = {f"test-2_2.{form}", f"test-1_2.{form}"}  # what is saved, and what is removed then
    assert stated - slices.keys() <= struck, f"{place}: a manifest without its slice"
    assert f"test-1_4.{form}" in committed, f"{place}: the step before is gone"
    new = f"test-2_2.{form}" in committed
    assert new or f"test-1_2.{form}" in committed, f"{place}: removed before the new one was committed"
    plan = api.plan(api.scan(root))
    assert plan.recoverable, place
    assert plan.actions == (), place
    assert plan.step in (Step(1, 4), Step(2, 2)), place
    assert plan.step == Step(2, 2) or not new, place
    if error is not None:
        kind, text = error
        assert kind in ("StorageError", "MissingInputError"), f"{place}: {error}"
        assert "rank 0, step 2_2, " in text, f"{place}: {error}"
        assert str(folder / f"test-2_2.{form}") in text, f"{place}: {error}"
    return new


def make_networks(ms, nn):
    """A train network for each step, optimizer state included, whose parameters all hold one number."""
    networks = {}
    for index, step in enumerate((*BEFORE, STRUCK, NEXT)):
        dense = nn.Dense(64, 48)
        optimizer = nn.Momentum(dense.trainable_params(), 0.1, 0.9)
        networks[step] = nn.TrainOneStepCell(nn.WithLossCell(dense, nn.MSELoss()), optimizer)
        for parameter in networks[step].get_parameters():
            parameter.asnumpy().fill(index + 1)
    return networks


def walk(top, networks, mode):
    """Strike at every call in every way; return the calls and how many strikes left what."""
    report, form = top / "report.json", FORMS[mode]
    assert in_child(report, train_struck, top / "whole", networks, mode, 0, "none") == 0
    whole = json.loads(report.read_text())
    assert whole["error"] is None
    trace = whole["trace"]
    assert in_child(report, train_struck, top / "failed", networks, mode, 1, "ENOSPC") == 0
    folders = [top / name / "ckpt_dir0" for name in ("whole", "failed")]
    reference = {path.name: path.read_bytes() for folder in folders for path in folder.glob(f"*.{form}")}
    assert sorted(reference) == [f"test-{step}.{form}" for step in ("1_2", "1_4", "2_2")]
    counts = {"trace": trace, "strikes": 0, "old": 0, "new": 0}
    for kind in KINDS:
        for number, call in enumerate(trace, 1):
            place = f"{kind} at call {number}: {call}"
            root = top / f"{kind.replace(' ', '-')}-{number}"
            status = in_child(report, train_struck, root, networks, mode, number, kind)
            assert os.WIFSIGNALED(status) if kind.startswith("kill") else status == 0, place
            error = None if kind.startswith("kill") else json.loads(report.read_text())["error"]
            new = check(root, form, reference, error, place)
            assert kind.startswith("kill") or (error is None) == new, place
            counts["strikes"] += 1
            counts["new" if new else "old"] += 1
            assert in_child(report, train_next, root, networks, mode) == 0, place
            assert json.loads(report.read_text()) == "2_4", place
            inventory = api.scan(root)
            assert api.plan(inventory).step == Step(2, 4), place
            assert inventory.notes == (), f"{place}: {inventory.notes}"
    return counts


def fill(top, networks, mode):
    """Save on a file system that is full, then with space again; return the error and what was committed then."""
    from mindspore import nn

    dense = nn.Dense(256, 256)
    networks = {**networks, STRUCK: nn.TrainOneStepCell(dense, nn.SGD(dense.trainable_params()))}
    training = Training(top, networks, mode)
    training.begin()
    for step in BEFORE:
        training.save(*step)
    before = {path.name: path.read_bytes() for path in (top / "ckpt_dir0").iterdir()}
    filler = top / "filler"
    with filler.open("wb", buffering=0) as file:
        free = os.statvfs(top).f_bavail * os.statvfs(top).f_frsize
        file.write(bytes(max(0, free - 50_000)))
    error = ""
    try:
        training.save(*STRUCK)
    except OSError as failure:
        error = str(failure)
    assert {path.name: path.read_bytes() for path in (top / "ckpt_dir0").iterdir()} == before
    filler.unlink()
    return error, train_next(top, networks, mode)


def main(top, what, mode="sync"):
    """Print what `walk` or `fill` found out."""
    import mindspore as ms
    from mindspore import nn

    ms.set_device("CPU")
    networks = make_networks(ms, nn)
    if what == "fill":
        print(json.dumps(fill(top, networks, mode)))
        return
    print(json.dumps(walk(top, networks, mode)))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
