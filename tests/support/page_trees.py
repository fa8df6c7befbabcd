"""Trees of the examples in the pages, each struck by the mishap that it is named after."""

from __future__ import annotations

import fcntl
import os
import shutil
from contextlib import ExitStack
from pathlib import Path

from ms_recover import scan, seal
from ms_recover.execution.rank_lists import write_group_info
from ms_recover.model.steps import Step
from ms_recover.testing.trees import make_tree, save_manifests
from tests.support.experiment_trees import ExperimentTree, Start
from tests.support.iteration_trees import unpack
from tests.support.mindformers_tree import make_mindformers_tree, write_health, write_meta

FIXTURES = Path(__file__).parents[1] / "data" / "fixtures"
STEPS = (Step(1, 100), Step(1, 200))


def _job(root: Path, *, manifests: bool = True) -> Path:
    """Four ranks, data 2 x model 2: ranks 0 and 2 hold the same slice, and ranks 1 and 3."""
    make_tree(root, steps=STEPS, directory="rank_{rank}", name="llama-{step}.ckpt")
    if manifests:
        save_manifests(root)
    return root


def _newest(root: Path, rank: int) -> Path:
    path = root / f"rank_{rank}" / "llama-1_200.ckpt"
    path.chmod(0o600)
    return path


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def whole(root: Path, stack: ExitStack) -> None:
    _job(root)


def dead_node(root: Path, stack: ExitStack) -> None:
    _job(root)
    for rank in (0, 1):
        shutil.rmtree(root / f"rank_{rank}")


def both_nodes_dead(root: Path, stack: ExitStack) -> None:
    _job(root)
    for rank in (1, 3):
        shutil.rmtree(root / f"rank_{rank}")


def newest_lost(root: Path, stack: ExitStack) -> None:
    _job(root)
    for rank in (1, 3):
        _newest(root, rank).unlink()


def half_written(root: Path, stack: ExitStack) -> None:
    _job(root, manifests=False)
    path = _newest(root, 1)
    path.write_bytes(path.read_bytes()[:700])


def replicas_differ(root: Path, stack: ExitStack) -> None:
    _job(root, manifests=False)
    _flip(_newest(root, 2))


def outvoted(root: Path, stack: ExitStack) -> None:
    """Three ranks that hold the same slice, without manifests."""
    names = {"directory": "rank_{rank}", "name": "llama-{step}.ckpt"}
    make_tree(root, data_parallel=3, model_parallel=1, steps=STEPS, **names)
    _flip(_newest(root, 1))


def flipped_bit(root: Path, stack: ExitStack) -> None:
    _job(root)
    _flip(_newest(root, 2))


def world_size_unknown(root: Path, stack: ExitStack) -> None:
    _job(root, manifests=False)
    for path in root.glob("rank_*/group_info.pb"):
        path.unlink()


def no_evidence(root: Path, stack: ExitStack) -> None:
    world_size_unknown(root, stack)
    shutil.rmtree(root / "rank_1")


def wrong_folder(root: Path, stack: ExitStack) -> None:
    (root / "logs").mkdir(parents=True)
    for rank in range(4):
        (root / "weights").mkdir(exist_ok=True)
        (root / "weights" / f"llama-1_200-part{rank}.ckpt").write_bytes(b"")


def nothing(root: Path, stack: ExitStack) -> None:
    pass


def busy(root: Path, stack: ExitStack) -> None:
    """Another recovery holds the tree."""
    dead_node(root, stack)
    descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    stack.callback(os.close, descriptor)
    fcntl.flock(descriptor, fcntl.LOCK_EX)


def run_again(root: Path, stack: ExitStack) -> None:
    """A second run saved a step of the same number in the same directories, under the prefix that MindSpore chose."""
    _job(root, manifests=False)
    for path in list(root.glob("rank_*/llama-1_200.ckpt")):
        again = path.with_name(path.name.replace("llama-", "llama_1-"))
        shutil.copyfile(path, again)
        _flip(again)
        os.utime(again, ns=(path.stat().st_mtime_ns + 10**9,) * 2)


def two_jobs(root: Path, stack: ExitStack) -> None:
    """Another job saved a step of the same number in the same directories, under its own prefix, an hour before."""
    _job(root, manifests=False)
    for path in list(root.glob("rank_*/llama-*.ckpt")):
        other = path.with_name(path.name.replace("llama-", "qwen-"))
        shutil.copyfile(path, other)
        _flip(other)
        os.utime(other, ns=(path.stat().st_mtime_ns - 3600 * 10**9,) * 2)


def sweep(root: Path, stack: ExitStack) -> None:
    """Two experiments of a sweep, whose manifests state it; the later one has come less far."""
    first = Start(experiment="lr_0.5", number=0, place=0, prefix="lr_0.5", steps=(100, 200), manifests="new")
    second = Start(experiment="lr_0.01", number=0, place=1, prefix="lr_0.01", steps=(100,), manifests="new")
    ExperimentTree(model_parallel=1, starts=(first, second)).write(root)


