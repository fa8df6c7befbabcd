import os

import pytest

from ms_recover.errors import StorageError, UsageError
from ms_recover.execution.rank_lists import write_group_info
from ms_recover.formats.group_info import read_group_info

pytestmark = pytest.mark.mindspore
ms = pytest.importorskip("mindspore")

from mindspore import nn  # noqa: E402

from ms_recover.training import SliceCheckpoint, SliceSaver, cut, rank_files  # noqa: E402


@pytest.fixture(autouse=True)
def one_of_four(monkeypatch, tmp_path):
    """This process is rank 1 of 4, by what a launcher exports."""
    monkeypatch.setenv("RANK_ID", "1")
    monkeypatch.setenv("RANK_SIZE", "4")
    monkeypatch.delenv("GROUP_INFO_FILE", raising=False)
    monkeypatch.chdir(tmp_path)


def begun(**arguments):
    """Begin a run; nothing is there before."""
    callback = SliceCheckpoint(**arguments)
    assert not callback.group_info.exists()
    callback.saver.begin(nn.Dense(3, 2))
    return callback


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"keep": 1}, "keep at least 2"),
        ({"keep": 0}, "keep at least 2"),
        ({"save_steps": 0}, "at least 1"),
        ({"prefix": "a/b"}, "must not be empty or contain '/'"),
        ({"prefix": ""}, "must not be empty"),
        ({"directory": "slices"}, r"ckpt_dir\{rank\}"),
        ({"group": [0, 2]}, "rank 1, which is missing"),
        ({"group": [1, 1]}, "twice"),
        ({"group": [1, 4]}, "0 to 3"),
        ({"group": [-1, 1]}, "0 to 3"),
        ({"group": 1}, "group=1: it must be a list of ranks"),
        ({"group": ["1"]}, "a whole number, and is of type str"),
        ({"keep": "4"}, "keep='4': it must be a whole number"),
        ({"keep": 2.0}, "a whole number"),
        ({"save_steps": "2"}, "save_steps='2': it must be a whole number"),
        ({"save_steps": True}, "a whole number"),
        ({"directory": 3}, "directory=3: it must be a path"),
        ({"directory": b"ckpt_dir{rank}"}, "a path"),
        ({"prefix": None}, "prefix=None: it must be a text"),
        ({"async_save": "no"}, "async_save='no': it must be True or False"),
        ({"layouts": 7}, "layouts=7: it must be a list of layouts"),
        ({"layouts": ["w"]}, "a layout, as ms_recover.training.cut returns it"),
        ({"format": None}, "must be one of ckpt, safetensors"),
    ],
)
def test_refuses_arguments_that_cannot_be_meant(arguments, said, tmp_path):
    with pytest.raises(UsageError, match=said):
        SliceCheckpoint(**arguments)
    assert list(tmp_path.iterdir()) == []


def test_writes_the_group_it_is_given(tmp_path):
    callback = begun(group=[3, 1])
    assert callback.directory == tmp_path / "ckpt_dir1"
    assert read_group_info(str(tmp_path / "ckpt_dir1" / "group_info.pb")).restore_ranks == (1, 3)
    assert "GROUP_INFO_FILE" not in os.environ


def test_leaves_the_variable_alone_on_cpu(tmp_path, caplog):
    callback = SliceCheckpoint()
    assert "GROUP_INFO_FILE" not in os.environ
    assert not callback.group_info.exists()
    assert "give the group or the layouts" in caplog.text


def test_sets_the_variable_where_the_compiler_writes_the_list(tmp_path, monkeypatch):
    monkeypatch.setenv("GROUP_INFO_FILE", "what the user had")  # so that it is put back
    monkeypatch.setattr(rank_files, "device_target", lambda: "Ascend")
    SliceCheckpoint()
    assert os.environ["GROUP_INFO_FILE"] == str(tmp_path / "ckpt_dir1" / "group_info.pb")
    assert (tmp_path / "ckpt_dir1").is_dir()


@pytest.fixture
def parallel(monkeypatch):
    """Set MindSpore's parallel context for one test."""

    def choose(mode, optimizer=False):
        ms.set_auto_parallel_context(parallel_mode=mode, enable_parallel_optimizer=optimizer)

    yield choose
    ms.reset_auto_parallel_context()


