from dataclasses import replace

import pytest

from ms_recover.errors import FormatError
from ms_recover.formats.plan_paths import check_names, name_problem, name_problems
from ms_recover.model.actions import CopyAction, FileState, Replica
from ms_recover.model.compose import ComposeAction
from ms_recover.model.plan import DocumentWrite, GivenUpSlice, GroupWrite, MetaWrite, Plan, RankVerdict, StrategyWrite
from ms_recover.model.shard_metadata import CommonInfo
from ms_recover.model.steps import Step

COMMON = CommonInfo()


@pytest.mark.parametrize(
    "path",
    [
        "ckpt_dir3/test-1_8.ckpt",
        "ckpt_dir3/test_1-1_8.safetensors",
        "rank_3/test_rank_3-1_8.ckpt",
        "checkpoints/rank_3/test_rank_3_1-1_8.ckpt",
        "ckpt_dir3/test-1_8.partial.ckpt",
        "job7/3/model-1_8.ckpt",
        "all/test_rank_3-1_8.ckpt",
        "rank_3/lora_rank_8_rank_3-1_8.ckpt",
        "host-3/epoch1/step8.ckpt",
        "r3/slices/1_8.r3.ckpt",
        "run/r3/test-e1s8.r3.ckpt",
        "1/8/3.ckpt",
        "rank_3/epoch-1_1/test-1_8.ckpt",
    ],
)
def test_a_path_that_names_its_rank_and_step_is_right(path):
    assert name_problem(path, 3, Step(1, 8)) is None


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("ckpt_dir2/test-1_8.ckpt", "names rank 2"),
        ("rank_30/test-1_8.ckpt", "names rank 30"),
        ("ckpt_dir3/test_rank_2-1_8.ckpt", "names rank 2"),
        ("rank_3/test_rank_2_1-1_8.ckpt", "names rank 2"),
        ("rank_3/test_rank_2_x-1_8.ckpt", "names rank 2"),
        ("rank_3/lora_rank_3_rank_2-1_8.safetensors", "names rank 2"),
        ("ckpt_dir2/test_rank_3-1_8.ckpt", "names rank 2"),
        ("ckpt_dir3/test-1_9.ckpt", "names step 1_9"),
        ("ckpt_dir3/test-8_1.ckpt", "names step 8_1"),
        ("ckpt_dir3/test.ckpt", "does not name step 1_8"),
        ("job/33/model-1_8.ckpt", "does not name rank 3"),
        ("job/test-3_8.ckpt", "names step 3_8"),
        ("host-3/epoch1/step9.ckpt", "does not name step 1_8"),
        ("ckpt_dir33/test-1_8.ckpt", "names rank 33"),
        ("ckpt_dir/test-1_8.ckpt", "does not name rank 3"),
        ("ckpt_dir4/test3-1_8.ckpt", "names rank 4"),
        ("ckpt_dir3/rank_4/test-1_8.ckpt", "names rank 4"),
        ("ckpt_dir3/test-11_8.ckpt", "names step 11_8"),
        ("ckpt_dir3/x1_8-3_8.ckpt", "names step 3_8"),
        ("r13/slices/1_8.r31.ckpt", "does not name rank 3"),
        ("r3/slices/1_9.r3.ckpt", "does not name step 1_8"),
    ],
)
def test_a_path_of_another_rank_or_step_is_named(path, problem):
    assert problem in name_problem(path, 3, Step(1, 8))


def test_a_rank_that_stands_only_in_the_step_is_not_named():
    assert name_problem("job/test-3_8.ckpt", 3, Step(3, 8)) == "does not name rank 3"
    assert name_problem("job/3/test-3_8.ckpt", 3, Step(3, 8)) is None
    assert name_problem("lists/3/group_info.pb", 3, None) is None
    assert name_problem("lists/group_info.pb", 3, None) == "does not name rank 3"
    assert name_problem("ckpt_dir4/group_info.pb", 3, None) == "names rank 4"


STATE = FileState(8, 1)


