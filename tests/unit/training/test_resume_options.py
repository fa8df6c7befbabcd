"""What a resume was asked for, as one value."""

from pathlib import Path

import pytest

from ms_recover.errors import UsageError
from ms_recover.model.steps import Step
from ms_recover.planning.tree.lineage import RUN
from ms_recover.training.resume_options import ResumeOptions


def of(environ=None, **keywords):
    return ResumeOptions.of({"root": "tree", **keywords}, environ or {})


def test_what_is_not_given_has_the_defaults_of_the_value():
    assert of() == ResumeOptions(root="tree", from_environment=True)


def test_values_are_what_a_resume_takes(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    found = of(root=Path("~/tree"), group_info="~/g", strategy=["a", Path("b")], tolerate="x", step=(2, 7))
    assert found == ResumeOptions(
        root="/home/me/tree",
        group_info=("/home/me/g",),
        strategy=("a", "b"),
        tolerate=("x",),
        step=Step(2, 7),
        from_environment=True,
    )
    assert of(ckpt_file="ckpt_dir0/test-2_77.ckpt").step == Step(2, 77)


def test_the_keyword_counts_for_more_than_the_variable():
    found = of({RUN: "abc"}, run="def")
    assert (found.run, found.from_environment) == ("def", False)
    found = of({RUN: "abc"})
    assert (found.run, found.from_environment) == ("abc", True)
    assert found.to_agree["run"] == f"'abc' by {RUN}"
    assert of({RUN: "abc"}, run="").run == "abc"


def test_what_ranks_must_have_alike_leaves_out_what_may_be_their_own():
    one = of(ckpt_file="a/ckpt_dir0/test-2_77.ckpt", reshard=True, sources="node2", tolerate=["b", "a"])
    other = of(ckpt_file="ckpt_dir1/test-2_77.ckpt", reshard=True, sources="node3", tolerate=["a", "b"])
    assert one.to_agree == other.to_agree
    assert of(ckpt_file="a-2_78.ckpt").to_agree != of(ckpt_file="a-2_77.ckpt").to_agree
    assert of(reshard=True, sources="node2").to_agree != of(reshard=True).to_agree
    assert of(step="2_77").to_agree["step"] == "2_77"


def test_a_search_is_made_of_all_that_was_given():
    given = of(pattern="p", run="r", newest=True, fresh="start", rank_local="peer", keep="k", step="1_2")
    search = given.of_program(("lr",)).search(4)
    assert (search.root, search.scanning.pattern, search.judging.world_size) == ("tree", "p", 4)
    assert (search.judging.run, search.judging.newest, search.given) == ("r", True, ("lr",))
    assert (search.fresh, search.rank_local, search.keep, search.step) == ("start", "peer", ("k",), Step(1, 2))


@pytest.mark.parametrize(
    ("keywords", "said"),
    [
        ({"newest": 1}, "newest=1: it must be True or False, and is of type int"),
        ({"prefix": 3}, "prefix=3: it must be a text or a list of texts, and is of type int"),
        ({"keep": [3]}, "keep=3: it must be a text or a list of texts, and is of type int"),
        ({"accumulate": 0}, "accumulate=0: it must be at least 1"),
        ({"reshard": "yes"}, "reshard='yes': it must be True or False, and is of type str"),
        ({"sources": "a"}, "sources and layouts are for reshard=True, which cuts slices anew: give that as well"),
        ({"layouts": []}, "sources and layouts are for reshard=True, which cuts slices anew: give that as well"),
        (
            {"layouts": 3, "reshard": True},
            "layouts=3: it must be a list of layouts, as ms_recover.training.cut returns them, and is of type int",
        ),
        (
            {"layouts": ["a"], "reshard": True},
            "layouts: one='a': it must be a layout, as ms_recover.training.cut returns it, and is of type str",
        ),
        ({"step": 3}, "step=3: give it as slices name it, for example '2_77', or as (epoch, step)"),
        (
            {"ckpt_file": "a-1_2.ckpt", "step": "1_2"},
            "ckpt_file names the step and the run to resume: leave step and run out",
        ),
        (
            {"ckpt_file": "a-1_2.ckpt", "run": "abc"},
            "ckpt_file names the step and the run to resume: leave step and run out",
        ),
    ],
)
def test_wrong_keywords_are_refused(keywords, said):
    with pytest.raises(UsageError) as found:
        of(**keywords)
    assert str(found.value) == said
