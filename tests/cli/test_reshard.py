"""``recover-ckpt reshard``: what it prints, its codes, and what it refuses."""

import json
from pathlib import Path

import jsonschema
import numpy as np
import pytest

from ms_recover.api import scan
from ms_recover.formats.header import read_header
from ms_recover.formats.strategy import read_strategy
from ms_recover.model.axes import Axes
from ms_recover.model.reshard import ReshardOptions
from ms_recover.planning.claims.layouts import cells_of
from ms_recover.verbs.reshard import plan_reshard
from tests.support.command_line import in_this_process
from tests.support.cuts import cut_layout
from tests.support.reshard import (
    COUNTER,
    Job,
    check_tree,
    contents_of,
    make_job_tree,
    write_strategies,
)
from tests.support.strategies import json_strategy

SCHEMAS = Path(__file__).parents[2] / "docs" / "schemas"
NAME = "test-1_8.ckpt"
SHAPES = {"rows": (16, 12), "columns": (8, 24), "norm": (8,)}


def job(devices, matrix, *, shards=0, stages=1):
    """Return a job of tp x dp: rows cut by rows, columns by columns, norm on every rank."""
    named = {
        "rows": cut_layout("rows", matrix, (0,), (), shards=shards),
        "columns": cut_layout("columns", matrix, (), (0,)),
        "norm": cut_layout("norm", matrix, ()),
    }
    if stages == 1:
        return Job(devices, [named])
    return Job(devices, [{"rows": named["rows"]}, {name: named[name] for name in ("columns", "norm")}])


@pytest.fixture
def arrays():
    numbers = np.random.default_rng(3)
    made = {name: numbers.random(shape, np.float32) for name, shape in SHAPES.items()}
    return made | {COUNTER: np.int8(8)}


@pytest.fixture
def root(tmp_path, arrays):
    return make_job_tree(tmp_path / "source", job(8, (2, 4)), arrays)


def run(*words, code=0):
    done = in_this_process("reshard", *words)
    assert done.code == code, done.out + done.err
    return done


def flip(path, name):
    """Change a bit of a parameter."""
    header, data = read_header(path), bytearray(path.read_bytes())
    places = dict(zip((one.name for one in header.parameters), header.contents, strict=True))
    data[places[name][0].start] ^= 1
    path.write_bytes(data)


def schema(name):
    return json.loads((SCHEMAS / f"{name}.schema.json").read_text())


@pytest.mark.parametrize("merged", [False, True])
def test_strategy_files_of_stages_or_one_merged(merged, tmp_path, arrays):
    root = make_job_tree(tmp_path / "saved", job(8, (2, 4)), arrays, manifests=True)
    target = job(2, (2,), stages=2)
    folder = write_strategies(tmp_path / "target", target)
    if merged:
        parts = [read_strategy(path) for path in sorted(folder.iterdir())]
        items = {}
        for stage, part in enumerate(parts):
            text = json.loads(json_strategy(part, SHAPES))
            items |= {f"{stage}-{name}": item for name, item in text["parallel_layout_item"].items()}
        operators = {f"op{stage}": {"stage": stage, "parallel_strategy": [[1]]} for stage in range(2)}
        whole = {"current_stage": 1, "parallel_strategy_item": operators, "parallel_layout_item": items}
        folder = tmp_path / "merged.json"
        folder.write_text(json.dumps(whole))
    done = run(root, "--to", folder, "-o", tmp_path / "output", "--verify")
    assert "DONE: step 1_8 is cut anew (4 written)" in done.out
    check_tree(tmp_path / "output", target, arrays)
    assert "COMPLETE at step 1_8" in in_this_process("plan", tmp_path / "output").out
    assert "SOUND: all 4 slices" in in_this_process("verify", tmp_path / "output").out


