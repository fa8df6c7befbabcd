"""How a target cuts its parameters, by its strategy files."""

from dataclasses import replace

import pytest

from ms_recover.errors import FormatError, UsageError
from ms_recover.model.inventory import StrategyFile
from ms_recover.model.strategy import Layout, Strategy
from ms_recover.planning.reshard.target import Target, TargetCuts, groups_of, target_of_files

ROWS = Layout("rows", (2, 2), ((0,), ()))
NORM = Layout("norm", (2, 2), ((),))


def file(stage, *layouts, rank=None, name="a"):
    stages = (stage,) if stage is not None else ()
    return StrategyFile(rank if rank is not None else 0, f"{name}{stage}.ckpt", Strategy(stages, 1, layouts or (ROWS,)))


def test_each_stage_has_the_layouts_of_its_file():
    found = target_of_files([file(1, NORM), file(0, ROWS), file(0, replace(ROWS, opt_shard_step=9), name="b")], "--to")
    assert (found.devices, found.ranks, found.source, found.full) == (4, 8, "--to", False)
    assert [list(one) for one in found.stages] == [["rows"], ["norm"]]


def test_a_file_without_a_stage_is_of_that_of_the_rank_in_its_name():
    found = target_of_files([file(None, ROWS), file(None, NORM, rank=5, name="b")], "--to")
    assert [list(one) for one in found.stages] == [["rows"], ["norm"]]
    assert target_of_files([file(None, ROWS, rank=-1)], "--to").stages == ({"rows": ROWS},)


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ([], "no strategy file with the layout"),
        ([StrategyFile(0, "x", Strategy((0,), 1, ()))], "no strategy file with the layout"),
        ([file(0), file(1, Layout("rows", (2,), ((0,), ())))], "strategy files state 2, 4 ranks in a stage"),
        ([file(0), file(0, NORM, name="b")], "a0.ckpt and b0.ckpt are of one stage and cut parameters differently"),
        ([file(0), file(2)], "the strategy file of stage 1 is missing; there are 2"),
        ([StrategyFile(0, "x", Strategy((0, 1), 1, (ROWS,)))], "x names stages 0, 1"),
    ],
)
def test_files_that_are_of_no_one_job_are_refused(files, words):
    with pytest.raises(FormatError, match=words):
        target_of_files(files, "--to")


def cut(layout, shape, devices=4):
    return TargetCuts(Target(devices=devices, stages=({},), source="--to")).cut(layout, "w", shape)


def boxes(found):
    return [found.boxes[cell] for cell in found.cells]


def test_each_rank_has_the_box_of_its_part():
    assert boxes(cut(ROWS, (4, 3))) == [((0, 2), (0, 3)), ((2, 4), (0, 3))] * 2
    assert boxes(cut(None, (4, 3))) == [((0, 4), (0, 3))] * 4
    shards = replace(ROWS, opt_shard_step=2, opt_shard_size=2)
    assert len(set(boxes(cut(shards, (4, 3))))) == 4
    assert groups_of([cut(ROWS, (4, 3)), cut(NORM, (3,))], 4) == [(0, 2), (1, 3), (0, 2), (1, 3)]
    assert groups_of([cut(NORM, (3,))], 4) == [(0, 1, 2, 3)] * 4


def test_rows_may_be_cut_into_parts_of_several_sizes():
    uneven = replace(ROWS, split_shape=(1, 3))
    assert boxes(cut(uneven, (4, 3)))[:2] == [((0, 1), (0, 3)), ((1, 4), (0, 3))]
    for rows in ((1, 2), (1, 1, 2)):
        with pytest.raises(UsageError, match="that is not all of them"):
            cut(replace(ROWS, split_shape=rows), (4, 3))


@pytest.mark.parametrize(
    ("layout", "shape", "words"),
    [
        (replace(ROWS, field=1), (4, 3), "by field"),
        (ROWS, (4,), "in 2 dimensions, and the source has it as"),
        (ROWS, (5, 3), r"of \[5, 3\] into 2 parts in dimension 0"),
        (Layout("w", (2, 2), ((), (0,))), (4, 3), "into 2 parts in dimension 1"),
        (replace(ROWS, device_matrix=(2,)), (4, 3), "over 2 ranks of 4"),
        (replace(ROWS, opt_shard_step=2, opt_shard_size=3), (12, 3), "optimizer shards must divide"),
        (replace(ROWS, tensor_shape=(4, 4)), (4, 3), "strategy of another model"),
        (replace(ROWS, tensor_shape=(4, 3)), (4,), "strategy of another model"),
        (replace(ROWS, tensor_shape=(4, 3)), (4, 3, 1), "strategy of another model"),
    ],
)
def test_layouts_that_do_not_fit_are_refused(layout, shape, words):
    with pytest.raises(UsageError, match=words):
        cut(layout, shape)


@pytest.mark.parametrize(
    ("written", "mapped", "shape", "expected"),
    [
        ((4, 3), ((0,), ()), (4, 3), ((0,), ())),
        ((2, 2, 3), ((0,), (), ()), (4, 3), ((0,), ())),
        ((2, 2, 3), ((1,), (0,), ()), (4, 3), ((1, 0), ())),
        ((4, 3, 1), ((0,), (), ()), (4, 3), ((0,), ())),
    ],
)
def test_dimensions_that_the_source_has_as_one_are_put_together(written, mapped, shape, expected):
    cuts = TargetCuts(Target(devices=4, stages=({},), source="--to"))
    fitted = cuts.fitted(Layout("w", (2, 2), mapped, tensor_shape=written), "w", shape)
    assert (fitted.tensor_map, fitted.tensor_shape) == (expected, ())
