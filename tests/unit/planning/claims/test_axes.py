"""The ranks that hold the same slice by parallel axes."""

import pytest

from ms_recover.errors import UsageError
from ms_recover.formats.group_info import read_group_info
from ms_recover.model.axes import DEFAULT_ORDER, Axes, parse_order
from ms_recover.planning.claims.axes import count_ranks, kinds_by_axes, same_by_axes, tensor_groups
from tests.conftest import FIXTURES


def groups(text, order=DEFAULT_ORDER, shards=0, world=None):
    axes = Axes.parse(text)
    return same_by_axes(axes, order, shards, world or count_ranks(axes)[0])


def test_axes_are_parsed_by_all_their_names():
    axes = Axes.parse("dp=2, mp=4")
    assert [axes.size(axis) for axis in DEFAULT_ORDER] == [4, 1, 1, 2, 1]
    assert str(axes) == "dp=2,mp=4"
    assert Axes.parse("data_parallel=2,model_parallel=4,pipeline_stage=3").size("pp") == 3
    assert Axes.parse("DP=2,TP=1").size("dp") == 2


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("dp", "'dp' is no axis with its size"),
        ("dp=0", "'dp=0' is no axis"),
        ("dp=2,", "'' is no axis"),
        ("dp=2,dp=2", "axis dp is given twice"),
        ("tp=2,mp=2", "axis tp is given twice"),
        ("vp=2", "axis 'vp' is none of tp, cp, ep, dp, pp"),
        ("dp=-2", "'dp=-2' is no axis"),
    ],
)
def test_what_is_no_axis_is_refused(text, why):
    with pytest.raises(ValueError, match=why):
        Axes.parse(text)


def test_orders_are_parsed_as_mindformers_and_megatron_write_them():
    assert parse_order("tp-cp-ep-dp-pp") == parse_order("mp,cp,ep,dp,pp") == DEFAULT_ORDER
    with pytest.raises(ValueError, match="names an axis twice"):
        parse_order("tp,mp")
    with pytest.raises(ValueError, match="axis 'x' is none of"):
        parse_order("tp,x")


@pytest.mark.parametrize(
    ("folder", "text", "shards"),
    [
        ("dp2_mp4", "dp=2,mp=4", 0),
        ("dp2_mp2_pp2", "dp=2,mp=2,pp=2", 0),
        ("dp4_mp2_opt2", "dp=4,mp=2", 2),
        ("dp4_mp2_optfull", "dp=4,mp=2", -1),
    ],
)
def test_the_groups_are_those_that_mindspore_listed(folder, text, shards):
    lists = {read_group_info(FIXTURES / folder / f"ckpt_dir{rank}" / "group_info.pb").sorted_ranks for rank in range(8)}
    assert set(groups(text, shards=shards)) == lists


def test_another_order_gives_other_groups():
    assert groups("dp=2,mp=2,pp=2", ("tp", "pp", "dp")) == ((0, 4), (1, 5), (2, 6), (3, 7))
    assert groups("dp=2,mp=2", ("dp", "tp")) == ((0, 1), (2, 3))
    with pytest.raises(UsageError, match="the order tp,dp lacks pp"):
        groups("dp=2,pp=2", ("tp", "dp"))


def test_context_parallel_ranks_hold_the_same():
    assert groups("tp=2,cp=2,dp=2") == ((0, 2, 4, 6), (1, 3, 5, 7))


def test_ranks_with_other_experts_are_not_called_the_same():
    assert groups("dp=4,ep=2,tp=2") == ((0, 4), (1, 5), (2, 6), (3, 7))
    assert groups("dp=2,ep=2,tp=2", world=8) == ((0, 4), (1, 5), (2, 6), (3, 7))
    assert groups("dp=4,ep=4") == ((0,), (1,), (2,), (3,))
    with pytest.raises(UsageError, match="expert parallel 3 does not divide data parallel 4"):
        groups("dp=4,ep=3")


