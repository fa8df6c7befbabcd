"""`SliceManifests` in four ranks under msrun, and killed at every call to the file system."""

import os
import signal
import sys

import pytest

from ms_recover import api
from ms_recover.execution.manifests import NamedSlice
from ms_recover.file_names import MANIFEST_SUFFIX
from ms_recover.formats.group_info import read_group_info
from ms_recover.formats.manifest import read_manifest
from ms_recover.model.steps import Step
from ms_recover.testing.trees import slice_bytes
from ms_recover.training.manifest_queue import ManifestQueue, Save
from ms_recover.training.same_ranks import SameRanks
from tests.support.faults import OPENING, READING, WRITING, Faults
from tests.support.sample import REPOSITORY, run

SCRIPT = """
import os, sys
import numpy as np
import mindspore as ms
from mindspore import nn
from mindspore.communication import get_rank, init
from mindspore.train import CheckpointConfig, Model, ModelCheckpoint
from ms_recover.training import SliceManifests

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_device("CPU")
init()
ms.set_auto_parallel_context(parallel_mode=ms.ParallelMode.DATA_PARALLEL, gradients_mean=True, device_num=4)
ms.set_seed(1)
rank, output = get_rank(), sys.argv[1]
network = nn.Dense(3, 2)
rows = [(np.full(3, i, np.float32), np.ones(2, np.float32)) for i in range(16)]
data = ms.dataset.GeneratorDataset(rows, ["x", "y"], shuffle=False, num_shards=4, shard_id=rank).batch(1)
config = CheckpointConfig(save_checkpoint_steps=2, keep_checkpoint_max=2, async_save=True)
saver = ModelCheckpoint(f"CKP_rank_{rank}", os.path.join(output, "checkpoint", f"rank_{rank}"), config)
model = Model(network, nn.MSELoss(), nn.Momentum(network.trainable_params(), 0.01, 0.9))
manifests = SliceManifests()
model.train(2, data, callbacks=[manifests, saver] if rank % 2 else [saver, manifests], dataset_sink_mode=False)
print(f"rank {rank} waited {sum(manifests.waits):.3f} s")
"""


@pytest.mark.mindspore
def test_four_ranks(tmp_path):
    pytest.importorskip("mindspore")
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    output = tmp_path / "output"
    command = ["msrun", "--worker_num=4", "--local_worker_num=4", "--join=True"]
    command.append(f"--master_port={20000 + os.getpid() % 10000}")
    path = f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"
    _, text = run([*command, f"--log_dir={tmp_path / 'log'}", script, output], REPOSITORY, PATH=path, GLOG_v="3")
    assert text.count(" waited ") == 4, text  # behind that MindSpore may crash while its threads end
    found = api.scan(output / "checkpoint")
    assert [(file.rank, str(file.step)) for file in found.slices] == [
        (rank, step) for rank in range(4) for step in ("2_2", "2_4")
    ]
    told = [file.manifest for file in found.slices]
    assert {(one.group, one.world_size, one.provenance.kind) for one in told} == {((0, 1, 2, 3), 4, "saved")}
    assert {one.cumulative_step for one in told} == {6, 8}
    assert len({one.run_id for one in told}) == 1
    assert told[0].run_id
    assert found.orphans == ()
    for rank in range(4):
        listed = read_group_info(str(output / "checkpoint" / f"rank_{rank}" / "group_info.pb"))
        assert listed.restore_ranks == (0, 1, 2, 3)
    assert {(check.status, check.evidence) for check in api.verify(found).checks} == {("sound", "manifest")}


def save(folder, number, rank):
    """Write a slice, and have its manifest written, as a rank of a training does."""
    folder.mkdir(exist_ok=True)
    path = folder / f"net-1_{number}.ckpt"
    path.write_bytes(slice_bytes({"w": 6}, seed=number))
    path.chmod(0o400)
    slices = (
        NamedSlice(
            path=str(path), rank=rank, world_size=2, step=Step(1, number), cumulative_step=number, run_id="run-1"
        ),
    )
    return Save(series=0, number=number, slices=slices, same=SameRanks(rank, (0, 1)), kept=None)


def struck(root, strike_at, kind):
    """Have rank 1 write the manifest of step 2 with a fault at one call; return the child's status, and its count."""
    child = os.fork()
    if not child:
        try:
            faults = Faults(str(root), strike_at, kind, WRITING + READING + OPENING)
            saved = save(root / "rank_1", 2, 1)
            with faults.installed():
                queue = ManifestQueue()
                queue.put(saved)
                queue.join()
            os._exit(1 if faults.count < strike_at else 0)
        finally:
            os._exit(9)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of fork beside threads
@pytest.mark.parametrize("kind", ["kill", "kill after", "EIO"])
def test_struck_at_every_call(tmp_path, kind):
    """No manifest but of whole, unchanged slices; step 2 counts, or the plan says why and goes back to step 1."""
    outcomes = set()
    for strike_at in range(1, 100):
        root = tmp_path / str(strike_at)
        root.mkdir()
        for rank in (0, 1):
            ManifestQueue().do_now(save(root / f"rank_{rank}", 1, rank))
        ManifestQueue().do_now(save(root / "rank_0", 2, 0))
        code = struck(root, strike_at, kind)
        if code == 1:
            break
        assert code == (0 if kind == "EIO" else -signal.SIGKILL)
        found = api.scan(root)
        assert not [check for check in api.verify(found).checks if check.status not in ("sound", "uncommitted")]
        sealed = (root / "rank_1" / f"net-1_2.ckpt{MANIFEST_SUFFIX}").exists()
        if sealed:
            assert read_manifest(root / "rank_1" / f"net-1_2.ckpt{MANIFEST_SUFFIX}").rank == 1
        plan = api.plan(found)
        assert plan.recoverable
        assert str(plan.step) == "1_2"
        outcomes.add((sealed, len(plan.actions)))
    assert code == 1, "no strike was left over"
    assert strike_at > 10
    assert (True, 0) in outcomes or kind != "kill after"
