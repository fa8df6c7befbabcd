"""Whose compile may write the rank list and the strategy file; test_ascend_compiler has MindSpore's own compiles."""

import gc
import os
from pathlib import Path

import pytest

from ms_recover.execution.rank_lists import write_group_info
from ms_recover.formats.group_info import encode_group_info
from ms_recover.model.groups import GroupInfo, RankGroup

pytestmark = pytest.mark.mindspore
ms = pytest.importorskip("mindspore")

import numpy as np  # noqa: E402
from mindspore import nn  # noqa: E402
from mindspore.parallel._auto_parallel_context import auto_parallel_context  # noqa: E402

from ms_recover.training.compiled_files import CompiledFiles  # noqa: E402
from ms_recover.training.mindspore_inside import have_compiles_pass  # noqa: E402


@pytest.fixture(autouse=True)
def as_before(monkeypatch):
    monkeypatch.setenv("GROUP_INFO_FILE", "what the user had")
    yield
    have_compiles_pass(None)
    auto_parallel_context().set_strategy_ckpt_save_file("")


def trained():
    network = nn.Dense(2, 2)
    return nn.TrainOneStepCell(network, nn.Momentum(network.trainable_params(), 0.1, 0.9))


@pytest.fixture
def files(tmp_path):
    auto_parallel_context().set_strategy_ckpt_save_file(str(tmp_path / "strategy.ckpt"))
    return CompiledFiles(tmp_path / "group_info.pb")


def asked(files, cell, text=b"written"):
    """Return what a compile is asked to write, and write it as MindSpore's compiler does."""
    seen = []

    def compile_it():
        paths = os.environ.get("GROUP_INFO_FILE"), auto_parallel_context().get_strategy_ckpt_save_file()
        seen.append(paths)
        for path in filter(None, paths):
            Path(path).write_bytes(text)
        return "phase", True

    assert files.compile(cell, compile_it) == ("phase", True)
    return seen[0]


def test_the_training_writes_its_files_once_and_nothing_else_does(files, tmp_path):
    both = str(tmp_path / "group_info.pb"), str(tmp_path / "strategy.ckpt")
    first, other = trained(), trained()
    assert asked(files, nn.Dense(2, 2)) == (None, "")
    assert asked(files, first) == both
    assert asked(files, first.network) == (None, "")
    assert asked(files, nn.SequentialCell(first)) == (None, "")  # the same training, wrapped for sink mode
    files.belong_to(nn.SequentialCell(first))
    assert asked(files, other) == (None, "")
    assert os.environ["GROUP_INFO_FILE"] == both[0]
    assert auto_parallel_context().get_strategy_ckpt_save_file() == both[1]
    (tmp_path / "group_info.pb").unlink()
    assert asked(files, first) == both


def test_the_files_are_those_of_the_training_that_begins_whatever_was_compiled_behind_it(files, tmp_path):
    first, other, third = trained(), trained(), trained()
    asked(files, first, b"of the first")
    asked(files, other, b"of the other")
    for name, text in (("group_info.pb", b"of the other"), ("strategy.ckpt", b"of the other")):
        assert (tmp_path / name).read_bytes() == text
    files.belong_to(first)
    for name in ("group_info.pb", "strategy.ckpt"):
        assert (tmp_path / name).read_bytes() == b"of the first"
    files.belong_to(other)
    assert (tmp_path / "strategy.ckpt").read_bytes() == b"of the other"
    files.belong_to(third)
    assert asked(files, first) == (None, "")
    assert asked(files, third)[0] == str(tmp_path / "group_info.pb")


def test_a_training_that_is_gone_makes_room(files, tmp_path):
    first = trained()
    asked(files, first)
    files.belong_to(first)
    del first
    gc.collect()
    assert asked(files, trained())[0] == str(tmp_path / "group_info.pb")


def test_another_variable_is_left_to_the_user(files, monkeypatch, tmp_path):
    monkeypatch.setenv("GROUP_INFO_FILE", str(tmp_path / "elsewhere"))
    assert asked(files, nn.Dense(2, 2)) == (str(tmp_path / "elsewhere"), str(tmp_path / "strategy.ckpt"))


def test_an_error_of_the_compiler_passes_and_leaves_everything_as_it_was(files, tmp_path):
    def fail():
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        files.compile(nn.Dense(2, 2), fail)
    assert os.environ["GROUP_INFO_FILE"] == str(tmp_path / "group_info.pb")
    assert auto_parallel_context().get_strategy_ckpt_save_file() == str(tmp_path / "strategy.ckpt")


def test_a_list_without_communication_groups_is_made_one_that_mindspore_refuses(files, tmp_path):
    path = tmp_path / "group_info.pb"
    other = tmp_path / "other.pb"
    write_group_info(other, (1, 5))
    whole = encode_group_info(GroupInfo((1, 5), (RankGroup("2-7", (1, 5)),)))
    for before, seen in ((encode_group_info(GroupInfo((1, 5))), other.read_bytes()), (whole, whole), (b"x", b"x")):
        path.write_bytes(before)
        assert CompiledFiles(path).compile(trained(), path.read_bytes) == seen


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