def test_with_experts_context_parallel_ranks_are_kept_apart():
    """Folded, experts are dealt out over context and data parallel ranks together; else over the latter."""
    found = groups("cp=2,dp=4,ep=2")
    assert found == ((0, 4), (1, 5), (2, 6), (3, 7))
    for a, b in found:
        assert a % 2 == b % 2  # folded: the place among all eight, modulo the experts
        assert a // 2 % 2 == b // 2 % 2


@pytest.mark.parametrize(
    ("text", "shards", "expected"),
    [
        ("dp=4", 1, ((0, 1, 2, 3),)),
        ("dp=4", 2, ((0, 2), (1, 3))),
        ("dp=4", 4, ((0,), (1,), (2,), (3,))),
        ("dp=4", 3, ((0,), (1,), (2,), (3,))),  # does not divide: nothing is certain
        ("dp=2,mp=2", 4, ((0,), (1,), (2,), (3,))),  # more than the replicas of a cut weight
        ("dp=6,mp=2", 3, ((0, 6), (1, 7), (2, 8), (3, 9), (4, 10), (5, 11))),
        ("dp=8,ep=2", 2, ((0, 4), (1, 5), (2, 6), (3, 7))),
        ("dp=4,ep=2,cp=2", 2, tuple((rank,) for rank in range(8))),
    ],
)
def test_optimizer_shards_leave_what_they_divide(text, shards, expected):
    assert groups(text, shards=shards) == expected


@pytest.mark.parametrize(
    ("text", "shards", "alone"),
    [("dp=8,ep=2,cp=2", 2, True), ("dp=8,ep=2,cp=2", 0, False), ("dp=4,cp=2", 2, False), ("dp=8,ep=2", 2, False)],
    ids=["experts and contexts with shards", "without shards", "without experts", "without contexts"],
)
def test_with_experts_and_context_parallel_ranks_shards_leave_no_two_ranks_surely_alike(text, shards, alone):
    found = groups(text, shards=shards)
    assert all(len(one) == 1 for one in found) == alone


SINGLES = ((0,), (1,), (2,), (3,))


@pytest.mark.parametrize(
    ("text", "shards", "kinds"),
    [
        ("dp=4", 0, {"weights": ((0, 1, 2, 3),)}),
        ("dp=4", -1, {"weights": ((0, 1, 2, 3),), "optimizer states of weights": SINGLES}),
        ("dp=2,tp=2", 1, {"weights": ((0, 2), (1, 3)), "weights that are not cut": ((0, 1, 2, 3),)}),
        (
            "dp=2,tp=2",
            2,
            {
                "weights": ((0, 2), (1, 3)),
                "optimizer states of weights": SINGLES,
                "weights that are not cut": ((0, 1, 2, 3),),
                "optimizer states of weights that are not cut": ((0, 2), (1, 3)),
            },
        ),
        ("dp=4,ep=2", 0, {"weights": ((0, 1, 2, 3),), "experts": ((0, 2), (1, 3))}),
        ("dp=2,pp=2", 0, {"weights": ((0, 1), (2, 3))}),
    ],
)
def test_each_kind_of_parameter_has_its_groups(text, shards, kinds):
    assert kinds_by_axes(Axes.parse(text), DEFAULT_ORDER, shards, 4) == kinds


@pytest.mark.parametrize(
    ("text", "order", "found"),
    [
        ("dp=2,tp=2", DEFAULT_ORDER, ((0, 1), (2, 3))),
        ("dp=2,tp=2", ("dp", "tp"), ((0, 2), (1, 3))),
        ("dp=2,pp=2", DEFAULT_ORDER, SINGLES),
        ("tp=4", DEFAULT_ORDER, ((0, 1, 2, 3),)),
    ],
)
def test_tensor_parallel_ranks_differ_in_that_place_alone(text, order, found):
    assert tensor_groups(Axes.parse(text), order, 4) == found
