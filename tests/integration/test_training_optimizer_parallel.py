"""The sample with weights and optimizer states split over the data-parallel ranks, 2 x 2 ranks on CPU."""

import shutil

import numpy as np
import pytest

from ms_recover.formats.group_info import read_group_info
from ms_recover.formats.header import read_header
from ms_recover.formats.strategy import read_strategy
from ms_recover.model.steps import Step
from ms_recover.stores.digest import digest_file
from tests.support.cuts import cell_of
from tests.support.sample import DONE, losses, make_pairs, manifests, script, slices

pytestmark = pytest.mark.mindspore
ms = pytest.importorskip("mindspore")

RANKS, LOST = range(4), 3
EVERYWHERE = {"global_step", "learning_rate"}
ODD = {f"{state}source.positions" for state in ("", "adam_m.", "adam_v.")}
"""Of --src_len 9 rows, which two ranks cannot share evenly."""


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    return make_pairs(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def plain(tmp_path_factory, pairs):
    """Without the option."""
    output = tmp_path_factory.mktemp("plain") / "run"
    code, text = script("save", pairs, output, "--src_len", "9")
    assert code == 0, text
    return output


@pytest.fixture(scope="module")
def split(tmp_path_factory, pairs):
    output = tmp_path_factory.mktemp("split") / "run"
    code, text = script("save", pairs, output, "--src_len", "9", "--enable_parallel_optimizer", "1")
    assert code == 0, text
    return output


def layouts(output):
    """Layouts by parameter; every rank has written the same."""
    found = [read_strategy(output / f"ckpt_dir{rank}" / "strategy.ckpt") for rank in RANKS]
    assert all(strategy == found[0] for strategy in found)
    return {layout.parameter: layout for layout in found[0].layouts}


def contents(output, rank, name="test-3_8.ckpt"):
    """Shape and bytes of every parameter of a slice."""
    path = output / f"ckpt_dir{rank}" / name
    data, header = path.read_bytes(), read_header(path)
    return {
        parameter.name: (parameter.shape, b"".join(data[piece.start : piece.end] for piece in pieces))
        for parameter, pieces in zip(header.parameters, header.contents, strict=True)
    }


def put_together(output, file="test-3_8.ckpt"):
    """The tensors of all ranks' slices, put together by the strategy file; what overlaps must be the same."""
    known, saved, whole = layouts(output), [contents(output, rank, file) for rank in RANKS], {}
    for name, (shape, data) in saved[0].items():
        if name not in known:
            assert all(slice_[name] == (shape, data) for slice_ in saved)
            whole[name] = data
            continue
        cells = [cell_of(known[name], rank) for rank in RANKS]
        full = np.full([size * count for size, count in zip(shape, cells[0].count, strict=True)], np.nan, np.float32)
        for cell, slice_ in zip(cells, saved, strict=True):
            own = np.frombuffer(slice_[name][1], np.float32).reshape(slice_[name][0])
            where = tuple(slice(at * size, (at + 1) * size) for at, size in zip(cell.index, own.shape, strict=True))
            assert np.isnan(full[where]).all() or full[where].tobytes() == own.tobytes(), name
            full[where] = own
        assert not np.isnan(full).any(), name
        whole[name] = full.tobytes()
    return whole


def test_losses_and_weights_are_those_without_the_option_to_the_last_bit(plain, split):
    for rank in RANKS:
        assert len(losses(split, rank)) == DONE
        assert losses(split, rank) == losses(plain, rank)
    assert put_together(split) == put_together(plain)


def test_mindspore_puts_the_slices_together_by_the_strategy_file(plain, split, tmp_path):
    """What `mindspore.transform_checkpoints` makes of both runs is the same network."""
    found = []
    for output in (plain, split):
        source, target = tmp_path / output.parent.name, tmp_path / f"{output.parent.name}-whole"
        for rank in RANKS:
            (source / f"rank_{rank}").mkdir(parents=True)
            shutil.copy(output / f"ckpt_dir{rank}" / "test-3_8.ckpt", source / f"rank_{rank}" / "test.ckpt")
        ms.transform_checkpoints(str(source), str(target), "whole", str(output / "ckpt_dir0" / "strategy.ckpt"), None)
        (path,) = (target / "rank_0").glob("*.ckpt")
        found.append({name: value.asnumpy().tobytes() for name, value in ms.load_checkpoint(str(path)).items()})
    assert found[0] == found[1] == put_together(plain)


def test_each_rank_stores_its_own_part(plain, split):
    known, without = layouts(split), layouts(plain)
    assert known.keys() == without.keys()
    assert not any(layout.opt_shard_size for layout in without.values())
    for rank in RANKS:
        own, before = contents(split, rank), contents(plain, rank)
        assert own.keys() - known.keys() == EVERYWHERE
        assert {name for name in own if own[name][0] == before[name][0]} == EVERYWHERE | ODD
        for name in own.keys() - EVERYWHERE - ODD:
            assert (2 * own[name][0][0], *own[name][0][1:]) == before[name][0]
        folder = split / f"ckpt_dir{rank}"
        assert read_group_info(str(folder / "group_info.pb")).restore_ranks == (rank,)
        found = manifests(split, rank)
        assert found.keys() == slices(split, rank).keys()
        assert {entry.group for entry in found.values()} == {(rank,)}
        assert {entry.strategy_digest for entry in found.values()} == {digest_file(folder / "strategy.ckpt").file}


def holders(output, lost):
    """For each parameter of a lost slice the other ranks whose slices hold the same bytes of it, by reading them."""
    saved = [contents(output, rank) for rank in RANKS]
    return {
        name: {rank for rank in RANKS if rank != lost and saved[rank][name] == value}
        for name, value in saved[lost].items()
    }


def test_the_plan_tells_the_truth_about_a_lost_rank(split, tmp_path, recover_ckpt):
    truth = holders(split, LOST)
    known = layouts(split)
    for name, ranks in truth.items():
        cell = cell_of(known[name], LOST) if name in known else None
        assert ranks == {rank for rank in set(RANKS) - {LOST} if cell is None or cell_of(known[name], rank) == cell}, (
            name
        )
    gone = {name for name, ranks in truth.items() if not ranks}
    assert gone == {name for name, layout in known.items() if any(0 in axes for axes in layout.tensor_map)}
    assert {frozenset(truth[name]) for name in EVERYWHERE | ODD} == {frozenset({0, 1, 2})}
    assert len(gone) == 3 * len([name for name in gone if not name.startswith("adam_")]) > 60
    assert {frozenset(truth[name]) for name in truth.keys() - gone - EVERYWHERE - ODD} == {frozenset({2})}

    shutil.copytree(split, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / f"ckpt_dir{LOST}")
    plan = recover_ckpt("plan", tmp_path / "run")
    assert plan.code == 4, plan.out + plan.err
    assert "UNRECOVERABLE" in plan.out
    plan = recover_ckpt("plan", tmp_path / "run", "--json")
    assert plan.code == 4
    assert plan.json["recoverable"] is False
    (partial,) = plan.json["partials"]
    ranks = [source["rank"] for source in partial["sources"]]
    told = {
        parameter["name"]: {
            ranks[place] for piece in parameter["pieces"] for place in (piece["source"], *piece["alternatives"])
        }
        for parameter in partial["parameters"]
    }
    assert told == {name: ranks for name, ranks in truth.items() if ranks}
    missing = {entry["parameter"]: entry["region"] for entry in plan.json["ranks"][LOST]["missing"]}
    assert missing == {name: region(known[name], contents(split, LOST)[name][0]) for name in gone}


def test_fewer_shards_than_ranks_leave_replicas(pairs, tmp_path, recover_ckpt):
    """Two shards over four data-parallel ranks: every second rank holds the same, and a lost one is copied."""
    output, options = tmp_path / "run", ("--src_len", "9", "--epochs", "1", "--enable_parallel_optimizer", "1")
    code, text = script("save", pairs, output, *options, "--optimizer_shards", "2", mp=1)
    assert code == 0, text
    known, saved = layouts(output), [slices(output, rank) for rank in RANKS]
    assert saved[0] == saved[2] != saved[1] == saved[3]
    whole = {name for name, layout in known.items() if not layout.opt_shard_size}
    assert {layout.opt_shard_size for layout in known.values()} == {0, 2}
    assert whole == ODD
    put_together(output, "test-1_8.ckpt")  # what several ranks hold is the same
    for rank in RANKS:
        alike = (rank % 2, rank % 2 + 2)
        assert read_group_info(str(output / f"ckpt_dir{rank}" / "group_info.pb")).restore_ranks == alike
        assert {entry.group for entry in manifests(output, rank).values()} == {alike}
    assert losses(output, 0) == losses(output, 3)
    shutil.rmtree(output / f"ckpt_dir{LOST}")
    assert recover_ckpt("apply", output).code == 0
    assert slices(output, LOST)["test-1_8.ckpt"] == saved[LOST]["test-1_8.ckpt"]


def region(layout, shape):
    """Begin and end, in every dimension of the whole tensor, of what the lost rank had."""
    return [[at * size, (at + 1) * size] for at, size in zip(cell_of(layout, LOST).index, shape, strict=True)]


def test_training_resumes_to_the_last_bit(split, tmp_path, pairs):
    output = tmp_path / "run"
    shutil.copytree(split, output)
    for rank in RANKS:
        for path in (output / f"ckpt_dir{rank}").glob("test-3_*"):
            path.unlink()
    code, text = script("recover", pairs, output, "--src_len", "9", "--enable_parallel_optimizer", "1")
    assert code == 0, text
    assert "resumed from step 2_7" in text
    for rank in RANKS:
        assert losses(output, rank) == {step: loss for step, loss in losses(split, rank).items() if step > Step(2, 7)}
        assert slices(output, rank)["test_1-3_8.ckpt"] == slices(split, rank)["test-3_8.ckpt"]