@pytest.mark.parametrize("target", ["CPU", "Ascend"])
def test_data_parallel_ranks_all_hold_the_same(monkeypatch, target, parallel):
    monkeypatch.setattr(rank_files, "device_target", lambda: target)
    parallel("data_parallel")
    callback = begun()
    assert read_group_info(str(callback.group_info)).restore_ranks == (0, 1, 2, 3)
    assert "GROUP_INFO_FILE" not in os.environ


@pytest.mark.parametrize("target", ["CPU", "Ascend"])
def test_data_parallel_ranks_with_a_parallel_optimizer_hold_their_slices_alone(monkeypatch, target, parallel, caplog):
    monkeypatch.setattr(rank_files, "device_target", lambda: target)
    parallel("data_parallel", optimizer=True)
    callback = begun()
    assert read_group_info(str(callback.group_info)).restore_ranks == (1,)
    assert "GROUP_INFO_FILE" not in os.environ
    assert "its own part of the optimizer states" not in caplog.text


@pytest.mark.parametrize(
    "given", [{"group": [0, 1]}, {"layouts": [cut("w", {"dp": 4}, None)]}], ids=["group", "layouts"]
)
def test_a_group_that_a_parallel_optimizer_contradicts_is_warned_of(given, parallel, caplog):
    parallel("data_parallel", optimizer=True)
    SliceCheckpoint(**given)
    assert "rank 1: the group is [0, 1" in caplog.text
    assert "each rank updates only its own part of the optimizer states" in caplog.text


def test_a_parallel_optimizer_leaves_the_groups_of_semi_auto_parallel_to_the_compiler(monkeypatch, parallel):
    monkeypatch.setenv("GROUP_INFO_FILE", "what the user had")  # so that it is put back
    monkeypatch.setattr(rank_files, "device_target", lambda: "Ascend")
    parallel("semi_auto_parallel", optimizer=True)
    callback = SliceCheckpoint()
    assert not callback.group_info.exists()
    assert os.environ["GROUP_INFO_FILE"] == str(callback.group_info)


def test_the_only_rank_holds_its_slice_alone(tmp_path, monkeypatch):
    monkeypatch.delenv("RANK_ID")
    monkeypatch.delenv("RANK_SIZE")
    callback = begun(directory="slices")
    assert read_group_info(str(callback.group_info)).restore_ranks == (0,)


def test_a_directory_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "ckpt_dir1").write_text("in the way")
    with pytest.raises(StorageError, match=r"rank 1 .*ckpt_dir1.*choose another directory"):
        SliceCheckpoint(group=[1])


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_that_may_not_be_written_is_named(tmp_path):
    (tmp_path / "ckpt_dir1").mkdir(mode=0o500)
    with pytest.raises(StorageError, match=r"rank 1 .*ckpt_dir1.*Permission denied.*choose another directory"):
        SliceCheckpoint(group=[1])


def test_the_constructor_leaves_what_lies_there(tmp_path):
    """A start with the wrong number of ranks ends before the training begins."""
    begun(group=[1])
    write_group_info(tmp_path / "ckpt_dir1" / "group_info.pb", [1, 2])
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.*")}
    SliceCheckpoint(group=[0, 1, 3])
    SliceSaver(nn.Dense(3, 2), group=[0, 1, 3])
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.*")} == before


@pytest.mark.parametrize("directory", ["slices{rank}", "out/{rank}", "of {rank} ranks"])
def test_a_directory_that_a_recovery_does_not_find_is_named(directory, caplog):
    SliceCheckpoint("out/rank_{rank}", group=[1])
    SliceCheckpoint("ckpt_of_rank/{rank}", group=[1])
    assert caplog.text == ""
    SliceCheckpoint(directory, group=[1])
    assert f"rank 1: directory={directory!r} does not end in a name such as" in caplog.text


def test_the_home_directory(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert SliceCheckpoint("~/ckpt_dir{rank}", group=[1]).directory == tmp_path / "home" / "ckpt_dir1"


@pytest.mark.parametrize(("rank", "size"), [("4", "4"), ("-1", "4"), ("one", "4"), ("0", "many")])
def test_a_rank_that_cannot_be_is_refused(monkeypatch, rank, size):
    monkeypatch.setenv("RANK_ID", rank)
    monkeypatch.setenv("RANK_SIZE", size)
    with pytest.raises(UsageError, match="RANK_ID"):
        SliceCheckpoint(group=[0])
