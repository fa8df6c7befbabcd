"""Standard output that is closed or full, and the targets of plan -o."""

import json
import os
import shutil
import stat
import subprocess
import sys
import threading

import pytest

from ms_recover.testing.trees import make_tree

pytestmark = pytest.mark.processes

COMMAND = [sys.executable, "-c", "import sys; from ms_recover.cli.entry import main; sys.exit(main())"]


@pytest.fixture
def tree(tmp_path):
    tree = make_tree(tmp_path / "tree")
    shutil.rmtree(tree / "ckpt_dir0")
    return tree


def shell(line, *arguments):
    """Run a line of sh in which "$@" is recover-ckpt with some arguments."""
    done = subprocess.run(
        ["sh", "-c", line, "sh", *COMMAND, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr
    return done


@pytest.mark.parametrize("command", ["--help", "--version", "plan", "scan", "verify", "apply"])
@pytest.mark.parametrize(("line", "words"), [('"$@" >&-', "is closed"), ('"$@" >/dev/full', "No space left")])
def test_standard_output_that_is_closed_or_full_is_one_line_and_1(line, words, command, tree):
    done = shell(line, command, *([] if command.startswith("--") else [tree]))
    assert done.returncode == 1, done
    assert len(done.stderr.splitlines()) == 1
    assert "standard output" in done.stderr
    assert words in done.stderr


def test_nothing_is_done_when_standard_output_is_closed(tree):
    shell('"$@" >&-', "apply", tree)
    assert not (tree / "ckpt_dir0").exists()


def test_both_streams_closed(tree):
    assert shell('"$@" >&- 2>&-', "plan", tree).returncode == 1
    assert shell('"$@" >/dev/full 2>/dev/full', "plan", tree).returncode == 1


def test_standard_error_closed(tree, tmp_path):
    assert shell('"$@" 2>&-', "plan", tree).returncode == 0
    assert shell('"$@" 2>&-', "plan", tmp_path / "none").returncode == 3


@pytest.mark.parametrize("name", ["-", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"])
def test_a_plan_to_standard_output_is_the_plan_alone(name, tree, recover_ckpt, tmp_path):
    done = recover_ckpt("plan", tree, "-o", name)
    assert done.code == 0, done.err
    assert done.json == recover_ckpt("plan", tree, "--json").json
    (tmp_path / "plan.json").write_text(done.out)
    assert recover_ckpt("apply", tmp_path / "plan.json").code == 0


def test_a_plan_to_a_device_is_written_through_it(tree, recover_ckpt):
    before = os.stat("/dev/null")
    done = recover_ckpt("plan", tree, "-o", "/dev/null")
    assert done.code == 0
    assert "RECOVERABLE at step 1_8" in done.out
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    assert os.stat("/dev/null").st_ino == before.st_ino
    full = recover_ckpt("plan", tree, "-o", "/dev/full")
    assert full.code == 1
    assert "/dev/full" in full.err
    assert len(full.err.splitlines()) == 1


def test_a_plan_to_a_named_pipe_is_written_through_it(tree, recover_ckpt, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    got = []
    reader = threading.Thread(target=lambda: got.append(pipe.read_text()), daemon=True)
    reader.start()
    assert recover_ckpt("plan", tree, "-o", pipe).code == 0
    reader.join(60)
    assert json.loads(got[0])["actions"]
    assert stat.S_ISFIFO(os.stat(pipe).st_mode)


@pytest.mark.parametrize("line", ['"$@" -o /dev/fd/3 3>"$PLAN" >/dev/null', '"$@" -o /dev/stderr 2>"$PLAN" >/dev/null'])
def test_a_plan_to_an_open_descriptor_goes_where_it_points(line, tree, tmp_path, monkeypatch, recover_ckpt):
    monkeypatch.setenv("PLAN", str(tmp_path / "plan.json"))
    (tmp_path / "plan.json").write_text("something else")
    number = (tmp_path / "plan.json").stat().st_ino
    done = shell(line, "plan", tree)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "plan.json").stat().st_ino == number
    assert recover_ckpt("apply", tmp_path / "plan.json", "--dry-run").code == 0


def test_a_descriptor_that_is_not_open_is_one_line_and_1(tree, recover_ckpt):
    done = recover_ckpt("plan", tree, "-o", "/dev/fd/77")
    assert done.code == 1
    assert "/dev/fd/77" in done.err


def test_a_plan_replaces_an_older_plan(tree, recover_ckpt, tmp_path):
    plan = tmp_path / "plan.json"
    assert recover_ckpt("plan", tree, "--quick", "-o", plan).code == 0
    old = json.loads(plan.read_text())
    plan.write_text(json.dumps({**old, "version": 1}))  # of an older release
    assert recover_ckpt("plan", tree, "-o", plan).code == 0
    assert json.loads(plan.read_text()) == recover_ckpt("plan", tree, "--json").json


def others(tmp_path):
    """Make things that are no plan."""
    (tmp_path / "notes.txt").write_text("do not lose me")
    (tmp_path / "empty").write_text("")
    (tmp_path / "other.json").write_text('{"version": 1, "root": "/", "slices": []}')
    (tmp_path / "folder").mkdir()
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "link").symlink_to(tmp_path / "notes.txt")
    return {"notes.txt": 2, "empty": 2, "other.json": 2, "folder": 2, "dangling": 2, "loop": 1, "link": 2}


def test_a_plan_replaces_nothing_else(tree, recover_ckpt, tmp_path):
    for name, code in others(tmp_path).items():
        path = tmp_path / name
        before = path.read_bytes() if path.is_file() else None
        done = recover_ckpt("plan", tree, "-o", path)
        assert done.code == code, (name, done.err)
        assert name in done.err
        assert len(done.err.splitlines()) == 1
        assert (path.read_bytes() if path.is_file() else None) == before
    assert not (tmp_path / "nowhere").exists()


def test_a_slice_is_not_replaced_by_a_plan(tree, recover_ckpt):
    path = tree / "ckpt_dir1" / "test-1_8.ckpt"
    before = path.read_bytes()
    assert recover_ckpt("plan", tree, "-o", path).code == 2
    assert path.read_bytes() == before


def test_a_link_to_a_plan_stays_a_link(tree, recover_ckpt, tmp_path):
    plan, link = tmp_path / "plan.json", tmp_path / "latest.json"
    recover_ckpt("plan", tree, "--quick", "-o", plan)
    link.symlink_to(plan)
    before = plan.read_text()
    assert recover_ckpt("plan", tree, "-o", link).code == 0
    assert link.is_symlink()
    assert plan.read_text() != before


def test_a_plan_into_a_directory_that_does_not_exist(tree, recover_ckpt, tmp_path):
    done = recover_ckpt("plan", tree, "-o", tmp_path / "none" / "plan.json")
    assert done.code == 3
    assert "none/plan.json" in done.err


def test_explain_and_a_plan_do_not_share_standard_output(tree, recover_ckpt):
    assert recover_ckpt("plan", tree, "-o", "-", "--explain", "1").code == 2


def test_names_in_messages_do_not_steer_the_terminal(tmp_path, recover_ckpt):
    steering = "\x1b[31mred\u202e\x9b1m\nsecond line"
    for done in (
        recover_ckpt("plan", tmp_path / steering),
        recover_ckpt("inspect", tmp_path / steering),
        recover_ckpt("apply", tmp_path / steering, "--ranks", "1"),
        recover_ckpt(f"--{steering}"),
        recover_ckpt("plan", tmp_path, "--step", steering),
    ):
        assert done.code in (2, 3)
        assert not {"\x1b", "\u202e", "\x9b"} & set(done.out + done.err)


def test_names_in_reports_do_not_steer_the_terminal(tree, recover_ckpt):
    steering = "\x1b[31mred\u202e\x9b1m\nsecond line"
    root = tree.rename(tree.with_name(f"tree {steering}"))
    (root / "ckpt_dir1" / f"{steering}-1_8.ckpt").write_bytes(b"not a slice")
    for command in ("scan", "plan", "verify", "seal", "apply"):
        done = recover_ckpt(command, root)
        assert not {"\x1b", "\u202e", "\x9b"} & set(done.out + done.err), command
        assert not any(line.startswith("second line") for line in done.out.splitlines())
        assert "\\x1b[31mred\\u202e" in done.out
