"""Trees of MindFormers' legacy format with reruns, without sink mode: names count the steps of a run from its resume.

Names are those of ``CheckpointMonitor.save_checkpoint`` (``mindformers/core/callback/callback.py``, MindFormers 2.0),
the prefixes of reruns those of ``_chg_ckpt_file_name_if_same_exist`` (``mindspore/train/callback/_checkpoint.py``).
"""

from __future__ import annotations

import os
import random
import struct
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from ms_recover.execution.manifests import make_manifest, write_manifest
from ms_recover.execution.rank_lists import write_group_info
from ms_recover.model.provenance import SAVED
from ms_recover.model.steps import Step
from ms_recover.testing.trees import record
from tests.support.mindformers_tree import write_meta

EPOCH = 8
"""Steps of an epoch."""

Evidence = Literal["manifest", "global_step", "step_num", "nothing"]


@dataclass
class Training:
    """A job of MindFormers on ranks that hold the same slice in pairs, and the tree that it writes.

    Ranks r and r + half hold the same; with `apart` each rank has a slice of its own. `evidence` is what states the
    steps since the beginning. `clock` is the time of the next slice.
    """

    root: Path
    ranks: int = 4
    apart: bool = False
    evidence: Evidence = "global_step"
    stock: bool = False
    runs: list[Run] = field(default_factory=list)
    clock: int = 1_700_000_000

    def group(self, rank: int) -> tuple[int, ...]:
        """Return the ranks that hold the same slice as one."""
        half = self.ranks if self.apart else self.ranks // 2
        return tuple(range(rank % half, self.ranks, half))

    def folder(self, rank: int) -> Path:
        """Return the directory of a rank, which has a rank list."""
        folder = self.root / f"rank_{rank}"
        if not folder.exists():
            folder.mkdir(parents=True)
            write_group_info(folder / "group_info.pb", self.group(rank))
        return folder

    def resume(self, position: int = 0) -> Run:
        """Begin a run after so many steps; each rank chooses its prefix by what lies in its own directory."""
        prefixes = [next_prefix(self.folder(rank), f"CKP_rank_{rank}") for rank in range(self.ranks)]
        run = Run(training=self, start=position, number=len(self.runs), prefixes=tuple(prefixes))
        self.runs.append(run)
        return run


@dataclass(frozen=True)
class Run:
    """One run of a training, from `start` steps on; `prefixes` by rank."""

    training: Training
    start: int
    number: int
    prefixes: tuple[str, ...]

    def step(self, position: int) -> Step:
        """Return the name of a step after so many steps since the beginning of the training."""
        current = position - self.start
        return Step((position - 1) // EPOCH + 1, (current - 1) % EPOCH + 1)

    def path(self, rank: int, position: int) -> Path:
        """Return the path of a slice."""
        return self.training.folder(rank) / f"{self.prefixes[rank]}-{self.step(position)}.ckpt"

    def save(
        self,
        *positions: int,
        ranks: Collection[int] | None = None,
        without_meta: Collection[int] = (),
        late: bool = False,
    ) -> Run:
        """Save slices of some ranks, each with its meta.json; `late`: that names the save before, as of async saves."""
        for position in positions:
            for rank in range(self.training.ranks) if ranks is None else ranks:
                self._save(rank, position)
                if rank not in without_meta and not late:
                    self.write_meta(rank, position)
        return self

    def write_meta(self, rank: int, position: int) -> None:
        """Let a rank's meta.json name a slice of this run."""
        step = self.step(position)
        write_meta(self.training.folder(rank), step.epoch, step.step, self.path(rank, position).name)

    def _save(self, rank: int, position: int) -> None:
        training, path, step = self.training, self.path(rank, position), self.step(position)
        path.unlink(missing_ok=True)
        path.write_bytes(self.content(rank, position))
        if training.evidence == "manifest":
            run_id = f"run-{self.number}"
            manifest = replace(
                make_manifest(str(path), rank, step, training.ranks, training.group(rank), run_id), provenance=SAVED
            )
            write_manifest(str(path), replace(manifest, cumulative_step=position))
        path.chmod(0o400)
        training.clock += 1
        os.utime(path, (training.clock, training.clock))

    def content(self, rank: int, position: int) -> bytes:
        """Return the bytes of a slice."""
        training = self.training
        source = random.Random(f"{self.number} {position} {min(training.group(rank))}")
        data = record("weight", source.randbytes(64), [16]) + record("adam_m.weight", source.randbytes(64), [16])
        if training.evidence == "nothing":
            return data
        if training.evidence == "global_step" or training.stock:
            data += record("global_step", struct.pack("<i", position), [1], "Int32")
        if training.stock:  # counts from the resume
            return data + record("step_num", struct.pack("<q", position - self.start), [], "Int64")
        data += record("epoch_num", struct.pack("<q", step_epoch(position)), [], "Int64")
        data += record("step_num", struct.pack("<q", position), [], "Int64")
        return data + record("loss_scale", struct.pack("<f", 1.0), [], "Float32")


def step_epoch(position: int) -> int:
    """Return the epoch of a step, from 1."""
    return (position - 1) // EPOCH + 1


def next_prefix(folder: Path, prefix: str) -> str:
    """Return the prefix that MindSpore gives the next run in a directory."""
    number = 0
    for name in os.listdir(folder):
        stem, ending = os.path.splitext(name)
        if ending not in (".ckpt", ".safetensors") or not stem.startswith(prefix) or stem[len(prefix)].isalpha():
            continue
        again, dash, _ = stem[len(prefix) :].partition("-")
        if dash and not again:
            number = max(number, 1)
        elif dash and again[1:].isdigit():
            number = max(number, int(again[1:]) + 1)
    return f"{prefix}_{number}" if number else prefix


def remove(paths: Iterable[Path]) -> None:
    """Remove slices with their manifests."""
    for path in paths:
        path.unlink()
        Path(f"{path}.manifest.json").unlink(missing_ok=True)


def metas(root: Path) -> Sequence[Path]:
    """Return every meta.json."""
    return sorted(root.glob("rank_*/meta.json"))