def test_the_plan_is_printed_and_saved_and_writes_nothing(tmp_path, root):
    saved = tmp_path / "plan.json"
    words = (root, "--axes", "tp=2,dp=1", "-o", tmp_path / "output", "--plan")
    shown = run(*words, "--save-plan", saved).out
    assert "RESHARDABLE to 2 ranks: 2 files" in shown
    assert "Read from 4 of 8 sound slices" in shown
    printed = run(*words, "--json").json
    assert json.loads(saved.read_text()) == printed
    jsonschema.validate(printed, schema("reshard-plan"))
    assert [one["rank"] for one in printed["sources"]] == [0, 1, 2, 3]
    assert sum(one["bytes"] for one in printed["sources"]) == sum(one["bytes"] for one in printed["files"])
    assert not (tmp_path / "output").exists()
    outcome = run(*words[:-1], "--json").json
    jsonschema.validate(outcome, schema("reshard"))
    assert {one["status"] for one in outcome["results"]} == {"written"}


def test_what_nobody_holds_is_listed_and_the_rest_written(tmp_path, root):
    for rank in (1, 5):
        (root / f"ckpt_dir{rank}" / "test-1_8.ckpt").unlink()
    words = (root, "--axes", "tp=2,dp=1", "-o", tmp_path / "output")
    done = run(*words, code=4)
    assert "UNRECOVERABLE as 2 ranks: of 'rows', 'columns' nobody holds all" in done.out
    assert "[4:8, 0:12]" in done.out
    assert not (tmp_path / "output").exists()
    gone = run(*words, "--json", code=4).json["missing"]
    assert [(one["parameter"], one["region"]) for one in gone] == [
        ("rows", [[4, 8], [0, 12]]),
        ("columns", [[0, 8], [6, 12]]),
    ]
    assert "PARTIAL" in run(*words, "--partial", code=4).out
    names = sorted(path.name for path in (tmp_path / "output").rglob("test-*"))
    assert names == ["test-1_8.ckpt", "test-1_8.ckpt.manifest.json", "test-1_8.partial.ckpt"]
    assert contents_of(tmp_path / "output" / "ckpt_dir0" / "test-1_8.partial.ckpt").keys() == {"norm", COUNTER}


def test_a_parameter_without_layout_that_is_damaged_everywhere_is_missing(tmp_path, arrays):
    """No slice lists it any more but in its manifest: it must not vanish without a word."""
    root = make_job_tree(tmp_path / "source", job(2, (1, 2)), arrays, manifests=True)
    for path in root.rglob(NAME):
        flip(path, COUNTER)
    stages = write_strategies(tmp_path / "target", job(1, (1, 1), stages=2))
    for words in (["--full"], ["--axes", "tp=1,dp=1"], ["--to", stages]):
        gone = run(root, *words, "-o", tmp_path / "output", "--json", code=4).json["missing"]
        assert [(one["parameter"], one["bytes"]) for one in gone] == [(COUNTER, 1)]


def test_a_counter_that_is_damaged_in_one_stage_comes_from_another(tmp_path, arrays):
    saved = job(2, (1, 2), stages=2)
    root = make_job_tree(tmp_path / "source", saved, arrays, manifests=True)
    for rank in (2, 3):
        flip(root / f"ckpt_dir{rank}" / NAME, COUNTER)
    run(root, "--to", write_strategies(tmp_path / "target", saved), "-o", tmp_path / "output")
    check_tree(tmp_path / "output", saved, arrays)