def copy(rank, sources, folder="ckpt_dir{}", name="test-1_8.ckpt", **changes):
    """Return a copy to a rank from others, each in the folder of its rank."""
    first, *others = [Replica(one, f"{folder.format(one)}/{name}", STATE) for one in sources]
    target = f"{folder.format(rank)}/{name}"
    return replace(CopyAction(rank, first, target, None, "x", "layout", (), tuple(others)), **changes)


def partial(target, rank=1):
    source = Replica(2, "ckpt_dir2/test-1_8.ckpt", STATE)
    return ComposeAction(rank, (source,), 0, (), target, None, "x", (), kind="partial")


PLAN = Plan("/tree/run", 4, "manifests", Step(1, 8), (copy(0, [2, 3]),), (), (RankVerdict(3, "ok", "keep", "x"),))
STRATEGY = StrategyWrite(0, "ckpt_dir0/strategy.ckpt", 2, "ckpt_dir2/strategy.ckpt", "x")
META = MetaWrite(rank=0, target="ckpt_dir0/meta.json", file="test-1_8.ckpt", replaces=None, reason="x")
ASIDE = GivenUpSlice(rank=1, path="ckpt_dir1/test-9_9.ckpt", state=None, reason="x")


@pytest.mark.parametrize(
    ("changes", "problems"),
    [
        ({}, []),
        ({"actions": (copy(0, [2, 3], name="x/test-1_8.ckpt"), copy(1, [2, 3], name="x/test-1_8.ckpt"))}, []),
        (
            {"actions": (copy(0, [2, 3, 4], "d{}", "rank_1/test-1_8.ckpt"),)},
            [f"d{rank}/rank_1/test-1_8.ckpt names rank 1" for rank in (0, 2, 3, 4)],
        ),
        (
            {"actions": (copy(0, [2], name="test-1_9.ckpt"),)},
            ["ckpt_dir0/test-1_9.ckpt names step 1_9, not 1_8"] + ["ckpt_dir2/test-1_9.ckpt names step 1_9, not 1_8"],
        ),
        (
            {"actions": (copy(0, [2], target="ckpt_dir0/test-1_8.partial.ckpt"),)},
            ["ckpt_dir0/test-1_8.partial.ckpt is a name for parts of a slice"],
        ),
        ({"partials": (partial("ckpt_dir1/test-1_8.partial.ckpt"),)}, []),
        (
            {"partials": (partial("ckpt_dir1/test-1_8.ckpt"),)},
            ["ckpt_dir1/test-1_8.ckpt is no name for parts of a slice"],
        ),
        (
            {
                "step": None,
                "considered": Step(1, 9),
                "actions": (),
                "partials": (partial("ckpt_dir1/test-1_9.partial.ckpt"),),
            },
            ["ckpt_dir2/test-1_8.ckpt names step 1_8, not 1_9"],
        ),
        ({"documents": (DocumentWrite("common.json", 8, None, "x"),)}, ["common.json belongs to a tree of iterations"]),
        ({"group_files": (GroupWrite(1, "ckpt_dir1/group_info.pb", (1, 2)),)}, []),
        (
            {"group_files": (GroupWrite(1, "ckpt_dir2/group.pb", (1, 2)),)},
            ["ckpt_dir2/group.pb is not called group_info.pb", "ckpt_dir2/group.pb names rank 2"],
        ),
        ({"strategy_files": (STRATEGY,)}, []),
        ({"strategy_files": (StrategyWrite(0, "s/strategy_rank_0.ckpt", 2, "s/strategy_rank_2.ckpt", "x"),)}, []),
        (
            {"strategy_files": (replace(STRATEGY, target="ckpt_dir0/x.ckpt", source="ckpt_dir3/strategy.ckpt"),)},
            ["ckpt_dir0/x.ckpt is not called strategy.ckpt or ckpt_strategy_rank_0.ckpt"]
            + ["ckpt_dir3/strategy.ckpt names rank 3"],
        ),
        (
            {"strategy_files": (StrategyWrite(0, "s/strategy_rank_1.ckpt", 2, "s/strategy_rank_2.ckpt", "x"),)},
            ["s/strategy_rank_1.ckpt is not called strategy.ckpt or ckpt_strategy_rank_0.ckpt"]
            + ["s/strategy_rank_1.ckpt names rank 1"],
        ),
        ({"meta_files": (META,)}, []),
        (
            {"meta_files": (replace(META, target="ckpt_dir1/m.json", file="test_rank_2-1_8.ckpt"),)},
            ["ckpt_dir1/m.json is not called meta.json", "ckpt_dir1/m.json names rank 1"]
            + ["test_rank_2-1_8.ckpt names rank 1"],
        ),
        ({"meta_files": (replace(META, file="test-1_9.ckpt"),)}, ["test-1_9.ckpt names step 1_9, not 1_8"]),
        ({"actions": (copy(0, [2], set_aside="ckpt_dir0/test-1_8.ckpt.outvoted"),)}, []),
        (
            {"actions": (copy(0, [2], set_aside="ckpt_dir0/test-1_8.ckpt.old"),)},
            ["ckpt_dir0/test-1_8.ckpt.old does not end in .outvoted behind that name"],
        ),
        ({"set_aside": (ASIDE,)}, []),
        ({"set_aside": (replace(ASIDE, path="ckpt_dir1/notes.txt"),)}, ["ckpt_dir1/notes.txt is no name of a slice"]),
        ({"set_aside": (replace(ASIDE, rank=3),)}, ["ckpt_dir1/test-9_9.ckpt names rank 1"]),
        *(
            (
                {"set_aside": (replace(ASIDE, rank=rank, path=f"ckpt_dir{rank}/test-1_8.ckpt"),)},
                [f"ckpt_dir{rank}/test-1_8.ckpt is a slice that the plan keeps, writes or reads"],
            )
            for rank in (0, 2, 3)
        ),
        (
            {"ranks": (RankVerdict(1, "ok", "keep", "x", ASIDE.path),), "set_aside": (ASIDE,)},
            [f"{ASIDE.path} is a slice that the plan keeps, writes or reads"],
        ),
    ],
)
def test_every_path_of_a_plan_that_is_for_something_else_is_named(changes, problems):
    plan = replace(PLAN, **changes)
    assert [f"{path} {problem}" for _, path, problem in name_problems(plan)] == problems
    check(plan, problems)


