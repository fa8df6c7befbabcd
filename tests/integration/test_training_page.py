"""The program of docs/resume.md: interrupted, and run again as it is."""

import re
import runpy
from pathlib import Path
from textwrap import dedent, indent

import pytest

pytestmark = pytest.mark.mindspore
ms = pytest.importorskip("mindspore")

PAGE = Path(__file__).parents[2] / "docs" / "resume.md"


class KilledError(Exception):
    pass


def run(program, folder, monkeypatch, stop_at=None):
    """Run the program in a folder; return what it printed, by step."""
    folder.mkdir(exist_ok=True)
    monkeypatch.chdir(folder)
    printed = {}

    def show(step, loss):
        printed[step] = loss
        if step == stop_at:
            raise KilledError

    try:
        runpy.run_path(str(program), {"print": show})
    except KilledError:
        assert stop_at is not None
    return printed


def loops():
    """Return the page's program, and the same with its second loop, whose body is that of the first."""
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (first,) = [block for block in blocks if "with SliceSaver(" in block]
    (second,) = [block for block in blocks if "for epoch in range(done // STEPS, EPOCHS):" in block]
    begin, body = first.split("        for x, y in batches:\n")
    setup, saving = begin.split("dataset.set_init_step(")[0], re.search(r"with SliceSaver\(.*\n", begin)[0]
    assert second.count("        ...\n") == 1
    other = second.replace("        ...\n", indent(dedent(body), " " * 8))
    return {"one iterator": first, "one an epoch": setup + saving + indent(other, " " * 4)}


@pytest.mark.parametrize("kind", ["one iterator", "one an epoch"])
def test_the_loop_goes_on_to_the_last_bit(tmp_path, monkeypatch, capfd, kind):
    mode = ms.get_context("mode")
    ms.set_context(mode=ms.PYNATIVE_MODE)
    try:
        program = tmp_path / "loop.py"
        program.write_text(loops()[kind])
        whole = run(program, tmp_path / "whole", monkeypatch)
        assert sorted(whole) == list(range(1, 25))
        assert len(set(whole.values())) == 24
        assert sorted(run(program, tmp_path / "loop", monkeypatch, stop_at=13)) == list(range(1, 14))
        assert run(program, tmp_path / "loop", monkeypatch, stop_at=22) == {s: whole[s] for s in range(11, 23)}
        assert run(program, tmp_path / "loop", monkeypatch) == {s: whole[s] for s in range(21, 25)}
        lines = [line for line in capfd.readouterr().err.splitlines() if line.startswith("ms_recover: resumed from")]
        end = "weights, optimizer and samples proven; other values of the loop not proven: no extra was saved"
        assert [line.endswith(end) for line in lines] == [True, True]
    finally:
        ms.set_context(mode=mode)
