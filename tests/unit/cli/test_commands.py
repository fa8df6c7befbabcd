"""What the commands make of plans and trees; none needs a process of its own."""

import json
import os
import shutil
from dataclasses import replace

import pytest
from click.testing import CliRunner

from ms_recover import api
from ms_recover.cli import apply, plan, verify
from ms_recover.cli.output import print_error, print_json, print_text
from ms_recover.cli.plan_file import PlanTarget, plan_target, write_plan
from ms_recover.cli.tree import plan_code
from ms_recover.errors import MissingInputError, StorageError, UsageError
from ms_recover.formats.plan_json import plan_to_json
from ms_recover.model.plan import RankVerdict
from ms_recover.model.steps import Step
from ms_recover.system_errors import user_name
from ms_recover.testing.trees import make_tree

OLD, NEW = Step(1, 8), Step(2, 8)


@pytest.fixture
def going_back(tmp_path):
    """Make a tree whose newest step has lost both replicas of ranks 1 and 3, and rank 0 of the older one."""
    tree = make_tree(tmp_path / "tree", steps=[OLD, NEW])
    for rank in (1, 3):
        (tree / f"ckpt_dir{rank}" / "test-2_8.ckpt").unlink()
    (tree / "ckpt_dir0" / "test-1_8.ckpt").unlink()
    return tree


def run(command, *arguments):
    done = CliRunner().invoke(command, [str(argument) for argument in arguments], standalone_mode=False)
    if done.exception is not None:
        raise done.exception
    return done.return_value, done.output


def contents(tree):
    return {path: path.read_bytes() for path in tree.rglob("*") if path.is_file()}


def test_going_back_stands_in_the_headline_of_plan_and_apply(going_back):
    code, out = run(plan.command, going_back)
    assert code == 0
    assert "going back from step 2_8 (" in out.splitlines()[1]
    code, out = run(apply.command, going_back, "--json")
    assert code == 0
    assert [(one["epoch"], one["step"]) for one in json.loads(out)["rejected_steps"]] == [(2, 8)]
    assert "going back from step 2_8 (" in run(apply.command, going_back)[1].splitlines()[1]


@pytest.mark.parametrize("command", [plan.command, apply.command], ids=["plan", "apply"])
def test_require_newest_ends_with_4_and_does_nothing(command, going_back):
    before = contents(going_back)
    code, out = run(command, going_back, "--require-newest")
    assert code == 4
    assert out.splitlines()[1].startswith("REFUSED by --require-newest")
    code, out = run(command, going_back, "--require-newest", "--json")
    assert code == 4
    assert json.loads(out)["rejected_steps"][0]["step"] == 8
    assert contents(going_back) == before


def test_require_newest_saves_no_plan(going_back, tmp_path):
    assert run(plan.command, going_back, "--require-newest", "-o", tmp_path / "plan.json")[0] == 4
    assert not (tmp_path / "plan.json").exists()


def test_an_explanation_is_given_of_a_refused_plan_too(going_back):
    code, out = run(plan.command, going_back, "--require-newest", "--explain", "1")
    assert code == 4
    assert out.startswith("The slice of rank 1 at step 1_8, parameter by parameter")


def test_require_newest_is_content_with_the_newest(tmp_path):
    tree = make_tree(tmp_path / "tree", steps=[OLD, NEW])
    (tree / "ckpt_dir0" / "test-2_8.ckpt").unlink()
    assert run(apply.command, tree, "--require-newest")[0] == 0
    assert (tree / "ckpt_dir0" / "test-2_8.ckpt").exists()


def test_the_next_command_repeats_the_options(going_back):
    out = run(plan.command, going_back, "--step", "1_8", "--lost", "0", "--no-crc", "--tolerate", "x y")[1]
    assert out.endswith(f"Next: recover-ckpt apply {going_back} --step 1_8 --lost 0 --tolerate 'x y' --no-crc\n")


@pytest.mark.parametrize(
    ("states", "disagreements", "code"),
    [
        (("ok", "unreadable"), (), 1),
        (("missing", "unreadable"), (), 1),
        (("damaged", "missing"), (), 4),
        (("damaged", "missing"), ("they differ",), 5),
    ],
)
def test_the_code_of_a_plan_without_a_step(states, disagreements, code, tmp_path):
    made = api.plan(api.scan(make_tree(tmp_path / "tree")))
    ranks = tuple(
        RankVerdict(rank, state, "keep" if state == "ok" else "unrecoverable", "why")
        for rank, state in enumerate(states)
    )
    assert plan_code(replace(made, step=None, ranks=ranks, disagreements=disagreements)) == code
    assert plan_code(made) == 0


def test_an_unreadable_rank_that_is_replaced_is_no_error(tmp_path):
    made = api.plan(api.scan(make_tree(tmp_path / "tree")))
    ranks = (RankVerdict(0, "unreadable", "copy", "permission denied"), *made.ranks[1:])
    assert plan_code(replace(made, ranks=ranks)) == 0


def test_options_that_shape_a_plan_do_not_go_with_a_plan(tmp_path, going_back):
    file = tmp_path / "plan.json"
    assert run(plan.command, going_back, "-o", file)[0] == 0
    for option in (["--lost", "1"], ["--no-crc"], ["--require-newest"], ["--step", "1_8"]):
        done = CliRunner().invoke(apply.command, [str(file), *option])
        assert done.exit_code == 2
        assert f"{option[0]} shapes a plan" in done.output