def mindformers_job(root: Path, stack: ExitStack) -> None:
    """MindFormers' ``output`` of eight ranks, data 2 x model 4; the node with ranks 2 and 5 is dead."""
    make_mindformers_tree(FIXTURES / "dp2_mp4", root)
    for rank in (2, 5):
        shutil.rmtree(root / "checkpoint" / f"rank_{rank}")


def unhealthy(root: Path, stack: ExitStack) -> None:
    """MindFormers' ``output``, whole, with a health monitor that found all steps unsound."""
    make_mindformers_tree(FIXTURES / "dp2_mp4", root)
    write_health(root / "health_ckpts.json", {f"CKP_rank_0-{epoch}_77.ckpt": 1 for epoch in (1, 2)})


def iterations(root: Path, stack: ExitStack) -> None:
    """MindFormers' ``output`` with weights 2.0: the files of rank 1 are lost, and the save ended before the tracker."""
    unpack("dp2_mp2_pp2", root / "checkpoint")
    for path in (root / "checkpoint" / "iteration_00000200").glob("*-0000001-0000008.safetensors"):
        path.unlink()
    (root / "checkpoint" / "latest_checkpointed_iteration.txt").write_text("100")


def _eight_ranks(root: Path) -> None:
    """Slices that MindSpore wrote, data 2 x model 4: ranks 0 and 4 hold the same slice, and so on."""
    for rank in range(8):
        shutil.copytree(FIXTURES / "dp2_mp4" / f"ckpt_dir{rank}", root / f"ckpt_dir{rank}")


def node_of_two_ranks(root: Path, stack: ExitStack) -> None:
    _eight_ranks(root)
    seal(scan(root))
    for rank in (0, 3):
        shutil.rmtree(root / f"ckpt_dir{rank}")


def stock_callbacks(root: Path, stack: ExitStack) -> None:
    """Nothing but slices, as stock callbacks save them; rank 5 is lost."""
    _eight_ranks(root)
    for name in ("group_info.pb", "strategy.ckpt"):
        for path in root.glob(f"ckpt_dir*/{name}"):
            path.unlink()
    shutil.rmtree(root / "ckpt_dir5")


def trap(root: Path, stack: ExitStack) -> None:
    """Two stages of eight ranks, of which r and r + 4 hold the same: with eight ranks a host, on the same host."""
    for stage in range(2):
        half = make_tree(root / "half", data_parallel=2, model_parallel=4, steps=[Step(2, 77)])
        for rank in range(8):
            folder = root / f"ckpt_dir{8 * stage + rank}"
            shutil.move(half / f"ckpt_dir{rank}", folder)
            write_group_info(folder / "group_info.pb", [8 * stage + rank % 4, 8 * stage + rank % 4 + 4])
        shutil.rmtree(half)


def two_holes(root: Path, stack: ExitStack) -> None:
    """Eight ranks, of which r and r + 4 hold the same; ranks 1 and 3 lost their slices."""
    make_tree(root, data_parallel=2, model_parallel=4, steps=[Step(2, 100)])
    save_manifests(root)
    for rank in (1, 3):
        (root / f"ckpt_dir{rank}" / "test-2_100.ckpt").unlink()


def in_the_way(root: Path, stack: ExitStack) -> None:
    """As `two_holes`; a file lies where the directory of rank 3 belongs."""
    two_holes(root, stack)
    shutil.rmtree(root / "ckpt_dir3")
    (root / "ckpt_dir3").write_text("a note")


def parted_replicas(root: Path, stack: ExitStack) -> None:
    """Twenty steps of six ranks, of which r, r + 2 and r + 4 hold the same; from step 7 on rank 3 differs."""
    make_tree(root, data_parallel=3, steps=[Step(1, number) for number in range(1, 21)])
    for number in range(7, 21):
        path = root / "ckpt_dir3" / f"test-1_{number}.ckpt"
        path.chmod(0o600)
        data = bytearray(path.read_bytes())
        data[100] ^= 1
        path.write_bytes(data)
    save_manifests(root)


def no_replica_left(root: Path, stack: ExitStack) -> None:
    """Slices that MindSpore wrote, data 2 x model 4; ranks 0 and 4, which hold the same, are lost, and layouts stay."""
    _eight_ranks(root)
    for rank in (0, 4):
        shutil.rmtree(root / f"ckpt_dir{rank}")


def mindformers_data_parallel(root: Path, stack: ExitStack) -> None:
    """MindFormers' ``output`` of four ranks that hold all the same, without strategy files; rank 2 is lost."""
    for rank in range(4):
        folder = root / "checkpoint" / f"rank_{rank}"
        folder.mkdir(parents=True)
        for step in ("1_77", "2_77"):
            shutil.copyfile(
                FIXTURES / "dp2_mp4" / "ckpt_dir0" / f"test-{step}.ckpt", folder / f"CKP_rank_{rank}-{step}.ckpt"
            )
        write_meta(folder, 2, 77, f"CKP_rank_{rank}-2_77.ckpt")
    shutil.rmtree(root / "checkpoint" / "rank_2")
