import stat
from types import SimpleNamespace

import pytest

from ms_recover.errors import StorageError, UsageError
from ms_recover.file_names import MANIFEST_SUFFIX
from ms_recover.formats.group_info import read_group_info
from ms_recover.formats.manifest import read_manifest
from ms_recover.formats.strategy import read_strategy
from ms_recover.model.strategy import Layout
from ms_recover.stores.digest import digest_file
from ms_recover.training.layouts import cut, same_slice, write_strategy
from tests.support.faults import Faults

DEVICES = {"dp": 4, "mp": 2}


def of_fixture(fixtures, name):
    layouts = read_strategy(fixtures / name / "ckpt_dir0" / "strategy.ckpt").layouts
    return {layout.parameter: layout for layout in layouts}


@pytest.mark.parametrize(("name", "sharded"), [("dp4_mp2_optfull", True), ("dp2_mp4", False)])
def test_cuts_are_told_as_the_compiler_tells_them(fixtures, name, sharded):
    devices = DEVICES if sharded else {"dp": 2, "mp": 4}
    expected = of_fixture(fixtures, name)
    for parameter, dimensions in {
        "blocks.0.gamma": [None],
        "blocks.0.proj": ["mp", None],
        "moment1.blocks.0.qkv": [None, "mp"],
        "head.weight": [None, "mp"],
    }.items():
        assert cut(parameter, devices, *dimensions, optimizer_sharded=sharded) == expected[parameter]


SHARDS = {"dp4_mp2_optfull": -1, "dp4_mp2_opt2": 2, "dp2_mp4": 0, "dp2_mp2_pp2": 0}


@pytest.mark.parametrize(("name", "shards"), SHARDS.items())
def test_optimizer_shards_are_told_as_the_compiler_tells_them(fixtures, name, shards):
    """Every layout that the compiler wrote, from what it is: the three cases of docs/formats.md."""
    for parameter, layout in of_fixture(fixtures, name).items():
        devices = dict(zip(("dp", "mp"), layout.device_matrix, strict=True))
        dimensions = [("mp", "dp")[axes[0]] if axes else None for axes in layout.tensor_map]
        assert cut(parameter, devices, *dimensions, optimizer_shards=shards) == layout


@pytest.mark.parametrize("name", [name for name in SHARDS if name != "dp2_mp2_pp2"])
def test_the_ranks_with_the_same_slice_are_those_that_the_compiler_lists(fixtures, name):
    layouts = of_fixture(fixtures, name).values()
    for rank in range(8):
        listed = read_group_info(fixtures / name / f"ckpt_dir{rank}" / "group_info.pb").sorted_ranks
        assert same_slice(layouts, rank, 8) == list(listed)


@pytest.mark.parametrize("shards", [3, 8, -2])
def test_shards_that_do_not_divide_the_replicas_are_refused(shards):
    with pytest.raises(UsageError, match=f"w: optimizer_shards={shards} does not divide the 4 ranks"):
        cut("w", DEVICES, "mp", optimizer_shards=shards)


def test_one_shard_is_none():
    assert cut("w", DEVICES, "mp", optimizer_shards=1) == cut("w", DEVICES, "mp")


@pytest.mark.parametrize(
    ("dimensions", "sharded", "expected"),
    [
        ([], False, Layout("w", (2, 3, 5), ())),
        ([None], True, Layout("w", (2, 3, 5), ((),), 1, -1)),
        (["c"], True, Layout("w", (2, 3, 5), ((0,),), 5, -1)),
        ([None, "b"], True, Layout("w", (2, 3, 5), ((), (1,)), 1, -1)),
        ([("a", "c"), "b"], True, Layout("w", (2, 3, 5), ((2, 0), (1,)))),
        ([["b", "c"], None], True, Layout("w", (2, 3, 5), ((1, 0), ()), 15, -1)),
    ],
)
def test_axes_are_counted_from_the_right(dimensions, sharded, expected):
    assert cut("w", {"a": 2, "b": 3, "c": 5}, *dimensions, optimizer_sharded=sharded) == expected


@pytest.mark.parametrize(
    ("devices", "dimensions", "said"),
    [
        ({}, ["mp"], "at least one rank"),
        ({"mp": 0}, ["mp"], "at least one rank"),
        (DEVICES, ["tp"], "w: axis 'tp' is none of dp, mp"),
        (DEVICES, ["mp", "mp"], "more than once"),
        (DEVICES, [("mp", "mp")], "more than once"),
        (DEVICES, [], "scalar"),
    ],
)
def test_cuts_that_cannot_be_meant(devices, dimensions, said):
    with pytest.raises(UsageError, match=said):
        cut("w", devices, *dimensions, optimizer_sharded=True)


