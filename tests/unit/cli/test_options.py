"""Options become frozen values at the edge, and frozen values become options again."""

import re
from dataclasses import fields

import click
import pytest
from click.testing import CliRunner

from ms_recover.cli import apply, complete, plan, scan, seal, serve, verify
from ms_recover.cli.fields import FieldOption, words_of
from ms_recover.cli.main import COMMANDS, LazyGroup, group
from ms_recover.cli.options import (
    EngineOptions,
    PeerOptions,
    parse_ranks,
    takes_homes,
    takes_peers,
    takes_plan,
    takes_scan,
)
from ms_recover.cli.topology import TopologyOptions, topology_options
from ms_recover.model.axes import Axes
from ms_recover.model.options import PlanOptions, ScanOptions
from ms_recover.model.steps import Step

TYPES = {
    "scan": ScanOptions,
    "plan": PlanOptions,
    "peers": PeerOptions,
    "engine": EngineOptions,
    "topology": TopologyOptions,
}
WITH_OPTIONS = [module.command for module in (apply, complete, plan, scan, seal, serve, verify)]

EVERYTHING = {
    "plan": PlanOptions(
        step=Step(2, 77),
        lost=frozenset([0, 1, 2, 9]),
        world_size=16,
        groups=(frozenset([0, 4]), frozenset([1, 5])),
        axes=Axes.parse("dp=2,mp=4"),
        order=("dp", "tp"),
        optimizer_shards=-1,
        newest=True,
        tolerate=("a*", "b c"),
        quick=True,
        ranks=frozenset([8, 9]),
        require_newest=True,
    ),
    "scan": ScanOptions(pattern="r{rank}", group_info=("x", "y z"), strategy=("s",), crc=False),
    "peers": PeerOptions(servers=("a:1", "b:2"), timeout=2.5, token_file="t", certificate="c", key="k", authority="a"),
    "topology": TopologyOptions(hostfile="a b", ranks_per_host=8, ignore_hosts=True),
    "engine": EngineOptions(
        engine="dask://h:1", worker_timeout=5.0, homes=((frozenset([8, 9]), "n1"), (frozenset([3]), "n2"))
    ),
}


@pytest.fixture
def received():
    """Return a command that takes all options, and the values that it received."""
    values = {}

    @click.command()
    @takes_plan()
    @takes_peers
    @takes_homes
    @takes_scan
    @topology_options
    def command(**given):
        values.update(given)
        return 0

    def run(*arguments, env=None):
        values.clear()
        done = CliRunner().invoke(command, arguments, env=env, standalone_mode=False)
        if done.exception:
            raise done.exception
        return dict(values)

    run.command = command
    return run


def test_without_options_every_value_is_its_default(received):
    assert received() == {target: kind() for target, kind in TYPES.items()}


def test_values_survive_the_way_to_words_and_back(received):
    words = words_of(received.command, EVERYTHING)
    assert received(*words) == EVERYTHING
    assert "0-2,9" in words


def test_defaults_give_no_words(received):
    assert words_of(received.command, {target: kind() for target, kind in TYPES.items()}) == []


def test_a_value_of_the_environment_is_taken_and_not_spelled(received, monkeypatch):
    monkeypatch.setenv("MS_RECOVER_KEY", "/secret/key.pem")
    values = received()
    assert values["peers"] == PeerOptions(key="/secret/key.pem")
    assert words_of(received.command, values) == []


@pytest.mark.parametrize("command", WITH_OPTIONS, ids=lambda command: command.name)
def test_every_option_sets_a_field_that_exists(command):
    options = [option for option in command.params if isinstance(option, FieldOption)]
    assert options
    for option in options:
        assert option.field in {field.name for field in fields(TYPES[option.target])}


