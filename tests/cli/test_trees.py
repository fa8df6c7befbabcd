"""The layouts that MindSpore users have, and inputs that are not what they should be."""

import json
import os
import shutil

import pytest

from ms_recover.model.steps import Step
from ms_recover.testing.trees import make_tree, record, slice_bytes

NAME = "test-1_8.ckpt"


@pytest.fixture
def tree(tmp_path):
    return make_tree(tmp_path / "tree")


@pytest.mark.parametrize(
    ("directory", "name"),
    [
        ("ckpt_dir{rank}", "test-{step}.ckpt"),
        ("rank_{rank}", "net-with-dashes-{step}.ckpt"),
        ("checkpoints/rank_{rank}", "test-{step}.ckpt"),
        ("checkpoint/rank_{rank}", "llama_rank_{rank}-{step}.ckpt"),
        ("checkpoints/ckpt_dir{rank}", "test_1-{step}.ckpt"),
    ],
)
def test_known_layouts(directory, name, tmp_path, recover_ckpt):
    tree = make_tree(tmp_path / "tree", directory=directory, name=name, steps=[Step(1, 8), Step(2, 8)])
    lost = tree / directory.format(rank=1)
    target = lost / name.format(rank=1, step="2_8")
    truth = target.read_bytes()
    shutil.rmtree(lost)
    done = recover_ckpt("apply", tree)
    assert done.code == 0, done.err
    assert target.read_bytes() == truth
    assert sorted(os.listdir(lost)) == sorted(["group_info.pb", target.name, f"{target.name}.manifest.json"])


def test_pattern_and_rank_lists_elsewhere(tmp_path, recover_ckpt):
    tree = make_tree(tmp_path / "tree", directory="r{rank}/slices", name="{step}.r{rank}.ckpt")
    lists = tmp_path / "lists"
    for rank in range(4):
        (lists / f"{rank}").mkdir(parents=True)
        (tree / f"r{rank}/slices/group_info.pb").rename(lists / f"{rank}" / "group_info.pb")
    truth = (tree / "r3/slices/1_8.r3.ckpt").read_bytes()
    shutil.rmtree(tree / "r3")
    pattern = ("--pattern", "r{rank}/slices/{epoch}_{step}.r{rank}.ckpt")
    without = recover_ckpt("plan", tree, *pattern, "--world-size", "4", "--json")
    assert without.code == 4
    done = recover_ckpt("apply", tree, *pattern, "--group-info", f"{lists}/{{rank}}/group_info.pb")
    assert done.code == 0, done.err
    assert (tree / "r3/slices/1_8.r3.ckpt").read_bytes() == truth
    relative = recover_ckpt("plan", "tree", *pattern, "--group-info", "lists/{rank}/group_info.pb", cwd=tmp_path)
    assert relative.code == 0, relative.err


def test_rank_lists_one_by_one(tree, recover_ckpt, tmp_path):
    (tree / "ckpt_dir2/group_info.pb").rename(tmp_path / "saved.pb")
    for rank in (0, 1, 3):
        (tree / f"ckpt_dir{rank}/group_info.pb").unlink()
    shutil.rmtree(tree / "ckpt_dir0")
    assert recover_ckpt("plan", tree).code == 4
    assert recover_ckpt("plan", tree, "--group-info", tmp_path / "saved.pb").code == 0
    assert recover_ckpt("plan", tree, "--group-info", tmp_path / "none.pb").code == 3
    assert recover_ckpt("plan", tree, "--group-info", "x{what}.pb").code == 2


def test_plan_in_a_file_is_applied(tree, recover_ckpt, tmp_path):
    truth = (tree / "ckpt_dir0" / NAME).read_bytes()
    shutil.rmtree(tree / "ckpt_dir0")
    plan = tmp_path / "plan.json"
    made = recover_ckpt("plan", tree, "-o", plan)
    assert f"recover-ckpt apply {plan}" in made.out
    assert json.loads(plan.read_text()) == recover_ckpt("plan", tree, "--json").json
    shown = recover_ckpt("apply", plan, "--dry-run")
    assert shown.code == 0
    assert "ckpt_dir0" in shown.out
    assert not (tree / "ckpt_dir0").exists()
    assert recover_ckpt("apply", plan, "--lost", "1").code == 2
    done = recover_ckpt("apply", plan, "--json")
    assert done.code == 0
    assert done.json["results"][0]["status"] == "copied"
    assert (tree / "ckpt_dir0" / NAME).read_bytes() == truth


