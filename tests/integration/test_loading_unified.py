"""load_full opens what MindSpore's own unified_safetensors merges, and gives the values of the slices."""

import shutil

import numpy as np
import pytest

pytestmark = pytest.mark.mindspore
ms = pytest.importorskip("mindspore")

from ms_recover import load_full  # noqa: E402
from ms_recover.file_names import MERGED_INDEX, MERGED_REST  # noqa: E402

STEP = "1_77"


@pytest.mark.parametrize("name", ["dp2_mp4", "dp2_mp2_pp2"])
def test_merged_parameters_are_those_of_the_slices(name, fixtures, tmp_path):
    source = fixtures / name
    (tmp_path / "strategy").mkdir()
    for rank in range(8):
        slices = ms.load_checkpoint(str(source / f"ckpt_dir{rank}" / f"test-{STEP}.ckpt"))
        target = tmp_path / "slices" / f"rank_{rank}"
        target.mkdir(parents=True)
        listed = [{"name": key, "data": value} for key, value in slices.items()]
        ms.save_checkpoint(listed, str(target / f"net_rank_{rank}-{STEP}.safetensors"), format="safetensors")
        shutil.copy(source / f"ckpt_dir{rank}" / "strategy.ckpt", tmp_path / "strategy" / f"strategy_rank_{rank}.ckpt")
    ms.merge_pipeline_strategys(str(tmp_path / "strategy"), str(tmp_path / "merged.ckpt"))
    merged = tmp_path / "unified"
    ms.unified_safetensors(str(tmp_path / "slices"), str(tmp_path / "merged.ckpt"), str(merged), max_process_num=1)
    assert {MERGED_INDEX, "part0.safetensors"} <= {path.name for path in merged.iterdir()}
    assert (merged / MERGED_REST).exists()

    whole = load_full(source, step=STEP)
    with load_full(merged, verify=True) as found:
        assert set(found) == {one for one in whole if not one.startswith("accu_grads.")}
        for one in found:
            assert np.array_equal(found[one], whole[one]), one
