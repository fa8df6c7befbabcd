import pytest

from ms_recover.file_names import MANIFEST_SUFFIX, STATE_SUFFIX
from ms_recover.model.steps import Step

pytestmark = pytest.mark.mindspore
pytest.importorskip("mindspore")

from ms_recover.training.rotation import rotate  # noqa: E402


def save(folder, *names, committed=True):
    for name in names:
        (folder / f"{name}.ckpt").write_bytes(name.encode())
        if committed:
            (folder / f"{name}.ckpt{MANIFEST_SUFFIX}").write_text("{}")


def left(folder):
    slices = {path.name.removesuffix(".ckpt") for path in folder.glob("*.ckpt")}
    manifests = {path.name.removesuffix(f".ckpt{MANIFEST_SUFFIX}") for path in folder.glob(f"*{MANIFEST_SUFFIX}")}
    assert manifests <= slices
    return sorted(slices)


@pytest.mark.parametrize(
    ("keep", "floor", "stay"),
    [
        (2, "3_4", ["test-2_10", "test-3_4"]),
        (1, "3_4", ["test-3_4"]),
        (1, "2_10", ["test-2_10", "test-3_4"]),
        (2, "2_4", ["test-2_10", "test-2_4", "test-3_4"]),
        (1, "0_0", ["test-1_4", "test-2_10", "test-2_4", "test-3_4"]),
        (9, "3_4", ["test-1_4", "test-2_10", "test-2_4", "test-3_4"]),
    ],
)
def test_the_newest_stay_and_what_some_rank_may_need(tmp_path, keep, floor, stay):
    save(tmp_path, "test-1_4", "test-2_4", "test-2_10", "test-3_4")
    gone = rotate(str(tmp_path), "test", keep, Step.parse(floor))
    assert left(tmp_path) == stay
    assert gone == sorted(gone, reverse=True)
    assert len(gone) + len(stay) == 4


def test_slices_of_other_runs_are_let_alone(tmp_path):
    others = ["test_1-1_4", "test_1-2_4", "atest-1_4", "test-x-1_4", "te.t-1_4", "test-1_4_breakpoint"]
    save(tmp_path, *others, "test-1_4", "test-1_8")
    save(tmp_path, "tXst-1_4")
    assert rotate(str(tmp_path), "test", 1, Step(1, 8)) == [Step(1, 4)]
    assert left(tmp_path) == sorted([*others, "test-1_8", "tXst-1_4"])
    assert rotate(str(tmp_path), "te.t", 1, Step(9, 9)) == []


def test_slices_that_do_not_count_take_no_place(tmp_path):
    save(tmp_path, "test-1_4", "test-1_8")
    save(tmp_path, "test-1_2", "test-2_4", committed=False)
    assert rotate(str(tmp_path), "test", 1, Step(1, 8)) == [Step(1, 4), Step(1, 2)]
    assert left(tmp_path) == ["test-1_8", "test-2_4"]


def test_states_go_with_their_slices(tmp_path):
    save(tmp_path, "test-1_4", "test-1_8")
    for name in ("test-1_4", "test-1_8"):
        (tmp_path / f"{name}.ckpt{STATE_SUFFIX}").write_bytes(b"state")
    rotate(str(tmp_path), "test", 1, Step(1, 8))
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        f"test-1_8.ckpt{end}" for end in ("", MANIFEST_SUFFIX, STATE_SUFFIX)
    ]