@pytest.mark.parametrize("manifests", [False, True])
def test_replicas_that_give_nothing_are_read_where_manifests_do_not_prove_the_others(manifests, tmp_path, arrays):
    """With manifests they are read when what gives bytes is damaged, and where something is missing."""
    root = make_job_tree(tmp_path / "source", job(8, (2, 4)), arrays, manifests=manifests)
    paths = [root / f"ckpt_dir{rank}" / NAME for rank in range(8)]
    each = paths[0].stat().st_size

    def planned():
        counts = []
        plan = plan_reshard(scan(root), tmp_path / "output", ReshardOptions(full=True), progress=counts.append)
        return plan, sum(counts) // each

    plan, read = planned()
    assert (plan.complete, read) == (True, 4 if manifests else 8)
    flip(paths[1], "rows")
    plan, read = planned()
    assert (plan.complete, read) == (manifests, 5 if manifests else 8)
    flip(paths[5], "rows")
    plan, read = planned()
    assert (plan.complete, read) == (not manifests, 8)  # equal damage is not seen without manifests


def test_an_older_step_is_taken_and_said_where_the_newest_is_not_whole(tmp_path, root, arrays):
    for rank in range(8):
        old = root / f"ckpt_dir{rank}" / "test-1_8.ckpt"
        if rank not in (1, 5):
            (old.with_name("test-2_8.ckpt")).write_bytes(old.read_bytes())
    done = run(root, "--axes", "tp=2,dp=1", "-o", tmp_path / "output", "--plan")
    assert "step 1_8" in done.out
    text = "step 2_8 is passed over: nobody holds all of 'rows', 'columns'"
    assert f"WARNING: {text}" in done.out
    run(root, "--axes", "tp=2,dp=1", "-o", tmp_path / "output", "--step", "2_8", code=4)
    assert f"WARNING: {text}" in run(root, "--axes", "tp=2,dp=1", "-o", tmp_path / "output").out
    [warning] = run(root, "--axes", "tp=2,dp=1", "-o", tmp_path / "output", "--json").json["warnings"]
    assert warning.startswith(text)


@pytest.mark.parametrize("form", ["ckpt", "safetensors"])
def test_full_checkpoints_in_pieces_with_an_index(form, tmp_path, root, arrays):
    output = tmp_path / "output"
    run(root, "--full", "--format", form, "--shard-size", "800", "-o", output, "--verify")
    index = json.loads((output / f"model.{form}.index.json").read_text())
    assert index["metadata"]["total_size"] == sum(array.nbytes for array in arrays.values())
    assert index["weight_map"].keys() == arrays.keys()
    for name, array in arrays.items():
        assert contents_of(output / index["weight_map"][name])[name] == (array.shape, array.tobytes())
    one = tmp_path / "one"
    run(root, "--full", "--format", form, "-o", one)
    assert contents_of(one / f"model.{form}").keys() == arrays.keys()
    assert not list(one.glob("*index*"))


def test_parameters_get_other_names_and_the_manifest_says_where_from(tmp_path, root, arrays):
    run(root, "--full", "--rename", "rows=model.rows", "-o", tmp_path / "output", "--verify")
    found = contents_of(tmp_path / "output" / "model.ckpt")
    assert found["model.rows"][1] == arrays["rows"].tobytes()
    manifest = json.loads((tmp_path / "output" / "model.ckpt.manifest.json").read_text())
    assert manifest["provenance"]["kind"] == "resharded"
    taken = {}
    for parameter, source, _, _, length, loops in manifest["ranges"]:
        count = length
        for times, _, _ in loops:
            count *= times
        taken[parameter] = taken.get(parameter, 0) + count
        assert manifest["provenance"]["sources"][source]["path"].startswith(str(root))
    assert taken == {number: one["bytes"] for number, one in enumerate(manifest["parameters"])}


