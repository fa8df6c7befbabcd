"""Two ranks prove their samples together: where one has others, both end with the reason, and nothing is changed."""

import json

import pytest

from tests.support.msrun import run_ranks

pytestmark = pytest.mark.mindspore
pytest.importorskip("mindspore")


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    folder = tmp_path_factory.mktemp("proving")
    code, text = run_ranks("proving_ranks.py", 2, folder, folder, GLOG_v="3")
    written = [folder / f"seen{rank}.json" for rank in range(2)]
    assert all(one.exists() for one in written), (code, text)
    lines = "".join(one.read_text() for one in folder.rglob("worker_*.log")).splitlines()
    return [json.loads(one.read_text()) | {"lines": lines} for one in written]


def test_one_rank_with_other_samples_ends_both_with_the_reason_and_in_time(seen):
    for rank in range(2):
        found = seen[rank]["other"]
        assert found["losses"] == {}
        assert found["same"]
        assert found["seconds"] < 30
        said = f"InputError: rank {rank}, step 2_4, "
        assert found["failure"].startswith(said)
        for text in (
            "on rank(s) 1 the batch of step 2_4, drawn once more, is not the one that was trained",
            "column 'x' has other values; column 'y' has other values",
            "set_fast_recovery(False)",
            "allow_dataset_change=True",
        ):
            assert text in found["failure"], text


def test_ranks_whose_samples_are_the_same_go_on_to_the_last_bit(seen):
    for rank in range(2):
        whole, same = seen[rank]["whole"]["losses"], seen[rank]["same"]
        assert same["failure"] == ""
        assert same["losses"] == {step: loss for step, loss in whole.items() if int(step) > 12}
        assert any(text.endswith("samples proven") for text in same["said"])


def test_rank_0_alone_prints_the_line_of_both(seen):
    (line,) = [line for line in seen[0]["lines"] if line.startswith("ms_recover: resumed from step 2_4")]
    assert ", 2 of 2 ranks, saved " in line
    assert "samples proven" in line
