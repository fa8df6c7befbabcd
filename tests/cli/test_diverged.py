"""A training has diverged, and every value is NaN: all ranks hold the same bytes, and none is called misplaced."""

import shutil
import struct

import pytest

from ms_recover.model.steps import Step
from ms_recover.testing.trees import make_tree, record

OLDER, NEWEST = Step(1, 100), Step(1, 200)
SHAPES = {"embedding": 48, "dense.weight": 96, "moment1.dense.weight": 96}
NAN = {
    "Float32": (struct.pack("<I", 0x7FC00000), struct.pack("<I", 0xFFC00000), struct.pack("<I", 0x7FFFFFFF)),
    "Float16": (struct.pack("<H", 0x7E00), struct.pack("<H", 0xFE00)),
    "BFloat16": (struct.pack("<H", 0x7FC0), struct.pack("<H", 0xFFC0)),
}


def diverged(root, dtype="Float32", element=NAN["Float32"][0], *, finite=()):
    """Two ranks a group, two groups; in the newest step everything but `finite` and the counter is NaN."""
    make_tree(root, data_parallel=2, model_parallel=2, steps=(OLDER, NEWEST))
    for path in root.glob(f"*/*-{NEWEST}.ckpt"):
        path.chmod(0o600)
        rank = int(path.parent.name.removeprefix("ckpt_dir"))
        data = record("global_step", struct.pack("<i", 200), [1], "Int32")
        for name, count in SHAPES.items():
            value = bytes([rank % 2]) * len(element) if name in finite else element
            data += record(name, value * count, [count], dtype)
        path.write_bytes(data)
    return root


@pytest.mark.parametrize(("dtype", "element"), [(dtype, one) for dtype, patterns in NAN.items() for one in patterns])
def test_nan_everywhere_is_named_as_such(tmp_path, recover_ckpt, dtype, element):
    root = diverged(tmp_path / "tree", dtype, element)
    shutil.rmtree(root / "ckpt_dir2")  # nobody confirms rank 0
    done = recover_ckpt("plan", root)
    assert f"at step {NEWEST}" in done.out.splitlines()[1]
    assert "misplaced" not in done.out
    assert "wrong place" not in done.out
    assert f"WARNING: step {NEWEST}: every floating-point value is NaN in the slices of ranks 0-1, 3: " in done.out
    assert "--step takes an older step" in done.out
    assert "every floating-point value is NaN; sound in structure" in done.out


def test_a_slice_with_some_finite_values_is_judged_as_any_other(tmp_path, recover_ckpt):
    root = diverged(tmp_path / "tree", finite=("embedding",))
    assert "floating-point" not in recover_ckpt("plan", root).out


def test_a_renamed_slice_of_finite_values_is_still_found(tmp_path, recover_ckpt):
    root = make_tree(tmp_path / "tree", steps=(OLDER, NEWEST))
    shutil.rmtree(root / "ckpt_dir2")
    target = root / "ckpt_dir0" / f"test-{NEWEST}.ckpt"
    target.unlink()
    shutil.copyfile(root / "ckpt_dir1" / f"test-{NEWEST}.ckpt", target)
    assert "renamed or put in the wrong place" in recover_ckpt("plan", root, "--json").out