def test_slices_lie_where_the_pattern_says(tmp_path, root, arrays):
    output = tmp_path / "output"
    run(root, "--axes", "tp=2,dp=2", "--pattern", "{prefix}_rank_{rank}-{epoch}_{step}.ckpt", "-o", output)
    assert sorted(path.name for path in output.glob("*.ckpt")) == [f"test_rank_{rank}-1_8.ckpt" for rank in range(4)]
    assert (output / "strategy" / "ckpt_strategy_rank_3.ckpt").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "name the target once"),
        (["--full", "--axes", "tp=1"], "name the target once"),
        (["--full", "--order", "dp,tp"], "--order goes with --axes alone"),
        (["--axes", "tp=3,dp=1"], "16 cannot be divided into"),
        (["--axes", "tp=2,dp=1,pp=2"], "nothing says which parameters of the 1 stages"),
        (["--axes", "tp=2,ep=2"], "experts"),
        (["--axes", "tp=2,dp=2", "--optimizer-shards", "2"], "shards no parameter"),
        (["--axes", "tp=2,dp=1", "--order", "dp,tp,pp"], "give --order"),
        (["--full", "--rename", "a=b", "--rename", "b=a"], "circle"),
        (["--full", "--rename", "nothing=b"], "fits no parameter"),
        (["--full", "--rename", "rows=columns"], "the same name"),
        (["--full", "--shard-size", "many"], "no size"),
        (["--axes", "tp=2", "--pattern", "{rank}/a-{step}.safetensors"], "see --format"),
        (["--axes", "tp=2,dp=2", "--pattern", "x/{prefix}-{epoch}_{step}"], "lacks {rank}"),
        (["--axes", "tp=2,dp=2", "--pattern", "../{rank}-{step}"], "a path below the root"),
        (["--axes", "tp=2,dp=2", "--pattern", "{rank}/{prefx}-{step}"], "{prefx} is not known"),
        (["--axes", "tp=2,dp=2", "--pattern", "rank_{rank}/.{prefix}-{step}"], "has a hidden name"),
        (["--axes", "tp=2,dp=2", "--pattern", ""], "lacks {rank}"),
    ],
)
def test_what_cannot_be_meant_is_refused(words, said, tmp_path, root):
    done = run(root, *words, "-o", tmp_path / "output", code=2)
    assert said in done.err
    assert not (tmp_path / "output").exists()


def test_an_output_that_cannot_be_is_refused_before_anything_is_read(tmp_path, root):
    """A tree may have terabytes; a variable that is not set gives an empty name."""
    for path in root.rglob(NAME):
        path.unlink()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("mine")
    (tmp_path / "file").write_text("mine")
    for output, said in (
        ("", "-o OUT is missing"),
        (root / "new", "name a folder outside"),
        (tmp_path / "full", "holds notes.txt, which no reshard wrote"),
        (tmp_path / "file", "is a file"),
        ("s3://bucket/folder", "folders of this host alone"),
    ):
        for more in ([], ["--plan"]):
            assert said in run(root, "--full", "-o", output, *more, code=2).err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "full", "source"]


def test_strategy_files_that_do_not_fit(tmp_path, root):
    def refused(target, said, code=2):
        folder = tmp_path / f"target{len(list(tmp_path.iterdir()))}"
        done = run(root, "--to", write_strategies(folder, target), "-o", tmp_path / "output", code=code)
        assert said in done.err

    other = Job(2, [{"decoder.w": cut_layout("decoder.w", (2,), (0,), ())}])
    refused(other, "it is the strategy of another model")
    refused(Job(2, [{"rows": cut_layout("rows", (2,), (0,))}]), "it is the strategy of another model")
    refused(Job(32, [{"rows": cut_layout("rows", (32,), (0,), ())}]), "16 cannot be divided into")
    run(root, "--to", tmp_path / "nowhere", "-o", tmp_path / "output", code=3)
    (tmp_path / "empty").mkdir()
    assert "holds no strategy file" in run(root, "--to", tmp_path / "empty", "-o", tmp_path / "o", code=3).err
    half = write_strategies(tmp_path / "half", job(2, (2,), stages=2))
    (half / "strategy_rank_0.ckpt").unlink()
    assert "stage 0 is missing" in run(root, "--to", half, "-o", tmp_path / "o", code=3).err