@pytest.mark.parametrize("dry", [(), ("--dry-run",)])
def test_plan_whose_source_changed_is_refused(dry, tree, recover_ckpt, tmp_path):
    shutil.rmtree(tree / "ckpt_dir0")
    recover_ckpt("plan", tree, "-o", tmp_path / "plan.json")
    os.utime(tree / "ckpt_dir2" / NAME, ns=(7, 7))
    refused = recover_ckpt("apply", tmp_path / "plan.json", *dry)
    assert refused.code == 5
    assert "plan again" in refused.err
    assert not (tree / "ckpt_dir0").exists()


@pytest.mark.parametrize(
    "change",
    [
        lambda plan: plan["actions"][0].update(target="../outside.ckpt"),
        lambda plan: plan["actions"][0].update(source="/etc/passwd"),
        lambda plan: plan["actions"][0].update(target="a//b"),
        lambda plan: plan["actions"][0].update(bytes=-1),
        lambda plan: plan["actions"][0].update(bytes=True),
        lambda plan: plan["actions"][0].update(kind="run"),
        lambda plan: plan.update(version=99),
        lambda plan: plan.update(actions=plan["actions"] * 2),
        lambda plan: plan.update(step=None),
        lambda plan: plan.pop("ranks"),
        lambda plan: plan["group_files"][0].update(target="../x"),
        lambda plan: plan["group_files"][0].update(restore_ranks=[99999999999]),
    ],
)
def test_a_plan_that_was_tampered_with_is_refused(change, tree, recover_ckpt, tmp_path):
    shutil.rmtree(tree / "ckpt_dir0")
    plan = recover_ckpt("plan", tree, "--json").json
    change(plan)
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    refused = recover_ckpt("apply", tmp_path / "plan.json")
    assert refused.code == 3
    assert not (tree / "ckpt_dir0").exists()


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b"[" * 100_000, b'{"version": 1}'])
def test_files_that_are_no_plan(content, recover_ckpt, tmp_path):
    (tmp_path / "plan.json").write_bytes(content)
    assert recover_ckpt("apply", tmp_path / "plan.json").code == 3


def test_missing_and_empty_trees(tmp_path, recover_ckpt):
    for command in ("scan", "plan", "apply"):
        missing = recover_ckpt(command, tmp_path / "none")
        assert missing.code == 3
        assert "none" in missing.err
        assert recover_ckpt(command, tmp_path).code == 3
    (tmp_path / "ckpt_dir0").mkdir()
    assert recover_ckpt("plan", tmp_path).code == 3
    (tmp_path / "file").write_text("x")
    assert recover_ckpt("scan", tmp_path / "file").code == 3


@pytest.mark.parametrize("step", ["1", "x_y", "1_2_3", "-1_2", "01_2", "1_2\n"])
def test_steps_that_are_none(step, tree, recover_ckpt):
    assert recover_ckpt("plan", tree, f"--step={step}").code == 2


def test_contradicting_rank_lists_are_refused(tree, recover_ckpt):
    shutil.copy(tree / "ckpt_dir1/group_info.pb", tree / "ckpt_dir0/group_info.pb")
    refused = recover_ckpt("plan", tree)
    assert refused.code == 3
    assert "rank 0" in refused.err


@pytest.mark.parametrize("content", [b"", b"\x00" * 40, b"garbage", b"\x12\x04\x08\x00\x08"])
def test_a_malformed_rank_list_is_replaced_by_its_peers(content, tree, recover_ckpt):
    good = (tree / "ckpt_dir0/group_info.pb").read_bytes()
    (tree / "ckpt_dir0" / NAME).unlink()
    (tree / "ckpt_dir0/group_info.pb").write_bytes(content)
    plan = recover_ckpt("plan", tree, "--json").json
    assert any(note["path"] == "ckpt_dir0/group_info.pb" for note in plan["notes"])
    assert recover_ckpt("apply", tree).code == 0
    assert (tree / "ckpt_dir0/group_info.pb").read_bytes() == good


def test_leftovers_are_reported_and_never_used(tree, recover_ckpt):
    folder = tree / "ckpt_dir0"
    whole = (folder / NAME).read_bytes()
    for name in ("test-9_8.tmp", "test-graph.meta", "test-9_8_breakpoint.ckpt", ".test-9_8.ckpt.ms_recover.tmp"):
        (folder / name).write_bytes(whole)
    plan = recover_ckpt("plan", tree, "--json").json
    assert plan["step"] == {"epoch": 1, "step": 8}
    assert plan["rejected_steps"] == []
    assert len(plan["notes"]) == 4
    assert "breakpoint" in recover_ckpt("scan", tree).out