def check(plan, problems):
    """Check that reading a plan refuses the first problem, and only a plan that has one."""
    if problems:
        with pytest.raises(FormatError, match="rename that file, then plan again") as refused:
            check_names(plan, "p.json")
        assert str(refused.value).startswith("p.json is to ")
    else:
        check_names(plan)


WEIGHTS = "iteration_00000008/a-{}-{:07d}-0000004.safetensors"


def file(kind, rank, sources, **changes):
    """Return a copy of a file of an iteration to a rank."""
    first, *others = [Replica(one, WEIGHTS.format(kind, one), STATE) for one in sources]
    made = CopyAction(rank, first, WEIGHTS.format(kind, rank), None, "x", "layout", (), tuple(others))
    return replace(made, **changes)


def owned(*numbers):
    """Return verdicts by which the files of these numbers are those of ranks 0, 1, ..."""
    return tuple(RankVerdict(rank, "ok", "keep", "x", WEIGHTS.format("opt", one)) for rank, one in enumerate(numbers))


ITERATION = replace(PLAN, step=Step(-1, 8), actions=(file("opt", 0, [2, 3]), file("model", 0, [1])), ranks=())
MODEL = WEIGHTS.format("model", 0)


@pytest.mark.parametrize(
    ("changes", "problems"),
    [
        ({}, []),
        ({"actions": (file("opt", 1, [2]),)}, []),
        (
            {"actions": (file("opt", 1, [2], target="opt.safetensors"),)},
            ["is no name of a model or optimizer file"] + ["is no  file, for the  file 'opt.safetensors'"],
        ),
        ({"actions": (file("opt", 0, [2], target=MODEL),)}, ["is no model file, for the model file " + repr(MODEL)]),
        ({"actions": (file("opt", 4, [2]),)}, ["has the number 4, of 4 files"]),
        ({"actions": (replace(file("opt", 1, [2]), rank=3),)}, ["is the file of rank 1"]),
        ({"step": Step(-1, 9)}, 5 * ["is not in the directory of iteration 9"]),
        ({"actions": (file("opt", 1, [2]),), "ranks": owned(0, 1, 2)}, []),
        (
            {"actions": (file("opt", 1, [2]),), "ranks": owned(1, 2, 0)},
            ["is the file of rank 0", "is the file of rank 1"],
        ),
        (
            {"actions": (file("opt", 1, [2]), file("model", 1, [2])), "ranks": owned(1, 1, 2)},
            ["is the file of two ranks"],
        ),
        ({"group_files": (GroupWrite(1, "group_info.pb", (1, 2)),)}, ["is no file of an iteration"]),
        ({"strategy_files": (STRATEGY,)}, ["is no file of an iteration"]),
        ({"partials": (replace(partial("x"), sources=(), target=MODEL.replace(".s", ".partial.s"), rank=0),)}, []),
        ({"partials": (replace(partial("x"), sources=(), target=MODEL, rank=0),)}, ["is no name for parts of a file"]),
        (
            {"actions": (file("opt", 1, [2], target=WEIGHTS.format("opt", 1).replace(".s", ".partial.s")),)},
            [
                "is no name of a model or optimizer file",
                f"is no  file, for the  file {WEIGHTS.format('opt', 1).replace('.s', '.partial.s')!r}",
            ],
        ),
        *(
            ({"documents": (DocumentWrite(target, value, None, "x"),)}, problems)
            for target, value, problems in [
                ("iteration_00000008/metadata.json", COMMON, []),
                ("iteration_00000008/common.json", COMMON, []),
                ("iteration_00000009/common.json", COMMON, ["is not in the directory of iteration 8"]),
                ("common.json", COMMON, ["is not in the directory of iteration 8"]),
                ("iteration_00000008/x.json", COMMON, ["is no name of a document"]),
                ("latest_checkpointed_iteration.txt", 8, []),
                ("latest_checkpointed_iteration.txt", 9, ["names iteration 9, not 8"]),
                ("iteration_00000008/latest_checkpointed_iteration.txt", 8, ["is no place for it"]),
            ]
        ),
    ],
)
def test_every_path_of_an_iteration_that_is_for_something_else_is_named(changes, problems):
    plan = replace(ITERATION, **changes)
    assert [problem for _, _, problem in name_problems(plan)] == problems
    check(plan, problems)