def test_parameters_that_the_target_does_not_name_are_left_out_and_said(tmp_path, root, arrays):
    target = Job(2, [{"rows": cut_layout("rows", (2,), (0,), ()), "norm": cut_layout("norm", (2,), ())}])
    done = run(root, "--to", write_strategies(tmp_path / "target", target), "-o", tmp_path / "output")
    assert "WARNING: left out, because the target does not name them: 'columns'" in done.out
    kept = {name: array for name, array in arrays.items() if name != "columns"}
    check_tree(tmp_path / "output", target, kept)


@pytest.mark.parametrize(
    ("axes", "target"),
    [
        ("tp=4,dp=1", job(4, (1, 4))),
        ("mp=2,dp=4", job(8, (4, 2))),
        ("tp=1,dp=2", job(2, (2, 1))),
        ("tp=8,cp=2,pp=1", job(16, (2, 8))),
    ],
)
def test_axes_keep_their_meaning(axes, target, tmp_path, root, arrays):
    run(root, "--axes", axes, "-o", tmp_path / "output", "--verify")
    check_tree(tmp_path / "output", target, arrays)
    assert Axes.parse(axes)


@pytest.mark.parametrize(
    ("shards", "axes", "words", "expected"),
    [
        (2, "tp=2,dp=4", [], 2),
        (4, "tp=2,dp=2", ["--optimizer-shards", "all"], 2),
        (4, "tp=2,dp=2", ["--optimizer-shards", "1"], 0),
        (-1, "tp=2,dp=2", [], -1),
        (4, "tp=2,dp=4", [], 4),
    ],
)
def test_optimizer_shards_follow_the_replicas(shards, axes, words, expected, tmp_path, arrays):
    root = make_job_tree(tmp_path / "source", job(8, (4, 2), shards=shards), arrays)
    run(root, "--axes", axes, *words, "-o", tmp_path / "output", "--verify")
    copies = Axes.parse(axes).size("dp")
    check_tree(tmp_path / "output", job(2 * copies, (copies, 2), shards=expected), arrays)


@pytest.mark.parametrize("name", ["dp4_mp2_opt2", "dp4_mp2_optfull", "dp2_mp2_pp2", "dp2_mp4"])
def test_the_same_axes_give_the_layouts_that_mindspore_wrote(name, fixtures, tmp_path):
    first = fixtures / name
    sizes = {"dp2_mp2_pp2": "tp=2,dp=2,pp=2", "dp2_mp4": "tp=4,dp=2"}.get(name, "tp=2,dp=4")
    run(first, "--axes", sizes, "-o", tmp_path / "output")
    for path in first.glob("ckpt_dir*/strategy.ckpt"):
        made = read_strategy(tmp_path / "output" / path.relative_to(first))
        there = {layout.parameter: layout for layout in read_strategy(path).layouts}
        for layout in made.layouts:
            expected = there[layout.parameter]
            ranks = range(made.devices_per_stage)
            assert cells_of(layout, ranks) == cells_of(expected, ranks)
            if not layout.parameter.startswith("accu_grads"):
                assert (layout.opt_shard_step, layout.opt_shard_size) == (
                    expected.opt_shard_step,
                    expected.opt_shard_size,
                )


def test_optimizer_shards_that_may_mean_two_things_are_asked_for(tmp_path, arrays):
    root = make_job_tree(tmp_path / "source", job(8, (4, 2), shards=4), arrays)
    done = run(root, "--axes", "tp=2,dp=2", "-o", tmp_path / "output", code=2)
    assert "say with --optimizer-shards how many, or all" in done.err


def test_a_tree_without_layouts_needs_the_word_that_all_ranks_hold_the_same(tmp_path, arrays):
    root = make_job_tree(tmp_path / "source", Job(2, [job(2, (2, 1)).stages[0]]), arrays, strategies=False)
    done = run(root, "--full", "-o", tmp_path / "output")
    assert "DONE" in done.out  # its rank lists say so
    for path in root.rglob("group_info.pb"):
        path.unlink()
    assert "name the strategy files" in run(root, "--full", "-o", tmp_path / "other", code=3).err
    run(root, "--full", "--group", "0,1", "-o", tmp_path / "other")
    assert contents_of(tmp_path / "other" / "model.ckpt") == contents_of(tmp_path / "output" / "model.ckpt")


