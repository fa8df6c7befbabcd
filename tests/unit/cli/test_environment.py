"""Every option comes from the environment too, by one name for all commands."""

import shutil
from collections import defaultdict

import click
import pytest

from ms_recover.cli.command import PREFIX, given_variables, variable_of
from ms_recover.cli.main import COMMANDS, group
from ms_recover.model.steps import Step
from ms_recover.testing.trees import make_tree
from tests.support.command_line import in_this_process

OPTIONS = [
    (name, option)
    for name in COMMANDS
    for option in group.get_command(click.Context(group), name).params
    if isinstance(option, click.Option)
]


@pytest.fixture
def tree(tmp_path):
    tree = make_tree(tmp_path / "tree", data_parallel=3)
    shutil.rmtree(tree / "ckpt_dir0")
    return tree


def values(command, environment, *arguments):
    """Return the parameters and frozen values of a command line, without running it."""
    with pytest.MonkeyPatch.context() as patched:
        for name, value in environment.items():
            patched.setenv(name, value)
        context = group.get_command(click.Context(group), command).make_context(command, list(arguments))
    found = dict(context.params)
    for target in ("scan", "plan", "peers"):
        found |= context.meta.get(f"ms_recover.{target}", {})
    return found


@pytest.mark.parametrize(("command", "option"), OPTIONS, ids=lambda one: getattr(one, "name", one))
def test_every_option_has_a_variable_that_is_its_long_name(command, option):
    assert given_variables(option)[0] == variable_of(option)
    own = {("metrics", "--watch"): "METRICS_WATCH"}
    long = max(option.opts, key=len)
    assert variable_of(option) == PREFIX + own.get((command, long), long[2:].replace("-", "_").upper())


def kind_of(option):
    """Return what may stand in the variable of an option."""
    number = isinstance(option.type, click.types.IntParamType | click.types.FloatParamType)
    return ("flag" if option.is_flag else "number" if number else "text", option.count, option.multiple, option.nargs)


def test_a_variable_is_of_one_kind_in_all_commands():
    kinds = defaultdict(lambda: defaultdict(list))
    for command, option in OPTIONS:
        kinds[variable_of(option)][kind_of(option)].append(command)
    assert {name: dict(found) for name, found in kinds.items() if len(found) > 1} == {}


def test_seconds_between_looks_and_the_flag_of_seal_are_two_variables():
    assert values("metrics", {"RECOVER_CKPT_METRICS_WATCH": "60", "RECOVER_CKPT_WATCH": "yes"}, "root")["watch"] == 60
    assert values("seal", {"RECOVER_CKPT_METRICS_WATCH": "60", "RECOVER_CKPT_WATCH": "yes"}, "root")["watch"] is True
    assert values("metrics", {"RECOVER_CKPT_WATCH": "1"}, "root")["watch"] is None


@pytest.mark.parametrize("command", [name for name, option in OPTIONS if "--strategy" in option.opts])
def test_strategy_files_of_every_command(command):
    found = values(
        command, {"RECOVER_CKPT_STRATEGY": "x.ckpt"}, "root", *(["0"] if command in ("complete", "copy") else [])
    )
    assert found["strategy"] == ("x.ckpt",)


@pytest.mark.parametrize(
    ("variable", "text", "field", "value"),
    [
        ("STRATEGY", "a b/{rank}.ckpt:c.ckpt", "strategy", ("a b/{rank}.ckpt", "c.ckpt")),
        ("GROUP_INFO", "a.pb:b.pb", "group_info", ("a.pb", "b.pb")),
        ("TOLERATE", "seed* *.mean", "tolerate", ("seed*", "*.mean")),
        ("FROM", "node1:1 node2:2", "servers", ("node1:1", "node2:2")),
        ("LOST", "0,3", "lost", frozenset([0, 3])),
        ("WORLD_SIZE", "16", "world_size", 16),
        ("QUICK", "1", "quick", True),
        ("QUICK", "no", "quick", False),
        ("NO_CRC", "true", "crc", False),
        ("TIMEOUT", "2.5", "timeout", 2.5),
        ("JSON", "yes", "as_json", True),
        ("OUTPUT", "plan.json", "output", "plan.json"),
        ("DETAILED_EXITCODE", "1", "detailed_exitcode", True),
        ("EXPLAIN", "3", "explain", 3),
    ],
)
def test_values_of_all_kinds(variable, text, field, value):
    assert values("plan", {PREFIX + variable: text}, "root")[field] == value


