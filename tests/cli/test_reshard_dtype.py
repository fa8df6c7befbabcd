"""``recover-ckpt reshard --dtype``: which parameters are cast, how it is checked, and what is refused."""

import json
import os
import sys
from dataclasses import replace

import numpy as np
import pytest

from ms_recover.formats import cast
from ms_recover.formats.header import read_header
from ms_recover.formats.shard_metadata import read_metadata
from tests.cli.test_reshard import SHAPES, job, run
from tests.support.command_line import in_this_process
from tests.support.reshard import COUNTER, contents_of, make_job_tree

STATE = "moment1.rows"


@pytest.fixture
def arrays():
    numbers = np.random.default_rng(6)
    made = {name: numbers.normal(0, 1, shape).astype(np.float32) for name, shape in SHAPES.items()}
    return made | {STATE: made["rows"] / 3, COUNTER: np.int8(8)}


def make(root, arrays, **options):
    held = job(8, (2, 4))
    held.stages[0][STATE] = replace(held.stages[0]["rows"], parameter=STATE)
    return make_job_tree(root, held, arrays, **options)


@pytest.fixture
def root(tmp_path, arrays):
    return make(tmp_path / "source", arrays, manifests=True)


def test_parameters_are_cast_and_states_are_not(tmp_path, root, arrays):
    output = tmp_path / "output"
    words = (root, "--axes", "tp=2,dp=1", "--dtype", "float16", "-o", output)
    shown = run(*words, "--plan").out
    assert "Cast to Float16, rounded to the nearest: 'rows', 'columns', 'norm'." in shown
    assert set(run(*words, "--plan", "--json").json["cast"].values()) == {"Float16"}
    done = run(*words, "--verify")
    assert "Cut back in memory and compared with the source: 14 regions" in done.out
    half = {name: array.astype(np.float16) for name, array in arrays.items() if name in SHAPES}
    for rank in range(2):
        held = contents_of(output / f"ckpt_dir{rank}" / "test-1_8.ckpt")
        assert held["rows"][1] == half["rows"][8 * rank : 8 * rank + 8].tobytes()
        assert held["columns"][1] == half["columns"][:, 12 * rank : 12 * rank + 12].tobytes()
        assert held["norm"][1] == half["norm"].tobytes()
        assert held[STATE][1] == arrays[STATE][8 * rank : 8 * rank + 8].tobytes()
        manifest = json.loads((output / f"ckpt_dir{rank}" / "test-1_8.ckpt.manifest.json").read_text())
        assert {dtype: sorted(names) for dtype, names in manifest["cast"].items()} == {
            "Float32": ["columns", "norm", "rows"]
        }
    assert "SOUND: all 2 slices" in in_this_process("verify", output).out
    assert run(*words).out.count("already there") == 3
    run(*words[:3], "--dtype", "bfloat16", "-o", output, code=2)


def test_the_cut_back_sees_a_cast_that_is_wrong(tmp_path, root, monkeypatch):
    right = cast.Caster.cast
    calls = []

    def wrong(self, window):
        calls.append(window)
        found = right(self, window)
        if len(calls) == 2:
            found[0] ^= 1
        return found

    monkeypatch.setattr(cast.Caster, "cast", wrong)
    words = (root, "--axes", "tp=2,dp=1", "--dtype", "bfloat16", "--jobs", 1, "-o", tmp_path / "output")
    done = run(*words, "--verify", code=5)
    assert "does not come back out of" in done.out


def test_what_has_the_type_already_stays(tmp_path, root):
    there, back = tmp_path / "there", tmp_path / "back"
    run(root, "--axes", "tp=4,dp=2", "--dtype", "float32", "-o", there)
    for path in root.rglob("test-1_8.ckpt"):
        assert (there / path.relative_to(root)).read_bytes() == path.read_bytes()
    run(root, "--axes", "tp=4,dp=1", "--dtype", "bfloat16", "-o", back)
    run(back, "--axes", "tp=4,dp=1", "--dtype", "float32", "-o", tmp_path / "wide")
    run(tmp_path / "wide", "--axes", "tp=4,dp=1", "--dtype", "bfloat16", "-o", tmp_path / "again")
    for path in back.rglob("test-1_8.ckpt"):
        assert (tmp_path / "again" / path.relative_to(back)).read_bytes() == path.read_bytes()


def test_a_value_that_the_type_cannot_hold_is_named(tmp_path, arrays):
    arrays["rows"][3, 5] = -70000
    root = make(tmp_path / "source", arrays)
    output = tmp_path / "output"
    done = run(root, "--full", "--dtype", "float16", "-o", output, code=2)
    assert "'rows' holds -70000, which Float16 cannot hold" in done.out
    assert not [path.name for path in output.iterdir() if not path.name.startswith(".")]
    run(root, "--full", "--dtype", "bfloat16", "-o", tmp_path / "other")


def test_infinities_and_nan_stay(tmp_path, arrays):
    arrays["rows"][0, :3] = [np.inf, -np.inf, np.nan]
    root = make(tmp_path / "source", arrays)
    run(root, "--full", "--dtype", "float16", "--format", "safetensors", "-o", tmp_path / "output", "--verify")
    _, data = contents_of(tmp_path / "output" / "model.safetensors")["rows"]
    assert str(np.frombuffer(data, np.float16)[:3].tolist()) == "[inf, -inf, nan]"


def test_a_damaged_source_is_passed_over_before_its_values_are_judged(tmp_path, root):
    path = root / "ckpt_dir0" / "test-1_8.ckpt"
    header, data, status = read_header(path), bytearray(path.read_bytes()), path.stat()
    places = dict(zip((one.name for one in header.parameters), header.contents, strict=True))
    data[places["rows"][0].end - 2 : places["rows"][0].end] = b"\x7f\x7f"  # a value that Float16 cannot hold
    path.write_bytes(data)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    run(root, "--axes", "tp=2,dp=1", "--dtype", "float16", "-o", tmp_path / "output", "--quick", code=5)
    run(root, "--axes", "tp=2,dp=1", "--dtype", "float16", "-o", tmp_path / "whole")
    for path in (tmp_path / "whole").rglob("test-1_8.ckpt"):
        assert (tmp_path / "output" / path.relative_to(tmp_path / "whole")).read_bytes() == path.read_bytes()


def test_metadata_and_the_index_state_the_type(tmp_path, root):
    new = ("--format", "mindformers", "--common", "global_batch_size=4")
    run(root, "--axes", "tp=2,dp=1", "--dtype", "bfloat16", *new, "-o", tmp_path / "new", "--verify")
    listed = read_metadata(tmp_path / "new" / "iteration_00000008" / "metadata.json").parameters
    assert {name: one.dtype for name, one in listed.items()} == dict.fromkeys(SHAPES, "bfloat16") | {STATE: "float32"}
    assert "COMPLETE" in in_this_process("plan", tmp_path / "new").out
    words = ("--full", "--format", "safetensors", "--shard-size", 400, "--dtype", "bfloat16")
    run(root, *words, "-o", tmp_path / "full")
    index = json.loads((tmp_path / "full" / "model.safetensors.index.json").read_text())
    sizes = sum(2 * int(np.prod(shape)) for shape in SHAPES.values())
    assert index["metadata"]["total_size"] == sizes + 4 * 16 * 12 + 1


def test_without_numpy_it_is_said_and_nothing_is_read(tmp_path, root, monkeypatch):
    monkeypatch.setitem(sys.modules, "numpy", None)
    done = run(root, "--full", "--dtype", "float16", "-o", tmp_path / "output", code=2)
    assert "--dtype needs numpy" in done.err