def test_values_that_each_rank_has_of_its_own(tmp_path, arrays):
    named = job(2, (1, 2))
    named.stages[0]["rng_state"] = cut_layout("rng_state", (1, 2), ())
    trees = [
        make_job_tree(tmp_path / f"rank{rank}", named, arrays | {"rng_state": np.full(4, rank, np.int8)})
        for rank in range(2)
    ]
    (trees[0] / "ckpt_dir1" / NAME).write_bytes((trees[1] / "ckpt_dir1" / NAME).read_bytes())
    for path in trees[0].rglob("strategy.ckpt"):
        path.write_bytes(job(2, (1, 2)).strategy(0))
    done = run(trees[0], "--axes", "tp=2,dp=2", "-o", tmp_path / "output")
    assert "DONE" in done.out
    assert "WARNING: each rank had its own values of 'rng_state'" in done.out
    folders = [tmp_path / "output" / f"ckpt_dir{rank}" for rank in range(4)]
    assert [contents_of(one / NAME)["rng_state"][1] for one in folders] == [bytes([rank % 2] * 4) for rank in range(4)]
    manifest = json.loads((folders[3] / f"{NAME}.manifest.json").read_text())
    assert manifest["provenance"]["borrowed"] == ["rng_state"]


def test_a_counter_that_differs_is_no_counter(tmp_path, root, arrays):
    other = make_job_tree(tmp_path / "other", job(8, (2, 4)), arrays | {COUNTER: np.int8(9)})
    (root / "ckpt_dir3" / "test-1_8.ckpt").write_bytes((other / "ckpt_dir3" / "test-1_8.ckpt").read_bytes())
    (root / "ckpt_dir7" / "test-1_8.ckpt").write_bytes((other / "ckpt_dir7" / "test-1_8.ckpt").read_bytes())
    done = run(root, "--full", "-o", tmp_path / "output", code=4)
    assert f"'{COUNTER}'" in done.out
    assert "it differs from rank to rank" in done.out


@pytest.mark.parametrize("quick", [False, True])
def test_stages_that_cut_a_shared_parameter_differently_are_compared_where_they_overlap(quick, tmp_path, arrays):
    """Stage 0 has four parts of the rows, stage 1 four of the columns: no two regions are the same."""
    saved = Job(4, [{"rows": cut_layout("rows", (4,), (0,), ())}, {"rows": cut_layout("rows", (4,), (), (0,))}])
    saved.stages[1]["columns"] = cut_layout("columns", (4,), (), (0,))
    root = make_job_tree(tmp_path / "saved", saved, arrays)
    words = (root, "--full", "--format", "safetensors", *(["--quick"] if quick else []))
    run(*words, "-o", tmp_path / "output")
    assert contents_of(tmp_path / "output" / "model.safetensors")["rows"][1] == arrays["rows"].tobytes()
    changed = arrays | {"rows": arrays["rows"].copy()}
    changed["rows"][15, 11] += 1
    other = make_job_tree(tmp_path / "other", saved, changed)
    for rank in range(4, 8):
        path = root / f"ckpt_dir{rank}" / NAME
        path.write_bytes((other / f"ckpt_dir{rank}" / NAME).read_bytes())
    done = run(*words, "-o", tmp_path / "third", code=5)
    assert "DISPUTED: 'rows': pipeline stages hold different contents of it where they overlap" in done.out
    run(*words, "-o", tmp_path / "third", "--partial", code=5)
    assert contents_of(tmp_path / "third" / "model.partial.safetensors").keys() == {"columns", COUNTER}
