"""Trees as MindFormers' legacy format has them, and the choice of the step that MindFormers itself resumes from.

The choice is that of ``get_resume_checkpoint_by_meta`` in ``mindformers/tools/resume_ckpt.py`` (MindFormers 2.0).
"""

import json
import os
import re
import shutil
from pathlib import Path

STEPS = ((1, 77), (2, 77))


def make_mindformers_tree(
    fixture: Path, root: Path, *, name: str = "CKP_rank_{rank}-{step}.ckpt", folder: str = "checkpoint"
) -> Path:
    """Lay the slices and strategy files of a real tree out as MindFormers does: ``{root}/checkpoint/rank_{rank}/``.

    There are no rank lists. Each ``meta.json`` names the newest step.
    """
    (root / "strategy").mkdir(parents=True, exist_ok=True)
    for rank in range(8):
        source, own = fixture / f"ckpt_dir{rank}", root / folder / f"rank_{rank}"
        own.mkdir(parents=True)
        for epoch, step in STEPS:
            target = own / name.format(rank=rank, step=f"{epoch}_{step}")
            shutil.copyfile(source / f"test-{epoch}_{step}.ckpt", target)
            target.chmod(0o400)
        shutil.copyfile(source / "strategy.ckpt", root / "strategy" / f"ckpt_strategy_rank_{rank}.ckpt")
        if folder == "checkpoint":
            write_meta(own, 2, 77, name.format(rank=rank, step="2_77"))
    return root


def write_meta(folder: Path, epoch: int, step: int, file: str) -> None:
    """Write a ``meta.json`` as ``CheckpointMonitor.record_last_ckpt_to_json`` does."""
    with (folder / "meta.json").open("w") as opened:
        json.dump({"last_epoch": epoch, "last_step": step, "last_ckpt_file": file}, opened)
    (folder / "meta.json").chmod(0o640)


def write_health(path: Path, health: dict[str, int]) -> None:
    """Write a ``health_ckpts.json`` as ``CheckpointMonitor.save_checkpoint`` does."""
    entries = [{"is_health": value, "ckpt_name": name} for name, value in health.items()]
    path.write_text(json.dumps(entries, indent=4))


def resumed_file(checkpoint: Path, rank: int = 0) -> str | None:
    """Return the name of the file that MindFormers resumes a rank from; None where it refuses to resume."""
    ranks = len([name for name in os.listdir(checkpoint) if name.startswith("rank_")])
    metas = []
    for one in range(ranks):
        path = checkpoint / f"rank_{one}" / "meta.json"
        if path.exists():
            meta = json.loads(path.read_text())
            metas.append((meta["last_epoch"], meta["last_step"], -one, meta["last_ckpt_file"]))
    if not metas:
        return None
    epoch, step, _, file = min(metas, key=lambda meta: (meta[:2], -meta[2]))
    prefix = file[: file.rfind("-") + 1]
    first = re.search(r"_rank_(\d+)", file)
    assert first is not None
    valid: dict[tuple[int, int], set[int]] = {}
    for one in range(ranks):
        own = prefix.replace(f"rank_{first[1]}", f"rank_{one}")
        for name in os.listdir(checkpoint / f"rank_{one}"):
            named = re.search(r"-(\d+)_(\d+)\.(?:ckpt|safetensors)$", name)
            if name.startswith(own) and named and (int(named[1]), int(named[2])) <= (epoch, step):
                valid.setdefault((int(named[1]), int(named[2])), set()).add(one)
    complete = [key for key, have in valid.items() if have == set(range(ranks))]
    if not complete:
        return None
    last = max(complete)
    return f"{prefix.replace(f'rank_{first[1]}', f'rank_{rank}')}{last[0]}_{last[1]}.{file.rpartition('.')[2]}"
