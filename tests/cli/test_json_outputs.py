"""What the commands print with --json stays as it is, keys, their order, and values, and is what its schema says.

Free text is left out, because wording may improve. To write the golden files again, after a change that is meant:
``MS_RECOVER_GOLDEN=write python -m pytest tests/cli/test_json_outputs.py``, and read their diff.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import jsonschema
import numpy as np
import pytest

from ms_recover.errors import FormatError
from ms_recover.formats.plan_json import plan_from_json
from ms_recover.model.steps import Step
from ms_recover.testing.trees import make_tree
from tests.support.cuts import CutTensor, cut_layout, make_cut_tree
from tests.support.iteration_trees import unpack

GOLDEN = Path(__file__).parents[1] / "data" / "json"
REPOSITORY = Path(__file__).parents[2]
SCHEMAS = REPOSITORY / "docs" / "schemas"
PROSE = {"reason", "problem", "error", "note", "world_size_from", "disagreements", "warnings", "errors", "dropped"}
PROSE |= {"problems", "hints", "headline", "text", "mend", "why", "clean_reason", "notes"}
TIME = 1_700_000_000_000_000_000


@pytest.fixture
def prepare(tmp_path, fixtures):
    """Make the tree that a case is about, with the same times whenever it is made."""

    def make(case):
        tree = tmp_path / "tree"
        TREES[case](tree, fixtures)
        for path in [tree, *tree.rglob("*")]:
            os.utime(path, ns=(TIME, TIME))
        return tree

    return make


def copied(tree, fixtures):
    shutil.copytree(fixtures / "dp2_mp4", tree, ignore=shutil.ignore_patterns("truth"))
    shutil.rmtree(tree / "ckpt_dir0")
    (tree / "ckpt_dir5" / "test-2_77.ckpt").write_bytes((tree / "ckpt_dir5" / "test-2_77.ckpt").read_bytes()[:-50])
    (tree / "ckpt_dir3" / "test-2_77.ckpt.tmp").write_bytes(b"")


def stepping_back(tree, fixtures):
    shutil.copytree(fixtures / "dp2_mp4", tree, ignore=shutil.ignore_patterns("truth"))
    for rank in (1, 5):
        (tree / f"ckpt_dir{rank}" / "test-2_77.ckpt").unlink()


def stages(tree, fixtures):
    shutil.copytree(fixtures / "dp2_mp2_pp2", tree, ignore=shutil.ignore_patterns("truth"))


def composed(tree, fixtures):
    source = np.random.default_rng(7)
    named = {
        "columns": CutTensor("Float32", _floats(source, 8, 12), cut_layout("columns", (2, 2), (), (0,))),
        "rows": CutTensor("Float32", _floats(source, 8, 6), cut_layout("rows", (2, 2), (1,), ())),
        "learning_rate": CutTensor("Float32", np.float32(0.125)),
    }
    make_cut_tree(tree, named, 4, manifests=True)
    for path in (tree / "ckpt_dir0").iterdir():
        path.unlink()


def lost(tree, fixtures):
    composed(tree, fixtures)
    for path in (tree / "ckpt_dir2").iterdir():
        path.unlink()


def iteration(tree, fixtures):
    unpack("dp2_mp2_pp2", tree, 200)
    folder = tree / "iteration_00000200"
    next(path for path in sorted(folder.iterdir()) if "-model-" in path.name).unlink()
    (folder / "common.json").unlink()


def whole_iteration(tree, fixtures):
    unpack("dp2_mp2_pp2", tree, 200)


def _floats(source, *shape):
    return source.integers(0, 100, shape).astype(np.float32)


TREES = {
    "copy": copied,
    "older": stepping_back,
    "stages": stages,
    "compose": composed,
    "lost": lost,
    "iteration": iteration,
    "whole": whole_iteration,
}
WORLD = ("--world-size", "4")
CASES = {
    "plan-copy": ("copy", ("plan", "."), 0),
    "plan-older": ("older", ("plan", "."), 0),
    "plan-compose": ("compose", ("plan", ".", *WORLD), 0),
    "plan-explain": ("compose", ("plan", ".", *WORLD, "--explain", "0"), 0),
    "plan-lost": ("lost", ("plan", ".", *WORLD), 4),
    "apply-copy": ("copy", ("apply", "."), 0),
    "apply-older": ("older", ("apply", "."), 0),
    "apply-compose": ("compose", ("apply", ".", *WORLD), 0),
    "apply-partial": ("lost", ("apply", ".", *WORLD, "--partial"), 4),
    "verify-copy": ("copy", ("verify", "."), 5),
    "verify-compose": ("compose", ("verify", ".", *WORLD), 5),
    "scan-copy": ("copy", ("scan", "."), 0),
    "scan-stages": ("stages", ("scan", "."), 0),
    "inspect-slice": ("stages", ("inspect", "ckpt_dir1/test-1_77.ckpt"), 0),
    "inspect-group": ("stages", ("inspect", "ckpt_dir1/group_info.pb"), 0),
    "inspect-strategy": ("stages", ("inspect", "ckpt_dir1/strategy.ckpt"), 0),
    "inspect-damaged": ("copy", ("inspect", "ckpt_dir5/test-2_77.ckpt"), 3),
    "audit-copy": ("copy", ("audit", ".", "--losses", "2", "--survive", "rank"), 6),
    "audit-compose": ("compose", ("audit", ".", *WORLD), 6),
    "complete-stages": ("stages", ("complete", ".", "1", "-o", "../whole.ckpt"), 0),
    "copy-stages": ("stages", ("copy", ".", "../backup"), 0),
    "history-copy": ("copy", ("history", "."), 0),
    "history-compose": ("compose", ("history", ".", *WORLD, "--read"), 0),
    "reshard-stages": ("stages", ("reshard", ".", "-o", "../out", "--axes", "tp=2"), 0),
    "reshard-plan": ("stages", ("reshard", ".", "-o", "../out", "--full", "--plan"), 0),
    "seal-stages": ("stages", ("seal", "."), 0),
    "plan-iteration": ("iteration", ("plan", "."), 0),
    "apply-iteration": ("iteration", ("apply", "."), 0),
    "verify-iteration": ("iteration", ("verify", "."), 5),
    "scan-iteration": ("iteration", ("scan", "."), 0),
    "inspect-metadata": ("iteration", ("inspect", "iteration_00000200/metadata.json"), 0),
    "inspect-common": ("whole", ("inspect", "iteration_00000200/common.json"), 0),
    "inspect-tracker": ("iteration", ("inspect", "latest_checkpointed_iteration.txt"), 0),
    "inspect-other": ("copy", ("inspect", "ckpt_dir3/test-2_77.ckpt.tmp"), 3),
}

SCHEMA_OF = {"reshard-plan": "reshard-plan", "seal-stages": "verify", "complete-stages": None}


@pytest.mark.parametrize("case", CASES)
def test_json_output_is_as_it_was_and_as_its_schema_says(case, prepare, recover_ckpt):
    name, arguments, code = CASES[case]
    tree = prepare(name)
    done = recover_ckpt(*arguments, "--json", cwd=tree)
    assert done.code == code, done.err
    if (schema := SCHEMA_OF.get(case, arguments[0])) is not None:
        validator(schema).validate(done.json)
    printed = json.dumps(without_prose(done.json), indent=1) + "\n"
    printed = printed.replace(json.dumps(os.path.realpath(tree)), '"ROOT"')
    printed = printed.replace(os.path.realpath(tree.parent), "FOLDER")
    golden = GOLDEN / f"{case}.json"
    if os.environ.get("MS_RECOVER_GOLDEN") == "write":
        golden.write_text(printed)
    assert printed == golden.read_text()


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ("copy", ("copy", ".", "../backup", "--json")),
        ("verify", ("seal", ".", "--json")),
        ("worker-info", ("worker-info", ".")),
    ],
)
def test_other_outputs_are_as_their_schemas_say(schema, words, tmp_path, recover_ckpt):
    done = recover_ckpt(*words, cwd=make_tree(tmp_path / "tree", steps=[Step(1, 8)]))
    assert done.code == 0, done.err
    validator(schema).validate(done.json)


def test_members_of_a_common_json_that_nobody_knows_are_left_out(tmp_path, recover_ckpt):
    (tmp_path / "common.json").write_text('{"global_step": 7, "more": 1, "epoch_num": null}')
    done = recover_ckpt("inspect", "common.json", "--json", cwd=tmp_path)
    validator("inspect").validate(done.json)
    assert (done.code, done.json["common"]) == (0, {"global_step": 7, "epoch_num": None})
    assert recover_ckpt("inspect", "common.json", cwd=tmp_path).code == 0


def validator(command):
    schema = json.loads((SCHEMAS / f"{command}.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


@pytest.mark.processes
def test_schemas_are_those_of_the_types(tmp_path):
    subprocess.run([sys.executable, REPOSITORY / "scripts" / "schemas.py", tmp_path], check=True, timeout=60)
    made = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert made == {path.name: path.read_text() for path in SCHEMAS.glob("*.json")}, "run python scripts/schemas.py"


@pytest.mark.parametrize(
    "change",
    [
        lambda plan: plan["actions"][0].update(target="../outside.ckpt"),
        lambda plan: plan["actions"][0].update(source="/etc/passwd"),
        lambda plan: plan["actions"][0].update(kind="partial"),
        lambda plan: plan["actions"][0].update(rank=-1),
        lambda plan: plan["actions"][0].update(source_digest="md5:00"),
        lambda plan: plan["actions"][0].update(evidence="hearsay"),
        lambda plan: plan["ranks"][0].update(state="fine"),
        lambda plan: plan.pop("ranks"),
        lambda plan: plan.update(version=1),
    ],
)
def test_the_schema_of_plans_refuses_what_reading_refuses(change):
    plan = json.loads((GOLDEN / "plan-copy.json").read_text())
    validator("plan").validate(plan)
    change(plan)
    assert not validator("plan").is_valid(plan)
    with pytest.raises(FormatError):
        plan_from_json(json.dumps(plan), "plan.json")


def without_prose(data, key=None):
    """Return JSON values with the texts that people read left out."""
    if isinstance(data, dict):
        return {name: without_prose(value, name) for name, value in data.items()}
    if isinstance(data, list):
        return [without_prose(value, key) for value in data]
    return "..." if key in PROSE and isinstance(data, str) and data else data
