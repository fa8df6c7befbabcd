"""Whose compile may write the rank list and the strategy file; test_ascend_compiler has MindSpore's own compiles."""

import os

import pytest

from ms_recover.execution.rank_lists import write_group_info
from ms_recover.formats.group_info import encode_group_info
from ms_recover.model.groups import GroupInfo, RankGroup

pytestmark = pytest.mark.mindspore
ms = pytest.importorskip("mindspore")

import numpy as np  # noqa: E402
from mindspore import nn  # noqa: E402
from mindspore.parallel._auto_parallel_context import auto_parallel_context  # noqa: E402

from ms_recover.training import compiled_files  # noqa: E402
from ms_recover.training.compiled_files import CompiledFiles  # noqa: E402


@pytest.fixture(autouse=True)
def as_before(monkeypatch):
    monkeypatch.setenv("GROUP_INFO_FILE", "what the user had")
    monkeypatch.setattr(compiled_files._Present, "files", None)
    yield
    auto_parallel_context().set_strategy_ckpt_save_file("")


def trained():
    network = nn.Dense(2, 2)
    return nn.TrainOneStepCell(network, nn.Momentum(network.trainable_params(), 0.1, 0.9))


@pytest.fixture
def files(tmp_path):
    auto_parallel_context().set_strategy_ckpt_save_file(str(tmp_path / "strategy.ckpt"))
    return CompiledFiles(tmp_path / "group_info.pb")


def asked(files, cell):
    """Return what a compile is asked to write, and put what it may write there."""
    seen = []

    def compile_it():
        seen.append((os.environ.get("GROUP_INFO_FILE"), auto_parallel_context().get_strategy_ckpt_save_file()))
        return "phase", True

    assert files.compile(cell, compile_it) == ("phase", True)
    return seen[0]


def test_the_first_training_writes_its_files_and_nothing_else_does(files, tmp_path):
    both = str(tmp_path / "group_info.pb"), str(tmp_path / "strategy.ckpt")
    first, other = trained(), trained()
    assert asked(files, nn.Dense(2, 2)) == (None, "")
    assert asked(files, first) == both
    assert asked(files, first.network) == (None, "")
    assert asked(files, other) == (None, "")
    assert asked(files, nn.SequentialCell(first)) == both  # the same training, wrapped for sink mode
    write_group_info(both[0], [0])
    assert asked(files, nn.SequentialCell(first)) == (None, "")
    assert os.environ["GROUP_INFO_FILE"] == both[0]
    assert auto_parallel_context().get_strategy_ckpt_save_file() == both[1]


def test_the_training_that_begins_is_the_one(files, tmp_path):
    first, other = trained(), trained()
    asked(files, first)
    files.belong_to(first)
    assert asked(files, other) == (None, "")
    files.belong_to(other)
    assert asked(files, other)[0] == str(tmp_path / "group_info.pb")
    assert asked(files, first) == (None, "")


def test_a_training_that_is_gone_makes_room(files, tmp_path):
    first = trained()
    asked(files, first)
    del first
    assert asked(files, trained())[0] == str(tmp_path / "group_info.pb")


def test_another_variable_is_left_to_the_user(files, monkeypatch, tmp_path):
    monkeypatch.setenv("GROUP_INFO_FILE", "elsewhere")
    assert asked(files, nn.Dense(2, 2)) == ("elsewhere", str(tmp_path / "strategy.ckpt"))


def test_an_error_of_the_compiler_passes_and_leaves_everything_as_it_was(files, tmp_path):
    def fail():
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        files.compile(nn.Dense(2, 2), fail)
    assert os.environ["GROUP_INFO_FILE"] == str(tmp_path / "group_info.pb")
    assert auto_parallel_context().get_strategy_ckpt_save_file() == str(tmp_path / "strategy.ckpt")


def test_a_list_without_communication_groups_is_made_one_that_mindspore_refuses(files, tmp_path):
    path = tmp_path / "group_info.pb"
    path.write_bytes(encode_group_info(GroupInfo((1, 5))))
    asked(files, trained())
    other = tmp_path / "other.pb"
    write_group_info(other, (1, 5))
    assert path.read_bytes() == other.read_bytes()
    whole = encode_group_info(GroupInfo((1, 5), (RankGroup("2-7", (1, 5)),)))
    path.write_bytes(whole)
    asked(CompiledFiles(path), trained())
    assert path.read_bytes() == whole


def test_compiles_of_cells_pass_by_here(files):
    seen = []

    class Seen(CompiledFiles):
        def compile(self, cell, compile_it):
            seen.append(type(cell).__name__)
            return super().compile(cell, compile_it)

    Seen(files._path)
    ms.set_context(mode=ms.GRAPH_MODE)
    nn.Dense(2, 2).compile(ms.Tensor(np.zeros((1, 2), np.float32)))
    assert seen == ["Dense"]