def test_what_is_written_is_what_is_read(tmp_path):
    layouts = [
        cut("w", DEVICES, ("mp", "dp"), None),
        cut("v", DEVICES, "mp", None, optimizer_sharded=True),
        cut("b", DEVICES, None),
    ]
    path = tmp_path / "strategy.ckpt"
    path.write_text("of an earlier training")
    write_strategy(path, layouts)
    found = read_strategy(path)
    assert found.layouts == tuple(sorted(layouts, key=lambda layout: layout.parameter))
    assert found.devices_per_stage == 8
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [entry.name for entry in tmp_path.iterdir()] == ["strategy.ckpt"]


def test_a_strategy_file_is_whole_or_as_before_whatever_happens(tmp_path):
    path = tmp_path / "strategy.ckpt"
    write_strategy(path, [cut("w", DEVICES, None)])
    before = path.read_bytes()
    counted = Faults(str(tmp_path.parent), 0, "none")  # of the parent, so that the directory itself is watched
    with counted.installed():
        write_strategy(path, [cut("w", DEVICES, "mp")])
    after = path.read_bytes()
    assert [call.split()[0] for call in counted.trace if call.startswith(("fsync", "rename"))] == [
        "fsync",
        "rename",
        "fsync",
    ]
    for place in range(1, len(counted.trace) + 1):
        path.write_bytes(before)
        faults = Faults(str(tmp_path.parent), place, "ENOSPC")
        with faults.installed(), pytest.raises(StorageError, match="free some space"):
            write_strategy(path, [cut("w", DEVICES, "mp")])
        assert path.read_bytes() in (before, after)
        write_strategy(path, [cut("w", DEVICES, "mp")])
        assert path.read_bytes() == after
        assert [entry.name for entry in tmp_path.iterdir()] == ["strategy.ckpt"]


@pytest.mark.parametrize(
    ("layouts", "said"),
    [
        ([], "names no parameter"),
        ([cut("w", DEVICES, None), cut("w", DEVICES, "mp")], "parameter w has two"),
        ([cut("w", DEVICES, None), cut("v", {"dp": 4, "mp": 4}, None)], "different numbers of ranks"),
    ],
)
def test_layouts_that_contradict_each_other(tmp_path, layouts, said):
    with pytest.raises(UsageError, match=said):
        write_strategy(tmp_path / "strategy.ckpt", layouts)
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def network():
    """Two weights with their optimizer; the second is called as a state of the first would be."""
    pytest.importorskip("mindspore")
    from mindspore import nn

    class Two(nn.Cell):
        def __init__(self):
            super().__init__()
            self.weight, self.fc = nn.Dense(4, 8).weight, nn.Dense(4, 8, has_bias=False)
            self.weight.name = "weight"

    two = Two()
    return nn.TrainOneStepCell(two, nn.Adam(two.trainable_params(), 0.1))


@pytest.mark.mindspore
def test_optimizer_states_are_cut_like_their_weights(tmp_path, network):
    path = tmp_path / "strategy.ckpt"
    given = [
        cut("weight", DEVICES, "mp", None),
        cut("fc.weight", DEVICES, None, "mp"),
        cut("moment1.fc.weight", DEVICES, "dp", None),
    ]
    write_strategy(path, given, network)
    assert {layout.parameter: layout.tensor_map for layout in read_strategy(path).layouts} == {
        "weight": ((0,), ()),
        "moment1.weight": ((0,), ()),
        "moment2.weight": ((0,), ()),
        "fc.weight": ((), (0,)),
        "moment1.fc.weight": ((1,), ()),
        "moment2.fc.weight": ((), (0,)),
    }


@pytest.mark.mindspore
def test_layouts_that_do_not_fit_the_network(tmp_path, network):
    whole = [cut(name, DEVICES, None, None) for name in ("weight", "fc.weight")]
    for layouts, said in [
        ([*whole, cut("weights", DEVICES, "mp", None)], "the network has no parameter weights"),
        ([whole[1], cut("weight", DEVICES, "mp")], r"weight has the shape \[8, 4\], its layout is for 1 dimension"),
        (whole[:1], "none for fc.weight; where all ranks hold it whole, give it None for each dimension"),
    ]:
        with pytest.raises(UsageError, match=said):
            write_strategy(tmp_path / "strategy.ckpt", layouts, network)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.mindspore