def test_two_slices_for_one_step(tree, recover_ckpt):
    folder = tree / "ckpt_dir0"
    same = folder / "test_1-1_8.ckpt"
    shutil.copy(folder / NAME, same)
    assert recover_ckpt("plan", tree).code == 0  # equal contents are not ambiguous
    same.chmod(0o600)
    same.write_bytes(
        slice_bytes({"embedding": 48, "dense.weight": 96, "moment1.dense.weight": 96, "global_step": 1}, 5)
    )
    os.utime(same, ns=(2**61, 2**61))
    ambiguous = recover_ckpt("plan", tree, "--json")
    assert ambiguous.code == 4
    assert "--newest" in ambiguous.json["ranks"][0]["reason"]
    newest = recover_ckpt("plan", tree, "--newest", "--json")
    assert newest.code == 0
    assert {rank["path"] for rank in newest.json["ranks"]} == {f"ckpt_dir{rank}/{NAME}" for rank in range(4)}


def test_a_slice_of_another_rank_in_the_directory_is_reported(tmp_path, recover_ckpt):
    tree = make_tree(tmp_path / "tree", directory="rank_{rank}", name="net_rank_{rank}-{step}.ckpt")
    (tree / "rank_0/net_rank_0-1_8.ckpt").rename(tree / "rank_0/net_rank_1-1_8.ckpt")
    plan = recover_ckpt("plan", tree, "--json").json
    assert [action["rank"] for action in plan["actions"]] == [0]
    assert "rank 1" in plan["notes"][0]["reason"]


def test_a_directory_named_like_a_slice(tree, recover_ckpt):
    (tree / "ckpt_dir0" / "test-2_8.ckpt").mkdir()
    plan = recover_ckpt("plan", tree, "--json").json
    assert plan["step"] == {"epoch": 1, "step": 8}
    assert any("not a file" in note["reason"] for note in plan["notes"])


def test_a_name_that_steers_terminals_is_escaped(tree, recover_ckpt):
    (tree / "ckpt_dir0" / "\x1b[31mred\n-1_8.ckpt").write_bytes(record("x", b"1234", [1]))
    for command in ("scan", "plan"):
        shown = recover_ckpt(command, tree)
        assert "\x1b" not in shown.out + shown.err


def test_crc_is_checked_unless_told_not_to(tmp_path, recover_ckpt):
    tree = make_tree(tmp_path / "tree", crc=True)
    path = tree / "ckpt_dir0" / NAME
    data = bytearray(path.read_bytes())
    data[80] ^= 4
    path.chmod(0o600)
    path.write_bytes(data)
    assert recover_ckpt("plan", tree, "--json").json["ranks"][0]["state"] == "damaged"
    assert recover_ckpt("plan", tree, "--no-crc", "--quick", "--json").json["ranks"][0]["state"] == "ok"
    assert recover_ckpt("inspect", path).code == 3
    assert recover_ckpt("inspect", path, "--no-crc").code == 0


@pytest.mark.processes
@pytest.mark.skipif(os.geteuid() == 0 and not os.path.exists("/usr/bin/setpriv"), reason="needs a user without rights")
def test_directories_that_cannot_be_read_or_written(tree, tmp_path):
    """Without the rights of root: a message and a code, never a traceback."""
    import subprocess
    import sys

    for path in [tmp_path, *tmp_path.parents][:-1]:
        path.chmod(0o755 | path.stat().st_mode)
    shutil.rmtree(tree / "ckpt_dir0")
    code = "import sys; from ms_recover.cli.entry import main; sys.exit(main(sys.argv[1:]))"
    drop = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"] if os.geteuid() == 0 else []
    if not drop:
        tree.chmod(0o555)
    done = subprocess.run(
        [*drop, sys.executable, "-c", code, "apply", str(tree)], capture_output=True, text=True, timeout=60, check=False
    )
    assert "Traceback" not in done.stderr
    assert done.returncode in (1, 4), done.stderr
    assert not (tree / "ckpt_dir0").exists()


@pytest.mark.processes
def test_output_into_a_closed_pipe(tree):
    import subprocess
    import sys

    code = "import sys; from ms_recover.cli.entry import main; sys.exit(main(sys.argv[1:]))"
    done = subprocess.run(
        f"'{sys.executable}' -c '{code}' plan '{tree}' | true",
        shell=True,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "Traceback" not in done.stderr
    assert "Exception" not in done.stderr