def test_options_of_other_nodes_go_with_from(going_back):
    for option in (["--ranks", "1"], ["--timeout", "10"], ["--token-file", "x"], ["--key", "x"]):
        done = CliRunner().invoke(plan.command, [str(going_back), *option])
        assert done.exit_code == 2
        assert f"{option[0]} goes with --from" in done.output


def test_verify_says_ranks(tmp_path):
    tree = make_tree(tmp_path / "tree", data_parallel=3)
    code, out = run(verify.command, tree)
    assert code == 0
    assert "SOUND: all 6 slices" in out
    assert "0-5 by vote" in out


def test_verify_of_a_lone_slice_rests_on_structure(tmp_path):
    tree = make_tree(tmp_path / "tree", data_parallel=1, model_parallel=1)
    code, out = run(verify.command, tree)
    assert code == 0
    assert "SOUND: all" not in out
    assert "structure only" in out.splitlines()[1]


def test_the_target_of_a_plan(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert plan_target("-").kind == "stdout"
    assert plan_target("/dev/fd/1").kind == "stdout"
    assert plan_target("/dev/stderr") == PlanTarget("descriptor", "/dev/stderr", 2)
    assert plan_target("/proc/self/fd/12").descriptor == 12
    assert plan_target("/dev/null").kind == "stream"
    assert plan_target("new.json") == PlanTarget("file", str(tmp_path / "new.json"))
    os.mkfifo("pipe")
    assert plan_target("pipe").kind == "stream"
    with pytest.raises(MissingInputError, match="does not exist"):
        plan_target("none/new.json")


def test_what_appeared_meanwhile_is_not_replaced(tmp_path):
    target = plan_target(str(tmp_path / "plan.json"))
    (tmp_path / "plan.json").write_text("notes")
    with pytest.raises(UsageError, match="nothing but an older plan is replaced"):
        write_plan(target, "{}")
    assert (tmp_path / "plan.json").read_text() == "notes"


@pytest.mark.parametrize(
    ("change", "replaced"),
    [({}, True), ({"version": 1}, True), ({"actions": None}, False), ({"ranks": KeyError}, False)],
)
def test_only_a_plan_counts_as_a_plan(change, replaced, tmp_path, going_back):
    data = {**plan_to_json(api.plan(api.scan(going_back))), **change}
    data = {key: value for key, value in data.items() if value is not KeyError}
    (tmp_path / "plan.json").write_text(json.dumps(data))
    if replaced:
        assert plan_target(str(tmp_path / "plan.json")).kind == "file"
    else:
        with pytest.raises(UsageError):
            plan_target(str(tmp_path / "plan.json"))


def test_a_plan_to_a_closed_descriptor_is_a_storage_error():
    with pytest.raises(StorageError, match="/dev/fd/999"):
        write_plan(plan_target("/dev/fd/999"), "{}")


def test_what_is_printed_steers_no_terminal(capsys):
    print_text("one\x1b[2J\ntwo\t\u202e")
    print_error("three\x07")
    print_json({"name": "\x1b\u202e"})
    done = capsys.readouterr()
    assert done.out.splitlines()[:2] == ["one\\x1b[2J", "two\\x09\\u202e"]
    assert json.loads("".join(done.out.splitlines()[2:])) == {"name": "\x1b\u202e"}
    assert "\x1b" not in done.out
    assert done.err == "three\\x07\n"


def test_the_user_is_named_with_the_number():
    assert f"uid {os.geteuid()}" in user_name()


def test_a_tree_that_does_not_exist(tmp_path):
    shutil.rmtree(tmp_path)
    with pytest.raises(MissingInputError):
        run(plan.command, tmp_path)


def test_the_detailed_exit_code_tells_complete_from_something_to_do(tmp_path):
    tree = make_tree(tmp_path / "tree")
    assert run(plan.command, tree, "--detailed-exitcode")[0] == 0
    (tree / "ckpt_dir0" / "test-1_8.ckpt").unlink()
    assert run(plan.command, tree)[0] == 0
    for form in ([], ["--json"], ["--explain", "0"]):
        assert run(plan.command, tree, "--detailed-exitcode", *form)[0] == 10
    assert run(apply.command, tree)[0] == 0
    assert run(plan.command, tree, "--detailed-exitcode")[0] == 0


def test_a_lost_rank_list_is_something_to_do(tmp_path):
    tree = make_tree(tmp_path / "tree")
    (tree / "ckpt_dir0" / "group_info.pb").unlink()
    code, out = run(plan.command, tree, "--detailed-exitcode")
    assert code == 10
    assert "1 rank list to write" in out.splitlines()[1]
    assert f"Next: recover-ckpt apply {tree}\n" in out
    assert run(apply.command, tree)[0] == 0
    assert (tree / "ckpt_dir0" / "group_info.pb").exists()
    assert run(plan.command, tree, "--detailed-exitcode")[0] == 0


def test_the_detailed_exit_code_leaves_the_others_as_they_are(going_back):
    assert run(plan.command, going_back, "--require-newest", "--detailed-exitcode")[0] == 4
    for rank in (1, 3):
        (going_back / f"ckpt_dir{rank}" / "test-1_8.ckpt").unlink()
    assert run(plan.command, going_back, "--detailed-exitcode")[0] == 4


def test_the_reports_of_apply_and_verify_end_with_bytes_seconds_and_rate(tmp_path):
    tree = make_tree(tmp_path / "tree")
    (tree / "ckpt_dir0" / "test-1_8.ckpt").unlink()
    assert run(apply.command, tree)[1].splitlines()[-1].startswith("Written: ")
    last = run(verify.command, tree)[1].splitlines()[-1]
    assert last.startswith("Read: ")
    assert last.endswith(" GB/s)")
