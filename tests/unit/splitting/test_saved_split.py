"""What an earlier splitter left: found, repaired, refused, gone on from."""

import logging
from contextlib import closing
from pathlib import Path

import pytest

pytestmark = pytest.mark.mindspore
ms = pytest.importorskip("mindspore")

import numpy as np  # noqa: E402

from ms_recover import api  # noqa: E402
from ms_recover.errors import FormatError, UnrecoverableError, UsageError  # noqa: E402
from ms_recover.splitting.saved_split import find_saved  # noqa: E402
from ms_recover.splitting.slice_directory import newest_saved, slice_name  # noqa: E402
from ms_recover.splitting.slices import SliceStore  # noqa: E402
from ms_recover.splitting.values import SliceFile, write_values  # noqa: E402
from ms_recover.tensors.memory import set_value  # noqa: E402

PARTS = (range(2), range(2, 3))


def values_of(part, step):
    """Return the values of a part: two weights, the mark, and what an optimizer would keep."""
    drawn = np.random.default_rng([part, step])
    held = {f"{part}.{name}": ms.Tensor(drawn.standard_normal((3, 4)), ms.float32) for name in ("weight", "bias")}
    mark = {f"split.part.{part}": ms.Tensor([PARTS[part].start, PARTS[part].stop, 3, 2], ms.int32)}
    return {**held, **mark, f"moments.{part}.weight": ms.Tensor(step, ms.float32)}


def save(store, step, parts=(0, 1)):
    for part in parts:
        values = values_of(part, step)
        store.save(part, lambda path, values=values: write_values(values, path), values, step)


@pytest.fixture
def directory(tmp_path):
    with closing(SliceStore(tmp_path / "slices", 2)) as store:
        save(store, 0)
        for step in (10, 20, 30):
            save(store, step)
            store.settle(step)
    return tmp_path / "slices"


def steps_of(directory):
    return {path.name for path in directory.glob("rank_*/split-*.ckpt")}


def test_the_last_two_steps_stay_with_what_lies_beside_them(directory):
    assert steps_of(directory) == {slice_name(20), slice_name(30)}
    found = find_saved(directory)
    assert (found.step, found.replicas, found.parts, found.total) == (30, 2, PARTS, 3)
    plan = api.plan(api.scan(directory))
    assert (plan.recoverable, plan.actions, plan.world_size, str(plan.step)) == (True, (), 4, "1_30")
    assert newest_saved(directory) == 30


def test_a_store_goes_on_where_the_other_ended(directory):
    found = find_saved(directory)
    with closing(SliceStore(directory, 2, found.replicas, found)) as store:
        assert (store.step, store.run_id) == (30, found.run_id)
        path, words = store.path(1)
        assert words is None
        assert SliceFile(path).weights == ["1.weight", "1.bias"]
        assert np.array_equal(SliceFile(path).read("1.bias").asnumpy(), values_of(1, 30)["1.bias"].asnumpy())
        save(store, 40)
        assert store.step == 30, "the step that counts has all its parts"
        store.settle(40)
    assert steps_of(directory) == {slice_name(30), slice_name(40)}
    assert find_saved(directory).step == 40


def test_weights_are_read_without_the_state_of_the_optimizer(directory):
    found = find_saved(directory)
    with closing(SliceStore(directory, 2, found.replicas, found)) as store:
        weights = store.weights()
    assert list(weights) == ["0.weight", "0.bias", "1.weight", "1.bias"]
    assert all(isinstance(weight, ms.Parameter) and weight.name == name for name, weight in weights.items())
    assert np.array_equal(weights["0.bias"].asnumpy(), values_of(0, 30)["0.bias"].asnumpy())


def test_lost_and_damaged_slices_come_back_first(directory):
    for path in directory.glob("rank_0/split-*"):
        path.unlink()
    damaged = directory / "rank_3" / slice_name(30)
    data = bytearray(damaged.read_bytes())
    data[-2] ^= 1
    damaged.unlink()
    damaged.write_bytes(data)
    assert find_saved(directory).step == 30
    assert api.plan(api.scan(directory)).actions == ()
    assert (directory / "rank_0" / slice_name(30)).read_bytes() == (directory / "rank_1" / slice_name(30)).read_bytes()


