"""A folder into which jobs of different numbers of ranks have saved."""

import shutil
from dataclasses import replace
from pathlib import Path

from ms_recover.execution.manifests import write_manifest
from ms_recover.file_names import MANIFEST_SUFFIX
from ms_recover.formats.manifest import read_manifest
from ms_recover.model.manifest import TrainingRecord
from ms_recover.model.steps import Step
from ms_recover.testing.trees import make_tree, save_manifests


def add(root, run, started, number, ranks, *steps):
    """Write the slices and the rank lists of a run over some ranks."""
    made, prefix = root / "made", f"test_{number}" if number else "test"
    make_tree(made, steps=tuple(map(Step.parse, steps)), data_parallel=ranks, model_parallel=1)
    save_manifests(made, run)
    for path in sorted(made.rglob("*.ckpt")):
        target = root / path.parent.name / path.name.replace("test-", f"{prefix}-")
        target.parent.mkdir(exist_ok=True)
        manifest = read_manifest(f"{path}{MANIFEST_SUFFIX}")
        training = TrainingRecord(started, None, epoch_steps=8, base_prefix="test", start_number=number)
        path.rename(target)
        write_manifest(str(target), replace(manifest, file=target.name, training=training))
    for path in made.rglob("group_info.pb"):
        path.replace(root / path.parent.name / path.name)
    shutil.rmtree(made)


def two_then_one(root, *, aside):
    """Two ranks saved the run A, and a start with one rank in their folder the run B, which may set A's aside there."""
    add(root, "A", 1000, 0, 2, "1_2", "1_4")
    if aside:
        for path in list((root / "ckpt_dir0").glob("*.ckpt")):
            path.rename(f"{path}.superseded")
            Path(f"{path}{MANIFEST_SUFFIX}").rename(f"{path}.superseded{MANIFEST_SUFFIX}")
    add(root, "B", 2000, 1, 1, "1_2", "1_3")
