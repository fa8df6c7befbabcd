"""``recover-ckpt reshard --format mindformers``: what it writes, prints and refuses."""

import json
from dataclasses import replace

import numpy as np
import pytest

from ms_recover.formats.shard_metadata import read_metadata
from tests.cli.test_reshard import SHAPES, job, run
from tests.support.command_line import in_this_process
from tests.support.reshard import COUNTER, contents_of, make_job_tree, write_strategies

NEW = ("--format", "mindformers", "--common", "global_batch_size=16")


@pytest.fixture
def arrays():
    numbers = np.random.default_rng(4)
    return {name: numbers.random(shape, np.float32) for name, shape in SHAPES.items()} | {COUNTER: np.int8(8)}


@pytest.fixture
def root(tmp_path, arrays):
    return make_job_tree(tmp_path / "source", job(8, (2, 4)), arrays)


@pytest.fixture
def iterations(tmp_path, arrays):
    """Ranks 0 and 4, 1 and 5 and so on hold the same."""
    states = {f"adam_m.{name}": 2 * array for name, array in arrays.items() if name != COUNTER}
    held = job(8, (2, 4))
    held.stages[0] |= {
        f"adam_m.{name}": replace(layout, parameter=f"adam_m.{name}") for name, layout in held.stages[0].items()
    }
    source = make_job_tree(tmp_path / "before", held, arrays | states)
    run(source, "--axes", "tp=4,dp=2", "-o", tmp_path / "iterations", *NEW)
    return tmp_path / "iterations"


def test_a_tree_becomes_an_iteration_that_every_command_reads(tmp_path, root):
    output = tmp_path / "output"
    done = run(root, "--axes", "tp=2,dp=2", "-o", output, *NEW, "--verify")
    assert "DONE: step 1_8 is cut anew (4 written)" in done.out
    assert "iteration_00000008/metadata.json, iteration_00000008/common.json, latest_checkpointed" in done.out
    assert "COMPLETE at step 8" in in_this_process("plan", output).out
    assert "SOUND: all 4 slices" in in_this_process("verify", output).out
    assert run(root, "--axes", "tp=2,dp=2", "-o", output, *NEW).out.count("already there") == 5
    common = json.loads((output / "iteration_00000008" / "common.json").read_text())
    assert (common["step_num"], common["global_batch_size"], common["loss_scale"]) == (8, 16, None)


def test_the_source_s_format_is_the_default_and_its_common_json_is_kept(tmp_path, iterations):
    output = tmp_path / "output"
    run(iterations, "--axes", "tp=2,dp=2", "-o", output, "--common", "ckpt_status=0")
    before, after = (
        json.loads((one / "iteration_00000008" / "common.json").read_text()) for one in (iterations, output)
    )
    assert after == before | {"ckpt_status": 0}
    assert read_metadata(output / "iteration_00000008" / "metadata.json").world_size == 4


def test_lost_files_of_an_iteration_do_not_matter_while_others_hold_the_same(tmp_path, iterations):
    whole, output = tmp_path / "whole", tmp_path / "output"
    words = ("--full", "--format", "mindformers", "--step", "8", "-o")
    run(iterations, *words, whole)
    for name in ("model-0000000", "opt-0000000", "model-0000005", "opt-0000007"):
        (iterations / "iteration_00000008" / f"test-{name}-0000008.safetensors").unlink()
    run(iterations, *words, output)
    for path in whole.rglob("*.safetensors"):
        assert (output / path.relative_to(whole)).read_bytes() == path.read_bytes()
    (iterations / "iteration_00000008" / "test-model-0000004-0000008.safetensors").unlink()
    done = run(iterations, *words, tmp_path / "third", code=4)
    assert "UNRECOVERABLE" in done.out
    assert "--format safetensors --partial writes the rest" in done.out
    assert "passed over" not in done.out
    done = run(iterations, *words, tmp_path / "third", "--partial", code=2)
    assert "initial value without a word" in done.err
    assert not (tmp_path / "third").exists()


def test_renamed_parameters_and_their_states(tmp_path, iterations):
    output = tmp_path / "output"
    run(iterations, "--full", *NEW[:2], "--rename", "rows=lines", "-o", output)
    names = read_metadata(output / "iteration_00000008" / "metadata.json").parameters
    assert {"lines", "adam_m.lines"} <= names.keys()
    assert not {"rows", "adam_m.rows"} & names.keys()
    held = {path.name.split("-")[1]: contents_of(path).keys() for path in output.rglob("*.safetensors")}
    assert held["model"] | held["opt"] == names.keys() | {"global_step"}
    assert all(name.startswith(("adam_m.", "global_step")) for name in held["opt"])


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--axes", "tp=2", "--format", "mindformers"), "--common global_batch_size=NUMBER"),
        (("--axes", "tp=2", *NEW, "--pattern", "rank_{rank}/x"), "own names for files"),
        (("--full", *NEW, "--shard-size", "1GiB"), "--shard-size goes with --full alone"),
        (("--axes", "tp=2", "--shard-size", "1GiB"), "--shard-size goes with --full alone"),
        (("--axes", "tp=2", "--format", "ckpt", "--common", "step_num=1"), "--common goes with"),
        (("--axes", "tp=2", "--common", "step_num=1"), "common.json is of MindFormers' format alone"),
        (("--axes", "tp=2", *NEW, "--common", "steps=1"), "it is none of epoch_num"),
        (("--axes", "tp=2", *NEW, "--common", "epoch_num=-1"), "-1 is not the number"),
        (("--axes", "tp=2", *NEW, "--common", "epoch_num"), "nothing is not the number"),
    ],
)
def test_what_it_refuses(words, text, tmp_path, root):
    done = run(root, *words, "-o", tmp_path / "output", code=2)
    assert text in done.err
    assert not (tmp_path / "output").exists()


def test_a_step_of_a_later_epoch_needs_its_iteration(tmp_path, fixtures):
    words = (fixtures / "dp2_mp4", "--full", *NEW, "-o", tmp_path / "output")
    assert "--common step_num=NUMBER" in run(*words, code=2).err
    run(*words, "--common", "step_num=154")
    common = json.loads((tmp_path / "output" / "iteration_00000154" / "common.json").read_text())
    assert (common["epoch_num"], common["global_step"]) == (2, 154)


def test_a_parameter_that_stages_cut_differently_is_refused(tmp_path, arrays):
    source, target = job(4, (2, 2), stages=2), job(4, (2, 2), stages=2)
    target.stages[1]["rows"] = job(4, (4,)).stages[0]["rows"]
    root = make_job_tree(tmp_path / "saved", source, arrays)
    folder = write_strategies(tmp_path / "target", target)
    done = run(root, "--to", folder, *NEW, "-o", tmp_path / "output", code=2)
    assert "several pipeline stages have 'rows' and cut it differently: choose another --format" in done.err
