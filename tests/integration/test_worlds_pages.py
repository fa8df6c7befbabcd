"""The programs that the pages on worlds show, run from these pages."""

import re
from pathlib import Path

import pytest

from tests.integration.test_worlds_sample import need_ports, start

DOCS = Path(__file__).parents[2] / "docs"
__all__ = ["start"]

pytestmark = pytest.mark.mindspore


def program_after(page):
    """Return the program that the diff of a page leads to."""
    diff = re.search(r"^```diff\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)[1]
    assert all(line[0] in " +-" for line in diff.splitlines())
    return "".join(f"{line[1:]}\n" for line in diff.splitlines() if line[0] != "-")


def test_the_diff_from_multiworld_changes_the_imports_and_the_tensor_library_only():
    page = (DOCS / "from-multiworld.md").read_text()
    diff = re.search(r"^```diff\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)[1]
    added = [line[1:].strip() for line in diff.splitlines() if line[0] == "+"]
    removed = [line[1:].strip() for line in diff.splitlines() if line[0] == "-"]
    assert added[:2] == ["import mindspore", "from ms_recover.worlds.multiworld import WorldManager"]
    assert removed[:2] == ["import torch", "from multiworld.manager import WorldManager"]
    assert [line.replace("torch.", "mindspore.ops.") for line in removed[2:]] == added[2:]


def test_the_program_from_multiworld_runs_with_its_command_lines(start, tmp_path):
    pytest.importorskip("mindspore")
    need_ports(30500, 31500)
    page = (DOCS / "from-multiworld.md").read_text()
    (tmp_path / "m8d.py").write_text(program_after(page))
    lines = [line.partition("#")[0].strip() for line in re.findall(r"^python m8d\.py .*", page, re.MULTILINE)]
    leader, one, other = (start(line, cwd=tmp_path) for line in lines)
    leader.hear(r"received \[1\. 1\.\] from rank 1 in world1")
    leader.hear(r"received \[1\. 1\.\] from rank 1 in world2")
    one.process.kill()
    leader.hear(r"caught an exception: world 'world1' \(epoch 0\) is broken by rank 1")
    leader.hear("from rank 1 in world2")
    other.process.kill()
    leader.hear("caught an exception: world 'world2'")
    assert leader.process.wait(60) == 0, leader.said
    assert "Traceback" not in "".join(leader.said)


def test_the_first_program_of_the_page_on_worlds_runs(start, tmp_path):
    pytest.importorskip("mindspore")
    need_ports(29501)
    page = (DOCS / "worlds.md").read_text()
    (tmp_path / "first.py").write_text(re.search(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)[1])
    leader, worker = start("python first.py lead", cwd=tmp_path), start("python first.py work", cwd=tmp_path)
    assert worker.process.wait(60) == 0
    assert leader.process.wait(60) == 0
    leader.hear("w1 is broken by rank 1 closed")
    assert [line for line in leader.said if "received" in line] == [f"received [{number}]\n" for number in range(3)]
