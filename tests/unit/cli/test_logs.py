"""The log of a command, and the places where it may lie."""

import logging
import os

import pytest

from ms_recover.cli.logs import PRINTED, logged, logged_end, open_log
from ms_recover.errors import MsRecoverError, UsageError
from ms_recover.testing.trees import make_tree
from tests.support.command_line import in_this_process

LOG = logging.getLogger("ms_recover.somewhere")


def test_a_file_gets_everything_and_standard_error_what_is_asked_for(tmp_path, capsys):
    for verbose, seen in ((0, ["bad"]), (1, ["step", "bad"]), (2, ["detail", "step", "bad"])):
        path = tmp_path / f"{verbose}.log"
        with logged(verbose, str(path), None):
            LOG.debug("detail")
            LOG.info("step")
            LOG.warning("bad")
        LOG.warning("after the command")
        assert [line.split()[-1] for line in capsys.readouterr().err.splitlines() if "after" not in line] == seen
        assert [line.split()[-1] for line in path.read_text().splitlines()] == ["detail", "step", "bad"]


def test_the_logger_is_as_it_was_afterwards(tmp_path):
    logger = logging.getLogger("ms_recover")
    before = logger.level, list(logger.handlers)
    with pytest.raises(KeyError), logged(2, str(tmp_path / "log"), None):
        raise KeyError
    assert (logger.level, logger.handlers) == before


def test_a_log_is_appended_to(tmp_path):
    path = tmp_path / "log"
    path.write_text("earlier\n")
    for word in ("one", "two"):
        with logged(0, str(path), None):
            LOG.info(word)
    assert [line.split()[-1] for line in path.read_text().splitlines()] == ["earlier", "one", "two"]


def test_a_record_is_one_line_that_steers_no_terminal(tmp_path):
    path = tmp_path / "log"
    with logged(0, str(path), None):
        LOG.info("a name %s", "x\nERROR forged \x1b[31m\u202e")
    (line,) = path.read_text().splitlines()
    assert "x\\nERROR forged \\x1b[31m\\u202e" in line


def test_the_end_of_a_command_is_logged_and_printed_once(tmp_path, capsys):
    path = tmp_path / "log"
    with pytest.raises(UsageError), logged(2, str(path), None), logged_end("recover-ckpt plan", ["a b", "--quick"]):
        raise UsageError("the reason")
    lines = path.read_text().splitlines()
    assert "recover-ckpt plan 'a b' --quick, version" in lines[0]
    assert "UsageError after" in lines[-1]
    assert lines[-1].endswith(": the reason")
    assert "the reason" not in capsys.readouterr().err
    assert PRINTED


def test_a_log_that_becomes_full_is_said_once_and_stops_nothing(capsys):
    with logged(0, "/dev/full", None):
        LOG.info("one")
        LOG.info("two")
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "/dev/full" in said
    assert "No space left" in said


@pytest.fixture
def tree(tmp_path):
    return make_tree(tmp_path / "tree")


def contents(tree):
    return {path: path.read_bytes() for path in tree.rglob("*") if path.is_file()}


def refused(path, tree):
    before = contents(tree)
    with pytest.raises(UsageError) as caught:
        open_log(str(path), str(tree))
    assert contents(tree) == before
    assert str(path) in str(caught.value)
    return str(caught.value)


def test_no_link_leads_a_log_into_the_tree(tree, tmp_path):
    (tmp_path / "file").symlink_to(tree / "ckpt_dir0" / "test-1_8.ckpt")
    (tmp_path / "new").symlink_to(tree / "recover.log")
    (tmp_path / "folder").symlink_to(tree)
    (tree / "own.log").symlink_to(tree / "ckpt_dir0" / "group_info.pb")
    for path in (tmp_path / "file", tmp_path / "new", tmp_path / "folder" / "x.log", tree / "own.log"):
        assert "link" in refused(path, tree)
    os.link(tree / "ckpt_dir0" / "test-1_8.ckpt", tmp_path / "hard.log")
    refused(tmp_path / "hard.log", tree)


def test_the_tree_by_another_name_is_the_tree(tree, tmp_path):
    (tmp_path / "alias").symlink_to(tree)
    with pytest.raises(UsageError, match="ends in"):
        open_log(str(tree / "x.txt"), str(tmp_path / "alias"))
    open_log(str(tmp_path / "alias" / "x.log"), str(tmp_path / "alias")).close()
    assert (tree / "x.log").exists()


def test_in_the_tree_a_log_ends_like_one(tree):
    for name in ("test-9_9.ckpt", "group_info.pb", "latest_checkpointed_iteration.txt", "log"):
        refused(tree / "ckpt_dir0" / name, tree)
    open_log(str(tree / "recover.log"), str(tree)).close()


@pytest.mark.parametrize("data", [b"\0binary", b"\xff\xfe", b"a" * 5000 + b"\0", b"\x93NUMPY"])
def test_what_is_no_text_is_not_appended_to(data, tmp_path):
    path = tmp_path / "file"
    path.write_bytes(data)
    if data[:4096].isascii() and b"\0" not in data[:4096]:
        open_log(str(path), None).close()
        return
    with pytest.raises(UsageError, match="no text"):
        open_log(str(path), None)
    assert path.read_bytes() == data


def test_a_character_that_is_cut_off_at_the_end_of_the_look_is_text(tmp_path):
    (tmp_path / "log").write_text("x" * 4095 + "中")
    open_log(str(tmp_path / "log"), None).close()


def test_other_kinds_of_files_are_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match="one name"):
        open_log(str(tmp_path / "pipe"), None)
    with pytest.raises(MsRecoverError, match="none/x"):
        open_log(str(tmp_path / "none" / "x"), None)
    open_log("/dev/null", None).close()


@pytest.mark.parametrize("command", ["scan", "plan", "apply", "verify", "seal"])
def test_a_command_leaves_a_log_of_its_work(command, tree, tmp_path):
    (tree / "ckpt_dir0" / "test-1_8.ckpt").unlink()
    done = in_this_process(command, tree, "--log-file", tmp_path / "log")
    assert done.err == ""
    text = (tmp_path / "log").read_text()
    assert f"recover-ckpt {command} {tree}" in text
    assert "3 slices of 4 ranks" in text
    assert f"ended with {done.code} after" in text


def test_the_report_and_the_code_are_the_same_with_a_log(tree, tmp_path):
    plain = in_this_process("plan", tree, "--json")
    with_log = in_this_process("plan", tree, "--json", "-vv", "--log-file", tmp_path / "log")
    assert (plain.code, plain.out) == (with_log.code, with_log.out)
    assert "reading 4 slices" in with_log.err


def test_a_log_is_not_the_file_that_a_command_reads(tree, tmp_path):
    slice_file = tree / "ckpt_dir0" / "test-1_8.ckpt"
    before = slice_file.read_bytes()
    for command, path in (("inspect", slice_file), ("plan", tree)):
        done = in_this_process(command, path, "--log-file", slice_file)
        assert done.code == 2
        assert "--log-file" in done.err
    assert slice_file.read_bytes() == before


def test_the_tree_of_a_saved_plan_is_known(tree, tmp_path):
    lost = tree / "ckpt_dir0" / "test-1_8.ckpt"
    lost.unlink()
    assert in_this_process("plan", tree, "-o", tmp_path / "plan.json").code == 0
    (tmp_path / "link").symlink_to(lost)
    done = in_this_process("apply", tmp_path / "plan.json", "--log-file", tmp_path / "link")
    assert done.code == 2
    assert "link into" in done.err
    assert not lost.exists()