@pytest.mark.parametrize("root", ["/tree/iteration_00000008", "/tree/iteration_00000008/"])
def test_a_tree_may_be_the_directory_of_one_iteration(root):
    action = file("opt", 1, [2], target="a-opt-0000001-0000004.safetensors")
    action = replace(action, replica=Replica(2, "a-opt-0000002-0000004.safetensors", STATE))
    plan = replace(
        ITERATION, root=root, actions=(action,), documents=(DocumentWrite("common.json", COMMON, None, "x"),)
    )
    assert list(name_problems(plan)) == []
    elsewhere = replace(plan, root="/tree/run")
    assert [problem for _, _, problem in name_problems(elsewhere)] == 3 * ["is not in the directory of iteration 8"]


def test_a_slice_that_many_ranks_read_is_named_once_and_a_long_path_in_part():
    path = f"{'x' * 600}/test-1_8.ckpt"
    wrong = Replica(2, path, STATE)
    plan = replace(PLAN, actions=tuple(replace(copy(rank, [3]), replica=wrong) for rank in (0, 1)))
    assert [found[1:] for found in name_problems(plan)] == [(path, "does not name rank 2")]
    with pytest.raises(FormatError) as refused:
        check_names(plan)
    assert f"{'x' * 500}..." in str(refused.value)
    assert "x" * 501 not in str(refused.value)