def test_every_field_has_an_option(received):
    """No choices of the operator: a tree of a node among others may be empty, some verbs need no headers, and the
    experiments are those of a program, where an operator gives ``--run``.
    """
    declared = {(option.target, option.field) for option in received.command.params}
    wanted = {(target, field.name) for target, kind in TYPES.items() for field in fields(kind)}
    assert wanted - declared == {("scan", "may_be_empty"), ("scan", "headers"), ("plan", "experiments")}


@pytest.mark.parametrize(
    ("text", "ranks"), [("0", [0]), ("0,3", [0, 3]), ("8-10, 1", [1, 8, 9, 10]), ("1048575", [1048575])]
)
def test_ranks_are_read_and_spelled(text, ranks, received):
    assert parse_ranks(text) == frozenset(ranks)
    option, spelled = words_of(received.command, {"plan": PlanOptions(lost=frozenset(ranks))})
    assert option == "--lost"
    assert parse_ranks(spelled) == frozenset(ranks)


@pytest.mark.parametrize("text", ["", "x", "1-", "3-1", "-1", "1048576", "0-99999999", "1,,2", "\u0663", "0:2", "0-4:"])
def test_what_is_no_rank_is_refused(text, received):
    with pytest.raises(ValueError, match=r"neither a rank nor a range|not a range of ranks"):
        parse_ranks(text)
    with pytest.raises(click.BadParameter):
        received(f"--lost={text}")


def test_ranks_with_a_stride_are_read():
    assert parse_ranks("0-12:4,13") == frozenset([0, 4, 8, 12, 13])
    with pytest.raises(ValueError, match="'0-4:0' has no stride"):
        parse_ranks("0-4:0")


@pytest.mark.parametrize(("text", "shards"), [("2", 2), ("all", -1), ("-1", -1)])
def test_optimizer_shards_are_read(text, shards, received):
    assert received("--axes", "dp=4", "--optimizer-shards", text)["plan"].optimizer_shards == shards


@pytest.mark.parametrize(
    ("option", "text", "why"),
    [
        ("--optimizer-shards", "0", "'0' is no number of shards"),
        ("--optimizer-shards", "x", "'x' is no number of shards"),
        ("--axes", "dp=2,zp=2", "axis 'zp' is none of tp, cp, ep, dp, pp"),
        ("--order", "tp,tp", "names an axis twice"),
        ("--group", "0,x", "neither a rank nor a range"),
    ],
)
def test_an_invalid_word_is_refused(option, text, why, received):
    with pytest.raises(click.BadParameter, match=why):
        received(option, text)


@pytest.mark.parametrize("text", ["", "x", "77_", "_77", "1_2_3", "-1_5", "-5", "007", "1_07", "\u0663"])
def test_an_invalid_step_is_refused(text, received):
    with pytest.raises(click.BadParameter, match="EPOCH_STEP"):
        received(f"--step={text}")


def test_a_single_number_is_an_iteration(received):
    assert received("--step", "200")["plan"].step == Step.iteration(200)


def test_the_list_of_commands_is_that_of_their_modules():
    assert isinstance(group, LazyGroup)
    context = click.Context(group)
    for name in COMMANDS:
        command = group.get_command(context, name)
        assert command is not None
        assert command.name == name
        assert command.help
    assert group.get_command(context, "destroy") is None


def test_help_lists_every_command_and_exit_code():
    done = CliRunner().invoke(group, ["--help"])
    assert done.exit_code == 0
    for name, line in COMMANDS.items():
        assert re.search(rf"^  {name} +{re.escape(line)}$", done.output, re.MULTILINE)
    for code in ("0", "1", "2", "3", "4", "5", "130", "143"):
        assert f"\n    {code} " in done.output


@pytest.mark.parametrize("field", [field.name for field in fields(PlanOptions) if field.name != "experiments"])
def test_a_field_that_is_left_out_has_no_option_and_the_others_have(field):
    def taken(without):
        command = click.command()(takes_plan(without=without)(lambda **given: 0))
        return [option.field for option in command.params]

    assert taken(()).count(field) == 1
    assert taken((field,)) == [name for name in taken(()) if name != field]
