"""A target in words: the cuts of the source over other numbers of ranks."""

import pytest

from ms_recover.errors import UsageError
from ms_recover.model.axes import Axes
from ms_recover.model.strategy import Layout
from ms_recover.planning.reshard.axes import target_of_axes

NEAR = (4, 2)
"""dp 4, tp 2: neighbours are tensor-parallel."""
ORDER = ("tp", "cp", "ep", "dp", "pp")
ROWS = Layout("rows", NEAR, ((0,), ()))
BOTH = Layout("both", (2, 2, 2), ((1,), (0,)))
NORM = Layout("norm", NEAR, ((),))


def target(axes, *stages, devices=8, order=ORDER, shards=0):
    layouts = [{one.parameter: one for one in stage} for stage in stages or [[ROWS, NORM]]]
    return target_of_axes(layouts, devices, Axes.parse(axes), order, shards)


def made(axes, *layouts, stage=0, **how):
    """Return matrix, map and optimizer shards of each parameter of a stage of the target."""
    found = target(axes, layouts or [ROWS, NORM], **how)
    return {
        name: (one.device_matrix, one.tensor_map, one.opt_shard_step, one.opt_shard_size)
        for name, one in found.stages[stage].items()
    }


def test_with_as_many_tensor_parallel_ranks_a_cut_stays_and_replicas_change():
    assert made("tp=2,dp=3") == {"norm": ((3, 2), ((),), 0, 0), "rows": ((3, 2), ((0,), ()), 0, 0)}
    assert target("tp=2,dp=3").devices == 6
    assert target("tp=2,dp=3").source == "--axes tp=2,dp=3"
    assert target("tp=2,dp=2,cp=2").devices == 8


def test_over_more_tensor_parallel_ranks_what_is_cut_is_cut_further():
    assert made("tp=4,dp=1")["rows"] == ((1, 4), ((0,), ()), 0, 0)
    assert made("tp=1,dp=2")["rows"] == ((2, 1), ((0,), ()), 0, 0)


def test_a_parameter_that_is_cut_over_some_of_the_tensor_parallel_ranks_keeps_its_part_of_them():
    fine, coarse = Layout("fine", (2, 2, 2), ((0,), ())), Layout("coarse", (2, 2, 2), ((1,), ()))
    found = made("tp=4,dp=1", BOTH, fine, coarse)
    assert found["both"] == ((1, 2, 2), ((1,), (0,)), 0, 0)
    assert found["fine"] == ((1, 2, 2), ((0,), ()), 0, 0)
    assert found["coarse"] == ((1, 2, 2), ((1,), ()), 0, 0)
    for one in (fine, coarse, BOTH):
        with pytest.raises(UsageError, match=f"'{one.parameter}' is not cut over all 4 tensor-parallel ranks"):
            target("tp=2,dp=1", [Layout("wide", (2, 4), ((0,), ())), one])


@pytest.mark.parametrize("change", [{"split_shape": (1, 3)}, {"field": 2}])
def test_a_cut_into_parts_of_its_own_is_made_anew_for_as_many_ranks_only(change):
    odd = Layout("odd", NEAR, ((0,), ()), **change)
    assert target("tp=2,dp=1", [odd]).stages[0]["odd"].split_shape == odd.split_shape
    with pytest.raises(UsageError, match="nothing says how 4 would cut it"):
        target("tp=4,dp=1", [odd])


def test_data_parallel_neighbours_stay_neighbours_where_the_order_says_so():
    far = Layout("rows", (2, 4), ((1,), ()))
    order = ("dp", "tp", "pp")
    assert made("tp=2,dp=3", far, order=order)["rows"] == ((2, 3), ((1,), ()), 0, 0)
    with pytest.raises(UsageError, match="4 apart, which is no order tp,cp,ep,dp,pp of its 4 data-parallel and 2"):
        target("tp=2,dp=3", [far])
    with pytest.raises(UsageError, match="1 apart"):
        target("tp=2,dp=3", [ROWS], order=order)
    assert made("tp=2,dp=3", order=("tp", "pp")) == made("tp=2,dp=3")
    assert made("tp=2,dp=3", Layout("rows", (2,), ((0,), ())), devices=2, order=order)["rows"][0] == (2, 3)


def test_words_that_the_source_leaves_open_are_refused():
    with pytest.raises(UsageError, match="experts"):
        target("tp=2,ep=2")
    with pytest.raises(UsageError, match="nothing in the source is cut, so that tp=2 says nothing"):
        target("tp=2,dp=4", [NORM])
    assert made("dp=2", NORM) == {"norm": ((2,), ((),), 0, 0)}


def sharded(size, *, name="state", copies=4):
    return Layout(name, (copies, 2), ((0,), ()), opt_shard_step=2, opt_shard_size=size)


@pytest.mark.parametrize(
    ("size", "axes", "shards", "expected"),
    [
        (2, "tp=2,dp=4", 0, (2, 2)),
        (4, "tp=2,dp=4", 0, (2, 4)),
        (-1, "tp=2,dp=2", 0, (2, -1)),
        (2, "tp=2,dp=2", 0, (2, 2)),
        (2, "tp=2,dp=6", 0, (2, 2)),
        (2, "tp=2,dp=1", 0, (0, 0)),
        (2, "tp=2,dp=4", 1, (0, 0)),
        (2, "tp=2,dp=4", -1, (2, -1)),
        (4, "tp=4,dp=4", 0, (4, 4)),
        (2, "tp=2,dp=4", 4, (2, 4)),
    ],
)
def test_optimizer_shards_follow_the_replicas(size, axes, shards, expected):
    found = made(axes, ROWS, sharded(size), shards=shards)
    assert found["state"][2:] == expected
    assert found["rows"][2:] == (0, 0)


