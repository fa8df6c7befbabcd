"""Help in sections with an example, and suggestions for mistyped words."""

import re
import shlex

import click
import pytest
from click.testing import CliRunner

from ms_recover.cli.main import COMMANDS, group

SECTIONS = ["Where the slices are", "What to recover", "How it is done", "Other nodes", "Where ranks live", "Output"]


def shown(*arguments, columns=80):
    done = CliRunner().invoke(group, arguments, env={"COLUMNS": str(columns)}, prog_name="recover-ckpt")
    assert done.exit_code == 0, done.output
    return done.output


def test_the_help_of_plan_has_the_sections_in_their_order():
    headings = re.findall(r"^(\S.*):$", shown("plan", "--help"), re.MULTILINE)
    assert headings == ["Where the slices are", "What to recover", "Other nodes", "Where ranks live", "Output"]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_of_a_command_stands_in_one_section(command):
    text = shown(command, "--help")
    assert set(re.findall(r"^(\S.*):$", text, re.MULTILINE)) <= set(SECTIONS)
    for option in group.get_command(click.Context(group), command).params:
        if isinstance(option, click.Option):
            found = re.findall(rf"^  .*{re.escape(max(option.opts, key=len))}(?= |$|,)", text, re.MULTILINE)
            assert len([line for line in found if line.lstrip().startswith("-")]) == 1, option.opts


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_ends_with_an_example_that_can_be_parsed(command):
    text = shown(command, "--help")
    example = text[text.index("  Example\n") :].split("\n\n")[0].splitlines()[1:]
    assert example
    for line in example:
        words = shlex.split(re.search(r"recover-ckpt ([^>)\"]*)", line)[1])
        assert words[0] == command
        group.get_command(click.Context(group), command).make_context(command, words[1:])
    assert text.index("  Example\n") > text.index("Output:")


@pytest.mark.parametrize("columns", [40, 60, 80])
@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_breaks_no_word(command, columns):
    words = [command, "--help"] if command else ["--help"]
    wide, narrow = (shown(*words, columns=width).split("  Example\n")[0] for width in (80, columns))
    assert sorted(narrow.split()) == sorted(wide.split())
    longest = max(map(len, wide.split()))
    assert all(len(line) <= max(columns, longest + 8) for line in narrow.splitlines())


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("aply", "apply"), ("paln", "plan"), ("ver", "verify"), ("s", "scan or seal or serve"), ("seel", "seal")],
)
def test_a_mistyped_command_names_the_one_that_is_meant(typed, meant):
    done = CliRunner().invoke(group, [typed, "x"])
    assert done.exit_code == 2
    assert f"No such command '{typed}'. Did you mean {meant}" in done.output


def test_a_command_that_is_like_none_lists_all():
    done = CliRunner().invoke(group, ["destroy"])
    assert done.exit_code == 2
    assert f"The commands are {', '.join(sorted(COMMANDS))}." in done.output


def test_a_mistyped_option_names_the_one_that_is_meant():
    done = CliRunner().invoke(group, ["plan", "x", "--stratgy", "y"])
    assert done.exit_code == 2
    assert "Did you mean" in done.output or "Possible options" in done.output
    assert "--strategy" in done.output


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_the_script_of_a_shell(shell):
    text = shown("completion", shell)
    assert "_RECOVER_CKPT_COMPLETE" in text
    assert f"{shell}_complete" in text
    assert "%(" not in text


def test_completion_of_another_shell_is_refused():
    done = CliRunner().invoke(group, ["completion", "tcsh"])
    assert done.exit_code == 2
    assert "bash" in done.output