def test_the_layouts_say_who_holds_the_same(directory):
    """Without rank lists a lost rank is rebuilt from the strategy file of its stage, bit for bit."""
    want = (directory / "rank_1" / slice_name(30)).read_bytes()
    for path in [*directory.glob("rank_*/group_info.pb"), *directory.glob("rank_*/*.manifest.json")]:
        path.unlink()
    for path in directory.glob("rank_1/split-*"):
        path.unlink()
    plan = api.plan(api.scan(directory))
    assert [(action.rank, action.evidence) for action in plan.actions] == [(1, "layout")]
    assert api.apply(plan).errors == ()
    assert (directory / "rank_1" / slice_name(30)).read_bytes() == want


def test_a_save_that_was_cut_short_is_set_aside(directory, caplog):
    found = find_saved(directory)
    with closing(SliceStore(directory, 2, found.replicas, found)) as store:
        save(store, 40, parts=(1,))
    found = find_saved(directory)
    assert found.step == 30
    with caplog.at_level(logging.WARNING), closing(SliceStore(directory, 2, found.replicas, found)) as store:
        assert "newer than step 30" in caplog.text
        aside = sorted(path.parent.name for path in directory.glob("rank_*/*.superseded"))
        assert aside == ["rank_2", "rank_3"]
        save(store, 40)
        store.settle(40)
    assert find_saved(directory).step == 40


def test_what_was_set_aside_stays_when_another_save_of_the_step_is(directory):
    kept = set()
    for rank in (2, 3):
        for number in (1, 2):
            found = find_saved(directory)
            with closing(SliceStore(directory, 2, found.replicas, found)):
                path = directory / f"rank_{rank}" / slice_name(40)
                path.write_bytes(data := f"attempt {number} of rank {rank}".encode())
                kept.add(data)
    found = find_saved(directory)
    with closing(SliceStore(directory, 2, found.replicas, found)):
        assert {path.read_bytes() for path in directory.glob("rank_*/*.superseded")} == kept
    with closing(SliceStore(directory, 2)) as store:
        save(store, 0)
    assert {path.name for path in directory.glob("rank_*/split-*.ckpt*") if not path.name.endswith(".json")} == {
        slice_name(0)
    }, "a splitter that begins anew removes them with all others"


def test_a_part_without_a_slice_at_any_step_is_an_error(directory):
    for path in directory.glob("rank_[23]/split-*"):
        path.unlink()
    with pytest.raises(UnrecoverableError, match=r"has no step of which every part is whole .*recover-ckpt plan"):
        find_saved(directory)


def test_nothing_is_there(tmp_path):
    assert find_saved(tmp_path) is None
    assert find_saved(tmp_path / "missing") is None


def test_a_step_counts_when_all_parts_are_saved(directory):
    found = find_saved(directory)
    with closing(SliceStore(directory, 2, found.replicas, found)) as store:
        save(store, 40, parts=(0,))
        with pytest.raises(UsageError, match="step 40 has no slices of part 1"):
            store.settle(40)
        assert store.step == 30


def test_values_keep_their_bits_and_their_memory(tmp_path):
    drawn = np.random.default_rng(1)
    values = {
        "float": ms.Tensor(drawn.standard_normal((5, 7)), ms.float32),
        "bool": ms.Tensor(drawn.integers(0, 2, 9).astype(bool)),
        "scalar": ms.Tensor(3, ms.int32),
        "half": ms.Tensor(drawn.standard_normal(4), ms.float16),
        "wide": ms.Tensor(drawn.standard_normal(6), ms.float32).astype(ms.bfloat16),
    }
    path, other = str(tmp_path / "a.ckpt"), str(tmp_path / "b.ckpt")
    write_values(values, path)
    ms.save_checkpoint([{"name": name, "data": value} for name, value in values.items()], other)
    assert Path(path).read_bytes() == Path(other).read_bytes(), "not as MindSpore writes it"
    file = SliceFile(path)
    for name, value in values.items():
        read = file.read(name)
        assert (read.dtype, read.shape) == (value.dtype, value.shape)
        assert read.get_bytes() == value.get_bytes()
    target = ms.Parameter(ms.Tensor(np.zeros((5, 7), np.float32)), name="float")
    memory = target.asnumpy()
    file.fill("float", target)
    assert np.array_equal(memory, values["float"].asnumpy()), "other memory, which compiled code does not know"
    set_value(target, ms.Tensor(np.ones((5, 7), np.float32)))
    assert (memory == 1).all()
    with pytest.raises(FormatError, match=r"has half as Float16 \[4\], expected Float32 \[4\]"):
        file.fill("half", ms.Tensor(np.zeros(4, np.float32)))
    with pytest.raises(FormatError, match=r"no value split\.part\.N"):
        file.weights  # noqa: B018
    with pytest.raises(UsageError, match="has no value 'other'"):
        file.read("other")