def test_the_command_line_comes_first_and_an_empty_variable_is_none():
    assert values("plan", {"RECOVER_CKPT_LOST": "0"}, "root", "--lost", "1")["lost"] == frozenset([1])
    assert "lost" not in values("plan", {"RECOVER_CKPT_LOST": ""}, "root")


def test_the_own_variable_of_a_tls_file_comes_before_that_of_all_programs():
    both = {"RECOVER_CKPT_KEY": "own.key", "MS_RECOVER_KEY": "worlds.key"}
    assert values("plan", both, "root")["key"] == "own.key"
    assert values("plan", {"MS_RECOVER_KEY": "worlds.key"}, "root")["key"] == "worlds.key"


def test_the_environment_shapes_a_plan_and_the_next_command_spells_it(tree):
    done = in_this_process("plan", tree, env={"RECOVER_CKPT_LOST": "1", "RECOVER_CKPT_NO_CRC": "1"})
    assert done.code == 0, done.err
    assert f"Next: recover-ckpt apply {tree} --lost 1 --no-crc\n" in done.out
    assert done.err == ""


@pytest.mark.parametrize(
    ("variable", "text", "words"),
    [
        ("RECOVER_CKPT_STEP", "77_", "RECOVER_CKPT_STEP (for --step)"),
        ("RECOVER_CKPT_LOST", "x", "RECOVER_CKPT_LOST (for --lost)"),
        ("RECOVER_CKPT_WORLD_SIZE", "0", "RECOVER_CKPT_WORLD_SIZE (for --world-size)"),
        ("RECOVER_CKPT_QUICK", "perhaps", "RECOVER_CKPT_QUICK (for --quick)"),
        ("RECOVER_CKPT_JSON", "perhaps", "RECOVER_CKPT_JSON (for --json)"),
        ("RECOVER_CKPT_OUTPUT", "/none/plan.json", "from the environment: RECOVER_CKPT_OUTPUT"),
        ("RECOVER_CKPT_RANKS", "1", "from the environment: RECOVER_CKPT_RANKS"),
        ("RECOVER_CKPT_STRATEGY", "/none", "from the environment: RECOVER_CKPT_STRATEGY"),
        ("RECOVER_CKPT_STEP", "9_9", "from the environment: RECOVER_CKPT_STEP"),
    ],
)
def test_an_error_names_the_variable(variable, text, words, tree):
    done = in_this_process("plan", tree, env={variable: text})
    assert done.code in (2, 3)
    assert words in done.err
    assert done.out == ""


def test_an_error_of_the_command_line_names_no_variable(tree):
    done = in_this_process("plan", tree, "--step", "77", env={"RECOVER_CKPT_STEP": "1_8"})
    assert done.code == 2
    assert "RECOVER_CKPT" not in done.err


def test_a_misspelled_variable_is_named_and_those_of_other_commands_are_not(tree):
    done = in_this_process("plan", tree, env={"RECOVER_CKPT_STRATGY": "x", "RECOVER_CKPT_DRY_RUN": "1"})
    assert done.code == 0
    assert done.err == (
        "recover-ckpt: RECOVER_CKPT_STRATGY names no option and is not used; did you mean RECOVER_CKPT_STRATEGY?\n"
    )


def test_a_saved_plan_is_applied_as_it_is_and_says_so(tree, tmp_path):
    ambient = {"RECOVER_CKPT_LOST": "1", "RECOVER_CKPT_TIMEOUT": "3"}
    assert in_this_process("plan", tree, "-o", tmp_path / "plan.json", env=ambient).code == 0
    done = in_this_process("apply", tmp_path / "plan.json", env=ambient)
    assert done.code == 0, done.err
    assert "RECOVER_CKPT_LOST, RECOVER_CKPT_TIMEOUT shaped the plan" in done.err
    assert (tree / "ckpt_dir0" / "test-1_8.ckpt").exists()


def test_the_refusal_of_older_steps_holds_for_saved_plans_too(tmp_path):
    tree = make_tree(tmp_path / "tree", steps=[Step(1, 8), Step(2, 8)])
    for rank in (1, 3):
        (tree / f"ckpt_dir{rank}" / "test-2_8.ckpt").unlink()
    lost = tree / "ckpt_dir0" / "test-1_8.ckpt"
    lost.unlink()
    assert in_this_process("plan", tree, "-o", tmp_path / "plan.json").code == 0
    refused = in_this_process("apply", tmp_path / "plan.json", env={"RECOVER_CKPT_REQUIRE_NEWEST": "1"})
    assert refused.code == 4
    assert not lost.exists()
    assert in_this_process("apply", tmp_path / "plan.json").code == 0
    assert lost.exists()