@pytest.mark.parametrize(("size", "axes"), [(4, "tp=2,dp=8"), (4, "tp=2,dp=2"), (2, "tp=2,dp=3")])
def test_optimizer_shards_that_may_mean_two_things_are_asked_for(size, axes):
    with pytest.raises(UsageError, match=f"'state' is cut into {size} optimizer shards over 4 replicas"):
        target(axes, [ROWS, sharded(size)])


def test_gradients_are_not_sharded_and_of_a_source_without_shards_none_are_asked_for():
    gradients = sharded(2, name="accu_grads.state")
    assert made("tp=2,dp=4", gradients)["accu_grads.state"][2:] == (0, 0)
    for layouts in ([ROWS], [ROWS, gradients]):
        with pytest.raises(UsageError, match="the optimizer of the source shards no parameter"):
            target("tp=2,dp=4", layouts, shards=2)
        assert target("tp=2,dp=4", layouts, shards=1)


def test_stages_become_one_where_they_are_several_times_as_many():
    first, second = [ROWS], [NORM]
    assert list(target("tp=2,dp=4", first, second).stages[0]) == ["rows", "norm"]
    assert [list(one) for one in target("tp=2,dp=4,pp=2", first, second).stages] == [["rows"], ["norm"]]
    assert target("tp=2,dp=4", [ROWS], [Layout("rows", NEAR, ((0,), ()), opt_shard_step=4)])
    with pytest.raises(UsageError, match="the 2 stages of the source go into which of 4"):
        target("tp=2,pp=4", first, second)
    with pytest.raises(UsageError, match="the 3 stages of the source go into which of 2"):
        target("tp=2,pp=2", first, second, second)
    with pytest.raises(UsageError, match="stages that become one cut 'rows' differently"):
        target("tp=2,dp=4", [ROWS], [Layout("rows", NEAR, ((), (0,)))])


def test_an_order_of_two_axes_alone_says_which_are_neighbours():
    far = Layout("rows", (2, 4), ((1,), ()))
    assert made("tp=2,dp=3", far, order=("dp", "tp"))["rows"] == ((2, 3), ((1,), ()), 0, 0)
    assert made("dp=2", NORM, order=("dp", "tp")) == made("dp=2", NORM)


def test_axes_of_one_rank_cut_nothing():
    """Neither over other ranks, nor where they would be finer than those that cut."""
    one = Layout("rows", (4, 2, 1), ((1,), (0,)))
    assert made("tp=4,dp=1", one)["rows"] == ((1, 4), ((0,), ()), 0, 0)
    far = Layout("rows", (2, 4, 1), ((2,), (0,)))
    assert made("tp=2,dp=3", far, order=("dp", "tp"))["rows"] == ((2, 3), ((1,), ()), 0, 0)


def test_a_dimension_that_several_axes_cut_is_cut_over_their_ranks_where_the_coarsest_goes_first():
    wide, turned = (Layout("wide", (2, 2, 2), (axes, ())) for axes in ((1, 0), (0, 1)))
    assert made("tp=2,dp=1", wide)["wide"] == ((1, 2), ((0,), ()), 0, 0)
    assert made("tp=4,dp=1", wide)["wide"] == ((1, 2, 2), ((1, 0), ()), 0, 0)
    with pytest.raises(UsageError, match="'wide' is not cut over all 4"):
        target("tp=2,dp=1", [turned])


@pytest.mark.parametrize(
    ("layout", "axes", "expected"),
    [
        (Layout("state", NEAR, ((), ()), opt_shard_step=1, opt_shard_size=2), "tp=4,dp=1", (1, 2)),
        (Layout("state", (2, 2, 2), ((0,), ()), opt_shard_step=2, opt_shard_size=2), "tp=4,dp=1", (2, 2)),
        (Layout("state", (2, 2, 2), ((1,), ()), opt_shard_step=1, opt_shard_size=2), "tp=4,dp=1", (1, 2)),
        (Layout("state", (2, 2, 2), ((0,), ()), opt_shard_step=2, opt_shard_size=-1), "tp=4,dp=3", (2, -1)),
    ],
    ids=["whole", "cut over neighbours", "cut over others", "all replicas"],
)
def test_tensor_parallel_ranks_that_hold_the_same_share_optimizer_shards(layout, axes, expected):
    """Of a parameter that not all of them cut; the shards' step is the distance of those that hold the same."""
    other = ROWS if layout.device_matrix == NEAR else BOTH
    assert made(axes, other, layout)["state"][2:] == expected


def test_the_distance_of_those_that_hold_the_same_passes_over_axes_of_one_rank():
    both = Layout("both", (2, 2, 2), ((2,), (1,)))
    state = Layout("state", (2, 2, 2), ((1,), ()), opt_shard_step=1, opt_shard_size=2)
    found = made("tp=4,dp=1", both, state, order=("dp", "tp"))["state"]
    assert found == ((2, 2, 1), ((1,), ()), 2, 2)
