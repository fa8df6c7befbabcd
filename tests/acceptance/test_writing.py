"""Points 11 to 13: what is written where, under which names, and how a command ends when something is in the way."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from ms_recover.execution.rank_lists import write_group_info
from ms_recover.testing.trees import make_tree
from tests.support.acceptance import ENTRY, Tree

CODE = f"""
import os, signal, sys

both = {signal.SIGINT:d}, {signal.SIGTERM:d}


class Click:
    \"\"\"What comes before click is imported, Python's own start, is nobody's fault: signals wait until then.\"\"\"

    def find_spec(self, name, path=None, target=None):
        if name == "click":
            signal.pthread_sigmask(signal.SIG_UNBLOCK, both)


signal.pthread_sigmask(signal.SIG_BLOCK, both)
sys.meta_path.insert(0, Click())
os.write(2, b"!")
from {ENTRY[0]} import {ENTRY[1]} as main

sys.exit(main())
"""


def everything(root):
    """Return every file below a folder and its bytes, links and special files by what they are."""
    found = {}
    for path in sorted(root.rglob("*")):
        mode = path.lstat().st_mode
        if stat.S_ISREG(mode):
            found[str(path.relative_to(root))] = path.read_bytes()
        elif not stat.S_ISDIR(mode):
            found[str(path.relative_to(root))] = stat.S_IFMT(mode)
    return found


def is_one_clear_line(done):
    """Standard error has one line, of which nobody need report anything."""
    assert "please report it" not in done.text, done
    assert len(done.err.strip().splitlines()) <= 1, done
    return True


# 11. plan -o replaces nothing but an older plan; every target of a plan is checked.


@pytest.fixture
def lost(tree_of):
    """Four ranks of which rank 0 is lost."""
    tree = tree_of().save()
    tree.lose(0)
    return tree


@pytest.mark.parametrize(
    "content", [b"", b"notes\n", b'{"version": 2}', b"[]", b'{"actions": [], "ranks": []}', bytes(300)]
)
def test_11_a_file_that_is_no_plan_is_not_replaced(content, lost, tmp_path, recover_ckpt):
    path = tmp_path / "file"
    path.write_bytes(content)
    done = recover_ckpt("plan", lost.root, "-o", path)
    assert done.code == 2, done
    assert path.read_bytes() == content
    assert "file" in done.err
    assert os.listdir(tmp_path).count("file") == 1


@pytest.mark.parametrize("name", ["test-2_77.ckpt", "group_info.pb", "strategy.ckpt"])
def test_11_a_plan_never_replaces_a_file_of_the_tree(name, lost, recover_ckpt):
    before = everything(lost.root)
    done = recover_ckpt("plan", lost.root, "-o", lost.folder(2) / name)
    assert done.code == 2, done
    assert everything(lost.root) == before


def test_11_an_older_plan_is_replaced(lost, tmp_path, recover_ckpt):
    path = tmp_path / "plan.json"
    assert recover_ckpt("plan", lost.root, "-o", path).code == 0
    first = path.read_bytes()
    lost.lose(1)
    assert recover_ckpt("plan", lost.root, "-o", path).code == 0
    assert path.read_bytes() != first
    assert recover_ckpt("apply", path).code == 0
    assert lost.wrong() == []


def test_11_a_plan_goes_through_a_pipe(lost, tmp_path, recover_ckpt):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read = []
    keep = os.open(pipe, os.O_RDWR)  # so that neither side waits for the other for ever

    def drain():
        data = b""
        while not data.rstrip().endswith(b"\n}") and len(data) < 1 << 20:
            part = os.read(keep, 1 << 16)
            if part == b"\0":
                break
            data += part
        read.append(data)

    reader = threading.Thread(target=drain)
    reader.start()
    try:
        done = recover_ckpt("plan", lost.root, "-o", pipe, timeout=20)
    finally:
        if reader.is_alive():
            time.sleep(0.2)
            os.write(keep, b"\0")
        reader.join(10)
        os.close(keep)
    assert done.code == 0, done
    assert pipe.is_fifo()
    assert json.loads(read[0])["version"]


@pytest.mark.parametrize("linked", [False, True])
def test_11_a_plan_goes_through_a_device(linked, lost, tmp_path, recover_ckpt):
    device = tmp_path / "null"
    try:
        os.mknod(device, stat.S_IFCHR | 0o666, os.makedev(1, 3))
        device.open("wb").close()
    except OSError:
        pytest.skip("no device can be made here")
    named = tmp_path / "link" if linked else device
    if linked:
        named.symlink_to(device)
    done = recover_ckpt("plan", lost.root, "-o", named)
    assert done.code == 0, done
    assert device.is_char_device()
    assert named.is_symlink() == linked


def test_11_a_dash_is_standard_output(lost, tmp_path, recover_ckpt):
    done = recover_ckpt("plan", lost.root, "-o", "-", cwd=tmp_path)
    assert done.code == 0, done
    assert json.loads(done.out) == recover_ckpt("plan", lost.root, "--json").json
    assert "-" not in os.listdir(tmp_path)


def changed(tree, recover_ckpt, tmp_path, change, *options):
    """Plan, change the plan, and apply it; return how that ended."""
    plan = recover_ckpt("plan", tree.root, "--json").json
    change(plan)
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    return recover_ckpt("apply", tmp_path / "plan.json", *options)


def source_of_rank_3(plan):
    (action,) = plan["actions"]
    action.update(source="ckpt_dir3/test-2_77.ckpt", alternatives=[])
    action["source_mtime_ns"] = Path(plan["root"], action["source"]).stat().st_mtime_ns
    action["source_digest"] = None


def action_with(**values):
    return lambda plan: plan["actions"][0].update(values)


def group_file_with(**values):
    return lambda plan: plan["group_files"][0].update(values)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(action_with(target="ckpt_dir1/test-2_77.ckpt"), id="target of another rank"),
        pytest.param(action_with(target="ckpt_dir0/test-9_77.ckpt"), id="target of another step"),
        pytest.param(action_with(target="ckpt_dir0/group_info.pb"), id="target that is no slice"),
        pytest.param(action_with(target=".profile"), id="target outside of rank directories"),
        pytest.param(action_with(rank=1), id="rank that the target does not name"),
        pytest.param(action_with(source_rank=3), id="source rank that the source does not name"),
        pytest.param(source_of_rank_3, id="source of another rank than it says"),
        pytest.param(action_with(group=[1, 3]), id="group without its rank"),
        pytest.param(group_file_with(target="ckpt_dir2/test-2_77.ckpt"), id="rank list over a slice"),
        pytest.param(group_file_with(target="ckpt_dir1/group_info.pb"), id="rank list of another rank"),
        pytest.param(group_file_with(target="ckpt_dir0/test-2_77.ckpt"), id="rank list under the name of a slice"),
        pytest.param(group_file_with(target="ckpt_dir0/notes.txt"), id="rank list under any name"),
        pytest.param(group_file_with(restore_ranks=[1, 3]), id="rank list of another group"),
    ],
)
def test_11_the_paths_of_a_plan_must_name_the_rank_step_and_group_they_claim(change, lost, tmp_path, recover_ckpt):
    before = everything(lost.root)
    done = changed(lost, recover_ckpt, tmp_path, change)
    assert done.code == 3, done
    assert everything(lost.root) == before


@pytest.mark.parametrize("content", [b"", b"a list that someone else wrote"])
def test_11_a_rank_list_that_appeared_meanwhile_is_not_replaced(content, lost, tmp_path, recover_ckpt):
    assert recover_ckpt("plan", lost.root, "-o", tmp_path / "plan.json").code == 0
    lost.folder(0).mkdir()
    appeared = lost.folder(0) / "group_info.pb"
    appeared.write_bytes(content)
    done = recover_ckpt("apply", tmp_path / "plan.json")
    assert done.code == 5, done
    assert appeared.read_bytes() == content


def test_11_a_rank_list_that_appeared_with_the_right_bytes_is_no_obstacle(lost, tmp_path, recover_ckpt):
    assert recover_ckpt("plan", lost.root, "-o", tmp_path / "plan.json").code == 0
    lost.folder(0).mkdir()
    write_group_info(lost.folder(0) / "group_info.pb", lost.group(0))
    assert recover_ckpt("apply", tmp_path / "plan.json").code == 0
    assert lost.wrong() == []


@pytest.fixture
def halved(tree_of):
    """Rank 0 is lost, and its dense.weight with it; the rest of its slice is on rank 1."""
    tree = tree_of(dp=1, mp=2).save()
    tree.lose(0)
    return tree


def test_11_a_partial_that_appeared_meanwhile_is_not_replaced(halved, tmp_path, recover_ckpt):
    assert recover_ckpt("plan", halved.root, "-o", tmp_path / "plan.json").code == 4
    (partial,) = json.loads((tmp_path / "plan.json").read_text())["partials"]
    appeared = halved.root / partial["target"]
    appeared.parent.mkdir()
    appeared.write_bytes(b"mine")
    done = recover_ckpt("apply", tmp_path / "plan.json", "--partial")
    assert done.code in (4, 5), done
    assert appeared.read_bytes() == b"mine"


@pytest.mark.parametrize(
    "target", ["ckpt_dir0/test-2_77.ckpt", "ckpt_dir1/test-2_77.ckpt", "ckpt_dir1/test-2_77.partial.ckpt"]
)
def test_11_a_partial_never_gets_a_name_of_a_slice_or_of_another_rank(target, halved, tmp_path, recover_ckpt):
    before = everything(halved.root)
    done = changed(
        halved,
        recover_ckpt,
        tmp_path,
        lambda plan: plan["partials"][0].update(target=target, replaces=None),
        "--partial",
    )
    assert done.code == 3, done
    assert everything(halved.root) == before


@pytest.mark.parametrize("from_file", [False, True])
@pytest.mark.parametrize("directory", ["ckpt_dir{rank}", "checkpoints/rank_{rank}"])
def test_11_a_target_does_not_leave_the_root_through_a_link(directory, from_file, tmp_path, recover_ckpt):
    tree = Tree(tmp_path / "tree", directory=directory).save()
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "keep").write_text("mine")
    tree.lose(0)
    plan = tmp_path / "plan.json"
    if from_file:
        assert recover_ckpt("plan", tree.root, "-o", plan).code == 0
    tree.folder(0).symlink_to(outside)
    done = recover_ckpt("apply", plan if from_file else tree.root)
    assert done.code in (1, 2, 3, 5), done
    assert everything(outside) == {"keep": b"mine"}
    assert tree.folder(0).name in done.text


def test_11_a_root_that_is_a_link_itself_is_no_obstacle(lost, tmp_path, recover_ckpt):
    (tmp_path / "link").symlink_to(lost.root)
    assert recover_ckpt("apply", tmp_path / "link").code == 0
    assert lost.wrong() == []


def test_11_a_slice_that_links_out_of_the_root_is_replaced_and_not_written_through(lost, tmp_path, recover_ckpt):
    outside = tmp_path / "outside.ckpt"
    outside.write_bytes(b"mine")
    lost.folder(0).mkdir()
    lost.path(0).symlink_to(outside)
    done = recover_ckpt("apply", lost.root)
    assert outside.read_bytes() == b"mine"
    assert done.code == 0, done
    assert lost.wrong() == []


# 12. No name of another rank is ever written.

PATTERNS = (None, "rank_{rank}/{prefix}-{epoch}_{step}.ckpt", "{rank}/{prefix}-{epoch}_{step}.ckpt")


def named_tree(tmp_path, pattern):
    directory = "{rank}" if pattern is not None and pattern.startswith("{rank}/") else "rank_{rank}"
    root = make_tree(tmp_path / "tree", directory=directory, name="net_rank_{rank}-{step}.ckpt")
    options = ("--pattern", pattern) if pattern is not None else ()
    return root, directory, options


def names_are_of_their_own_rank(root):
    for path in root.rglob("*.ckpt"):
        said = re.search(r"_rank_(\d+)-", path.name)
        assert said is None or said[1] == path.parent.name.removeprefix("rank_"), path
    return True


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("victim", [0, 3])
def test_12_a_lost_slice_is_never_written_under_the_name_of_another_rank(victim, pattern, tmp_path, recover_ckpt):
    root, directory, options = named_tree(tmp_path, pattern)
    folder = root / directory.format(rank=victim)
    path = folder / f"net_rank_{victim}-1_8.ckpt"
    truth, lists = path.read_bytes(), (folder / "group_info.pb").read_bytes()
    shutil.rmtree(folder)
    if pattern is not None:  # a pattern has no place for rank lists but the one that is named
        folder.mkdir()
        (folder / "group_info.pb").write_bytes(lists)
        options += ("--group-info", f"{root}/{directory}/group_info.pb")
    done = recover_ckpt("apply", root, *options)
    assert names_are_of_their_own_rank(root), done
    assert done.code == 0, done
    assert path.read_bytes() == truth


@pytest.mark.parametrize("pattern", PATTERNS)
def test_12_a_file_that_names_another_rank_than_its_directory_is_refused(pattern, tmp_path, recover_ckpt):
    root, directory, options = named_tree(tmp_path, pattern)
    if pattern is not None:
        options += ("--group-info", f"{root}/{directory}/group_info.pb")
    folder = root / directory.format(rank=0)
    misnamed = folder / "net_rank_1-1_8.ckpt"
    truth = (folder / "net_rank_0-1_8.ckpt").read_bytes()
    (folder / "net_rank_0-1_8.ckpt").rename(misnamed)
    plan = recover_ckpt("plan", root, *options, "--json")
    assert "net_rank_1" in str(plan.json["notes"]), plan
    assert [action["rank"] for action in plan.json["actions"]] == [0]
    done = recover_ckpt("apply", root, *options)
    assert done.code == 0, done
    assert (folder / "net_rank_0-1_8.ckpt").read_bytes() == truth
    assert misnamed.read_bytes() == truth
    assert not (folder / "net_rank_1-1_8.ckpt.manifest.json").exists()


def test_12_a_plan_with_the_name_of_another_rank_is_refused(tmp_path, recover_ckpt):
    root, _, _ = named_tree(tmp_path, None)
    shutil.rmtree(root / "rank_0")
    plan = recover_ckpt("plan", root, "--json").json
    plan["actions"][0]["target"] = "rank_0/net_rank_2-1_8.ckpt"
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    assert recover_ckpt("apply", tmp_path / "plan.json").code == 3
    assert not (root / "rank_0").exists()


# 13. Special files, links, long names, closed outputs, signals, control characters.


@pytest.mark.parametrize("name", ["strategy.ckpt", "group_info.pb", "test-2_77.ckpt.manifest.json"])
@pytest.mark.parametrize("command", ["plan", "apply", "verify", "seal"])
def test_13_a_pipe_in_place_of_a_small_file_makes_nobody_wait(command, name, tree_of, recover_ckpt):
    tree = tree_of().save()
    path = tree.folder(1) / name
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    done = recover_ckpt(command, tree.root, timeout=6)
    assert done.code in (0, 1, 3, 5), done
    assert "please report" not in done.text
    assert tree.wrong() == []


@pytest.mark.parametrize(
    "option", ["--group-info", "--strategy", "plan file", "inspect", "-o of seal", "journal", "token"]
)
def test_13_a_pipe_that_is_named_is_refused_and_makes_nobody_wait(option, lost, tmp_path, recover_ckpt):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    if option == "journal":
        os.mkfifo(lost.root / ".ms_recover.journal")
        done = recover_ckpt("apply", lost.root, timeout=6)
        assert done.code in (0, 1), done
        assert lost.wrong() == [] or done.code == 1
        return
    words, codes = {
        "--group-info": (("plan", lost.root, "--group-info", pipe), (1, 2, 3)),
        "--strategy": (("plan", lost.root, "--strategy", pipe), (1, 2, 3)),
        "plan file": (("apply", pipe), (2, 3)),
        "inspect": (("inspect", pipe), (3,)),
        "-o of seal": (("seal", pipe), (2, 3)),
        "token": (("plan", lost.root, "--from", "127.0.0.1:9", "--token-file", pipe), (2,)),
    }[option]
    done = recover_ckpt(*words, timeout=6)
    assert done.code in codes, done
    assert str(pipe) in done.text


def test_13_the_journal_does_not_follow_a_link(tree_of, tmp_path, recover_ckpt):
    tree = tree_of(dp=2, mp=2).save()
    tree.lose(0, 1)
    outside = tmp_path / "outside"
    outside.write_bytes(b"mine\n")
    (tree.root / ".ms_recover.journal").symlink_to(outside)
    done = recover_ckpt("apply", tree.root)
    assert outside.read_bytes() == b"mine\n"
    assert done.code in (0, 1), done
    assert done.code == 1 or tree.wrong() == []


def test_13_a_token_file_that_is_a_link_is_refused(lost, tmp_path, recover_ckpt):
    token = tmp_path / "token"
    token.write_text("a" * 40 + "\n")
    token.chmod(0o600)
    (tmp_path / "link").symlink_to(token)
    done = recover_ckpt("plan", lost.root, "--from", "127.0.0.1:9", "--token-file", tmp_path / "link", "--timeout", 1)
    assert done.code == 2, done
    assert "link" in done.err


@pytest.mark.parametrize("length", [200, 224, 240, 246])
@pytest.mark.parametrize("form", ["ckpt", "safetensors"])
def test_13_names_that_leave_no_room_for_a_temporary_one(length, form, tree_of, recover_ckpt):
    prefix = "p" * (length - len(f"-2_77.{form}"))
    tree = tree_of(form=form).save(prefix=prefix)
    tree.path(0, prefix=prefix).unlink()
    done = recover_ckpt("apply", tree.root)
    assert "please report" not in done.text
    assert done.code in (0, 1), done
    if done.code == 0:
        assert tree.wrong() == []
    else:
        assert "too long" in done.text
        assert not tree.path(0, prefix=prefix).exists()


@pytest.mark.parametrize("command", ["scan", "plan", "apply", "verify", "seal", "inspect"])
def test_13_a_path_that_is_too_long_is_one_clear_line(command, tmp_path, recover_ckpt):
    done = recover_ckpt(command, tmp_path / ("x" * 300))
    assert done.code in (1, 3), done
    assert is_one_clear_line(done)


@pytest.mark.parametrize("target", ["nowhere", "ckpt_dir0", "../nowhere/at/all", "ckpt_dir1/loop"])
def test_13_a_rank_directory_that_links_to_nothing_or_to_itself(target, lost, recover_ckpt):
    lost.folder(0).symlink_to(target)
    (lost.folder(1) / "loop").symlink_to("../ckpt_dir0")
    for command in ("scan", "plan", "verify"):
        done = recover_ckpt(command, lost.root)
        assert done.code in (0, 1, 4, 5), done
        assert "please report" not in done.text
    done = recover_ckpt("apply", lost.root)
    assert done.code == 1, done
    assert "ckpt_dir0" in done.text
    assert "please report" not in done.text
    assert lost.wrong([lost.path(rank) for rank in (1, 2, 3)]) == []


def started(*words, **options):
    return subprocess.Popen(
        [sys.executable, "-c", CODE, *map(str, words)], stderr=subprocess.PIPE, text=True, **options
    )


@pytest.mark.parametrize("command", ["plan", "apply", "verify", "scan"])
def test_13_a_full_standard_output_is_exit_1_and_one_line(command, tree_of):
    tree = tree_of().save()
    with open("/dev/full", "wb") as full:
        process = started(command, tree.root, stdout=full)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 1, err
    assert len(err.removeprefix("!").strip().splitlines()) == 1, err
    assert "Exception ignored" not in err
    assert "please report" not in err


@pytest.mark.parametrize("command", ["plan", "apply"])
@pytest.mark.parametrize("how", ["closed", "nobody reads"])
def test_13_a_closed_standard_output_hurts_no_slice(command, how, lost):
    if how == "closed":
        process = started(command, lost.root, preexec_fn=lambda: os.close(1))
    else:
        read, write = os.pipe()
        os.close(read)
        process = started(command, lost.root, stdout=write)
        os.close(write)
    _, err = process.communicate(timeout=60)
    assert process.returncode in (0, 1), err
    assert "Traceback" not in err
    assert "Exception ignored" not in err
    assert "please report" not in err
    assert len(err.removeprefix("!").strip().splitlines()) <= 1, err
    assert err.strip("!\n") or process.returncode == 0 or how == "nobody reads", "a failure that nothing tells of"
    assert lost.wrong([path for path in lost.truth if path.exists() or path.parent != lost.folder(0)]) == []


@pytest.mark.parametrize(("number", "codes"), [(signal.SIGINT, (130,)), (signal.SIGTERM, (143, -signal.SIGTERM))])
@pytest.mark.parametrize("delay", [0.01, 0.03, 0.06, 0.1, 0.25])
def test_13_a_signal_in_the_first_quarter_of_a_second_ends_quietly(delay, number, codes, tmp_path):
    tree = Tree(tmp_path / "tree", dp=8, mp=2).save()
    tree.lose(0, 3)
    process = started("apply", tree.root, stdout=subprocess.PIPE)
    assert process.stderr.read(1) == "!"
    time.sleep(delay)
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode in (*codes, 0), err  # 0: it had ended, or would the next moment
    assert "Traceback" not in err
    assert "KeyboardInterrupt" not in err
    assert not list(tree.root.rglob("*.ms_recover.tmp"))
    assert tree.wrong([path for path in tree.truth if path.exists()]) == []


NASTY = ("\x1b]0;red", "bell\x07", "csi\x9b31m", "turned\u202eround", "two\nlines", "back\rspace\x08")


def is_harmless(done):
    text = done.out + done.err
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", text), repr(text)
    return True


@pytest.mark.parametrize("nasty", NASTY)
def test_13_control_characters_of_file_names_reach_no_terminal(nasty, tree_of, recover_ckpt):
    tree = tree_of(name=f"tree{nasty}").save()
    tree.lose(0)
    shutil.copy(tree.path(1), tree.folder(1) / f"{nasty}-2_77.ckpt")
    (tree.folder(2) / f"{nasty}-9_9.tmp").touch()
    (tree.root / f"ckpt_dir{nasty}").mkdir()
    for command in ("scan", "plan", "verify", "apply", "seal"):
        assert is_harmless(recover_ckpt(command, tree.root)), command
    assert is_harmless(recover_ckpt("inspect", tree.folder(1) / f"{nasty}-2_77.ckpt"))


@pytest.mark.parametrize("nasty", NASTY[:4])
def test_13_control_characters_of_paths_in_errors_reach_no_terminal(nasty, lost, tmp_path, recover_ckpt):
    for command in ("scan", "plan", "apply", "verify", "seal", "inspect"):
        done = recover_ckpt(command, tmp_path / f"none{nasty}")
        assert done.code == 3, done
        assert is_harmless(done)
    (tmp_path / f"a file {nasty}").write_text("x")
    for words in (
        ("plan", lost.root, "-o", tmp_path / f"a file {nasty}"),
        ("plan", lost.root, "-o", tmp_path / f"no folder {nasty}" / "plan.json"),
        ("plan", lost.root, "--step", nasty),
        ("plan", lost.root, "--group-info", tmp_path / f"none{nasty}"),
        ("apply", tmp_path / f"a file {nasty}"),
        (f"plan{nasty}",),
    ):
        assert is_harmless(recover_ckpt(*words)), words
