"""Which contents are read to find odd values, and what they show over the steps."""

from dataclasses import replace

from ms_recover.model.slices import Parameter, ParameterList
from ms_recover.model.steps import Step
from ms_recover.planning.history.values import Content, ReadValue, ReadValues, choose_contents, find_odd_values
from ms_recover.planning.history.witnesses import Moment, Witness

LISTED = ParameterList((Parameter("w", "Float32", (2,), 8), Parameter("count", "Int32", (), 4)))
FLOATS = frozenset({"Float32"})


def witness(rank, step, digest):
    path = f"rank_{rank}/net-1_{step}.ckpt"
    return Witness(
        rank=rank,
        path=path,
        listed=LISTED,
        digests=(digest, f"count {step}"),
        file="",
        own=True,
        rank_local=frozenset(),
        manifest=None,
    )


def moments(*courses):
    """Return the steps 1, 2, ... of ranks, each with the digests of its parameter by step; None where it has none."""
    return [
        Moment(
            step=Step(1, step),
            run_id="run",
            witnesses={rank: witness(rank, step, one[step - 1]) for rank, one in enumerate(courses) if one[step - 1]},
        )
        for step in range(1, len(courses[0]) + 1)
    ]


def read(**digests):
    """Return what was read of contents: by digest, NaN, Inf and whether all are zero."""
    known = {Content(digest, "Float32"): ReadValue(digest, *found) for digest, found in digests.items()}
    return ReadValues(values=known)


FINE, ZERO = (0, 0, False), (0, 0, True)


def chosen(steps, done=None, *, without=(), dtypes=FLOATS):
    paths = frozenset(one.path for moment in steps for one in moment.witnesses.values()) - set(without)
    return {path: list(names) for path, names in choose_contents(steps, paths, dtypes, done or ReadValues()).items()}


def test_equal_contents_are_read_once_and_of_the_asked_types_only():
    steps = moments("ab", "ab")
    assert chosen(steps) == {"rank_0/net-1_1.ckpt": ["w"], "rank_0/net-1_2.ckpt": ["w"]}
    assert chosen(steps, dtypes=frozenset({"Int32"})) == {
        "rank_0/net-1_1.ckpt": ["count"],
        "rank_0/net-1_2.ckpt": ["count"],
    }
    assert chosen(steps, read(a=FINE)) == {"rank_0/net-1_2.ckpt": ["w"]}


def test_what_is_gone_unread_or_damaged_in_one_slice_is_read_in_the_next():
    steps = moments("a", "a")
    other = {"rank_1/net-1_1.ckpt": ["w"]}
    assert chosen(steps, without=["rank_0/net-1_1.ckpt"]) == other
    assert chosen(steps, ReadValues(unread={"rank_0/net-1_1.ckpt": "cut"})) == other
    assert chosen(steps, ReadValues(damaged=frozenset({("rank_0/net-1_1.ckpt", "w")}))) == other


def test_what_was_read_is_kept_and_what_differs_from_its_manifest_is_damage():
    wanted = {"x": {"w": Content("a", "Float32"), "v": Content("b", "Float32")}, "y": {"w": Content("c", "Float32")}}
    found = ReadValues().with_found(wanted, {"x": {"w": ReadValue("a", 1, 0, False)}, "y": "cut"})
    assert found.values == {Content("a", "Float32"): ReadValue("a", 1, 0, False)}
    assert found.damaged == {("x", "v")}
    assert found.unread == {"y": "cut"}
    assert ReadValues().with_found({"y": wanted["y"]}, {"y": {"w": ReadValue("z", 0, 0, False)}}).damaged == {
        ("y", "w")
    }


def odd(steps, done):
    values, zeros = find_odd_values(steps, done)
    return [(one.kind, one.first.step, one.last.step, one.ranks, one.count, one.steps) for one in values], zeros


def test_odd_values_have_their_first_step_with_its_ranks_and_the_last():
    done = read(a=FINE, b=(2, 0, False), c=(5, 1, False))
    assert odd(moments("abca", "aaba"), done) == ([("nan", 2, 3, (0,), 5, 2), ("inf", 3, 3, (0,), 1, 1)], ())


def test_zero_is_odd_after_other_values_of_the_same_rank_only():
    done = read(a=FINE, z=ZERO)
    assert odd(moments("az"), done) == ([("zero", 2, 2, (0,), 1, 1)], ())
    assert odd(moments("azaz"), done) == ([("zero", 2, 4, (0,), 1, 2)], ())
    assert odd(moments("azz"), done) == ([("zero", 2, 3, (0,), 1, 2)], ())
    assert odd(moments("zza"), done) == ([], ())
    assert odd(moments("zz", "zz"), done) == ([], ("w",))
    assert odd(moments("aa", "zz"), done) == ([], ())
    assert odd(moments("za"), read()) == ([], ())


def test_damage_is_odd_whatever_was_read_elsewhere():
    done = replace(read(a=FINE), damaged=frozenset({("rank_1/net-1_2.ckpt", "w")}))
    assert odd(moments("aa", "aa"), done) == ([("damaged", 2, 2, (1,), 1, 1)], ())
