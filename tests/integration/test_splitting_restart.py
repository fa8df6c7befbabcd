"""A training through a splitter, killed as a whole: its slices, recovered, go on with the same bits."""

import os
import shutil
import signal
import subprocess
import sys

import numpy as np
import pytest

pytestmark = [pytest.mark.mindspore, pytest.mark.usefixtures("watched")]
ms = pytest.importorskip("mindspore")

from mindspore import nn  # noqa: E402

from ms_recover.errors import StorageError, UsageError  # noqa: E402
from ms_recover.splitting import FaultTolerantModelSplitter, ModelSplitter  # noqa: E402
from tests.support.split_training import OPTIMIZERS, batches, equal, network, one_process  # noqa: E402
from tests.support.splitting import LONG, ROOT  # noqa: E402

MORE = "MS_RECOVER_EXAMPLES" in os.environ
PROGRAM = """
import sys
from tests.integration.test_splitting_restart import train

train(sys.argv[1], sys.argv[2], int(sys.argv[3]), 1000, print)
"""


def options_of(directory, optimizer="Adam", **more):
    given = {"directory": directory, "resume": True, "save_steps": 4, "snapshot_steps": 3, "threads": 1}
    return {**given, "loss_fn": nn.CrossEntropyLoss(), "optimizer": OPTIMIZERS[optimizer], **more}


def train(directory, split, devices, until, say, **more):
    """Train up to a step, as a program that can be started again does; return the weights."""
    with FaultTolerantModelSplitter(network(), devices, split, **options_of(directory, **more)) as splitter:
        say(f"from {splitter.step}", flush=True)
        for step, (x, y) in enumerate(batches(until), 1):
            if step <= splitter.step:
                continue
            splitter.train_step(x, y)
            say(f"step {splitter.step}", flush=True)
        splitter.save()
        return {name: weight.asnumpy() for name, weight in splitter.state_dict().items()}, splitter.chunks(200)


def train_and_kill(directory, split, devices, behind):
    """Run the program in another process, and kill it behind a step; its workers end with it."""
    command = [sys.executable, "-c", PROGRAM, str(directory), split, str(devices)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as program:
        try:
            said = [program.stdout.readline() for _ in range(behind + 1)]
        finally:
            os.kill(program.pid, signal.SIGKILL)
        program.wait(LONG)
    assert said[-1] == f"step {behind}\n", said
    return said[0].strip()


def test_everything_is_killed_and_goes_on_with_the_same_bits(tmp_path, recover_ckpt):
    directory = tmp_path / "slices"
    assert train_and_kill(directory, "layers", 2, 10) == "from 0"
    for path in directory.glob("rank_*/split-*"):  # a save may have begun meanwhile
        assert path.name.removesuffix(".manifest.json") in ("split-1_4.ckpt", "split-1_8.ckpt")
    shutil.rmtree(directory / "rank_0")
    damaged = directory / "rank_3" / "split-1_8.ckpt"
    data = bytearray(damaged.read_bytes())
    data[len(data) // 2] ^= 1
    damaged.unlink()
    damaged.write_bytes(data)
    planned = recover_ckpt("plan", directory, "--json")
    assert planned.code == 0, planned.err
    assert [action["rank"] for action in planned.json["actions"]] == [0, 3]
    assert recover_ckpt("apply", directory).code == 0
    assert recover_ckpt("plan", directory, "--json").json["actions"] == []
    assert (directory / "rank_1" / "strategy.ckpt").exists()

    with pytest.raises(UsageError, match="slices of 8 trained steps: resume=True goes on from them"):
        ModelSplitter(network(), 2, **options_of(directory, resume=None))
    said = []
    found, chunks = train(directory, "layers", 2, 13, lambda words, flush: said.append(words))
    assert said[:2] == ["from 8", "step 9"]
    assert equal(found, one_process(13, chunks, "Adam")[0])

    # what was trained serves, on another number of devices, and changes nothing
    before = {path: path.read_bytes() for path in directory.glob("rank_*/split-*.ckpt")}
    assert {path.name for path in before} == {"split-1_12.ckpt", "split-1_13.ckpt"}
    model = network(seed=9)
    with ModelSplitter(model, 1, directory=directory, resume=True) as splitter:
        assert splitter.step == 13
        output = splitter.forward(batches(1)[0][0]).asnumpy()
        splitter.sync()
    assert equal({each.name: each.asnumpy() for each in model.get_parameters()}, found)
    assert np.allclose(output, model(ms.Tensor(batches(1)[0][0])).asnumpy(), atol=1e-6)
    assert {path: path.read_bytes() for path in directory.glob("rank_*/split-*.ckpt")} == before

    with pytest.raises(UsageError, match="a model of 5 stages, this has 1: give the same model and split"):
        ModelSplitter(network(), 2, "batch", **options_of(directory))


def test_what_cannot_be_saved_is_said(tmp_path):
    with ModelSplitter(network(), 1, **options_of(None, resume=None, save_steps=None)) as splitter:
        splitter.train_step(*batches(1)[0])
        with pytest.raises(UsageError, match="the directory of this splitter is temporary"):
            splitter.save()
    with pytest.raises(UsageError, match="save_steps needs a directory"):
        ModelSplitter(network(), 1, **options_of(None, resume=None))
    directory = tmp_path / "slices"
    with ModelSplitter(network(), 2, **options_of(directory, save_steps=1)) as splitter:
        splitter.train_step(*batches(1)[0])
        (directory / "rank_2").rename(tmp_path / "gone")
        (directory / "rank_2").write_text("a file")
        with pytest.raises(StorageError, match=r"step 2 is done and counts .* not saved .* slices of step 1 are"):
            splitter.train_step(*batches(2)[1])
        assert splitter.step == 2
        (directory / "rank_2").unlink()
        (tmp_path / "gone").rename(directory / "rank_2")
        assert splitter.save() == str(directory)
        weights = {name: weight.asnumpy() for name, weight in splitter.state_dict().items()}
        chunks = splitter.chunks(200)
    assert equal(weights, one_process(2, chunks, "Adam")[0])
    with pytest.raises(UsageError, match=r"the state of another optimizer than optimizer=<lambda> makes"):
        ModelSplitter(network(), 2, **options_of(directory, "Momentum"))


@pytest.mark.skipif(not MORE, reason="only with MS_RECOVER_EXAMPLES: each case starts processes")
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize(("split", "devices"), [("layers", 3), ("batch", 2)])
def test_every_optimizer_goes_on_with_the_same_bits(tmp_path, split, devices, optimizer):
    directory = tmp_path / "slices"
    for until in (5, 6, 11):
        found, chunks = train(directory, split, devices, until, lambda *_, **__: None, optimizer=optimizer)
    assert equal(found, one_process(11, chunks, optimizer)[0])