def test_states_of_another_shape_have_to_be_told(tmp_path, network):
    ms = pytest.importorskip("mindspore")
    network.insert_param_to_cell("rows", ms.Parameter(ms.Tensor([1.0] * 8), name="rows.weight"))
    network.insert_param_to_cell("steps", ms.Parameter(ms.Tensor(1.0), name="steps.weight"))
    other = cut("fc.weight", DEVICES, None, None)
    for cut_weight in (cut("weight", DEVICES, "mp", None), cut("weight", DEVICES, None, None, optimizer_sharded=True)):
        with pytest.raises(UsageError, match=r"none for rows\.weight, whose shape differs from that of weight"):
            write_strategy(tmp_path / "strategy.ckpt", [cut_weight, other], network)
        write_strategy(tmp_path / "strategy.ckpt", [cut_weight, other, cut("rows.weight", DEVICES, "mp")], network)
    write_strategy(tmp_path / "strategy.ckpt", [cut("weight", DEVICES, None, None), other], network)


@pytest.mark.parametrize(
    ("layouts", "expected"),
    [
        ([cut("w", DEVICES, "mp", None)], [1, 3, 5, 7]),
        ([cut("w", DEVICES, None, None)], list(range(8))),
        ([cut("w", DEVICES, "mp", None), cut("v", DEVICES, "dp", None)], [3]),
        ([cut("w", DEVICES, "mp", None, optimizer_sharded=True)], [3]),
        ([cut("w", {"pp": 2, "dp": 2, "mp": 2}, "mp", ("dp",))], [3, 7]),
        ([cut("w", {"dp": 2, "mp": 2}, "mp", None)], [1, 3]),
    ],
)
def test_who_holds_the_same_slice(layouts, expected):
    assert same_slice(layouts, 3, 8) == expected


@pytest.mark.mindspore
def test_mindspore_reads_what_is_written(tmp_path):
    ms = pytest.importorskip("mindspore")
    path = tmp_path / "strategy.ckpt"
    write_strategy(path, [cut("w", DEVICES, "mp", None, optimizer_sharded=True), cut("b", DEVICES, "dp")])
    found = ms.build_searched_strategy(str(path))
    assert found.keys() == {"w", "b"}
    assert list(found["w"].dev_matrix[0].dim) == [4, 2]
    assert list(found["w"].tensor_map[0].dim) == [0, -1]
    assert (found["w"].opt_weight_shard_step, found["w"].opt_weight_shard_size) == (2, -1)
    assert list(found["b"].tensor_map[0].dim) == [1]


@pytest.mark.mindspore
def test_the_callback_writes_it_before_the_first_slice(tmp_path, monkeypatch, network):
    pytest.importorskip("mindspore")
    from ms_recover.training import SliceCheckpoint, slice_saver
    from ms_recover.training.deciding.job import TrainingJob

    monkeypatch.setattr(slice_saver, "current_job", lambda: TrainingJob(3, 8))
    arguments = (f"{tmp_path}/ckpt_dir{{rank}}", "test", 1)
    folder, layouts = tmp_path / "ckpt_dir3", [cut(name, DEVICES, "mp", None) for name in ("weight", "fc.weight")]
    for options, said in [
        ({"layouts": [cut("weight", {"dp": 3}, None, None)]}, "a device matrix of 3 ranks does not fit into 8"),
        ({"layouts": layouts, "group": [2, 3]}, "by the layouts rank 2 has other parts than rank 3"),
    ]:
        with pytest.raises(UsageError, match=said):
            SliceCheckpoint(*arguments, **options)
    callback = SliceCheckpoint(*arguments, layouts=iter(layouts))
    assert not folder.exists()
    params = SimpleNamespace(batch_num=4, cur_step_num=0, cur_epoch_num=1, train_network=network)
    context = SimpleNamespace(original_args=lambda: params)
    callback.on_train_begin(context)
    assert sorted(path.name for path in folder.iterdir()) == ["group_info.pb", "strategy.ckpt"]
    assert read_group_info(str(callback.group_info)).restore_ranks == (1, 3, 5, 7)
    assert read_strategy(folder / "strategy.ckpt").stages == (0,)
    params.cur_step_num = 1
    callback.on_train_step_end(context)
    manifest = read_manifest(folder / f"test-1_1.ckpt{MANIFEST_SUFFIX}")
    assert manifest.group == (1, 3, 5, 7)
    assert manifest.strategy_digest == digest_file(folder / "strategy.ckpt").file
