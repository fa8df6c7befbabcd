"""MindFormers is killed at any point of a save: the verdict is the iteration before, or this one when all is there."""

import os
import shutil

import pytest
from click.testing import CliRunner

from ms_recover import api
from ms_recover.cli.main import group
from ms_recover.errors import OlderStepError
from ms_recover.formats.shard_metadata import encode_metadata
from ms_recover.model.options import PlanOptions
from ms_recover.model.steps import Step
from ms_recover.planning.claims.rebuild import only_kinds
from tests.support.iteration_trees import contents, unpack
from tests.support.iterations import Job, make_metadata, write_job

OLD, NEW = "iteration_00000100", "iteration_00000200"
TRACKER = "latest_checkpointed_iteration.txt"
DEALT = Job(data_parallel=2, model_parallel=2, layers=1, remove_redundancy=True)


def drop(root, *patterns):
    """Remove files of the newest iteration."""
    for pattern in patterns:
        for path in list((root / NEW).glob(pattern)):
            path.unlink()


def track(root, text):
    (root / TRACKER).write_text(text)


def torn(root):
    """Leave two files as they are called while they are written, one whole and one cut."""
    for number, cut in ((6, 0), (7, 100)):
        path = root / NEW / f"llama_tiny-opt-000000{number}-0000008.safetensors"
        data = path.read_bytes()
        path.unlink()
        path.with_suffix(".tmp").write_bytes(data[: len(data) - cut])


def rewrite(root):
    """Begin to write an iteration again that the tracker names: a later save of the same number."""
    os.utime(root / TRACKER, ns=(1, 1))
    drop(root, "*opt*", "*.json", "*-000000[4-7]-*")


GIVEN_UP = {
    "directory made": lambda root: drop(root, "*"),
    "some model files": lambda root: drop(root, "*opt*", "*.json", "*-000000[3-7]-*"),
    "every model file, no optimizer": lambda root: drop(root, "*opt*", "*.json"),
    "documents of rank 0, no other rank": lambda root: drop(root, "*-000000[1-7]-*"),
    "documents alone": lambda root: drop(root, "*.safetensors"),
    "the last rank's optimizer": lambda root: drop(root, "*opt-0000007*"),
    "two files unfinished": torn,
    "rewriting it began": rewrite,
    "removing it was cut short": lambda root: drop(root, "common.json", "*-000000[57]-*"),
}


@pytest.mark.parametrize("tracked", ["100", "200"])
@pytest.mark.parametrize("point", GIVEN_UP)
def test_the_iteration_before_is_the_verdict(point, tracked, tmp_path):
    root = unpack("dp2_mp2_pp2", tmp_path)
    whole = contents(unpack("dp2_mp2_pp2", tmp_path / "whole", 100))
    GIVEN_UP[point](root)
    (root / TRACKER).unlink() if tracked is None else track(root, tracked)
    shutil.rmtree(tmp_path / "whole")
    plan = api.plan(api.scan(root))
    assert plan.step == Step.iteration(100)
    assert [one.step for one in plan.given_up] == [Step.iteration(200)]
    assert plan.actions == ()
    assert [write.target for write in plan.documents] == ([] if tracked == "100" else [TRACKER])
    assert api.apply(plan).exit_code == 0
    assert {name: data for name, data in contents(root).items() if NEW not in name} == whole
    with pytest.raises(OlderStepError, match="step 200"):
        api.plan(api.scan(root), PlanOptions(require_newest=True))


def test_the_headline_names_the_iteration_that_is_given_up(tmp_path):
    root = unpack("dp2_mp2_pp2", tmp_path)
    drop(root, "*opt*", "*.json")
    done = CliRunner().invoke(group, ["plan", str(root)])
    headline = done.output.splitlines()[1]
    assert headline.startswith("COMPLETE at step 100")
    assert "going back from step 200 (no source for ranks 0-7; ranks 0, 2: opt: " in headline
    assert headline.endswith("to step 100")


ALL_THERE = {
    "before common.json": ("*.json",),
    "before metadata.json": ("metadata.json",),
    "before the tracker": (),
}


@pytest.mark.parametrize("tracked", ["100", "", None])
@pytest.mark.parametrize("point", ALL_THERE)
def test_this_iteration_is_the_verdict_when_all_is_there(point, tracked, tmp_path):
    root = unpack("dp2_mp2_pp2", tmp_path)
    whole = contents(root)
    drop(root, *ALL_THERE[point])
    (root / NEW / "tmpab12cd_9").write_bytes(b'{"state_dict_metadata": {')
    (root / TRACKER).unlink() if tracked is None else track(root, tracked)
    plan = api.plan(api.scan(root))
    assert (plan.step, plan.actions) == (Step.iteration(200), ())
    assert plan.documents[-1].target == TRACKER
    assert any(note.path.endswith("tmpab12cd_9") for note in plan.notes)
    assert api.apply(plan).exit_code == 0
    (root / NEW / "tmpab12cd_9").unlink()
    assert contents(root) == whole
    assert (root / TRACKER).stat().st_mode & 0o777 == 0o640
    assert not api.plan(api.scan(root)).documents


def test_removing_the_oldest_iteration_disturbs_nothing(tmp_path):
    root = unpack("dp2_mp2_pp2", tmp_path)
    for path in list((root / OLD).iterdir())[::2]:
        path.unlink()
    plan = api.plan(api.scan(root))
    assert (plan.step, plan.actions, plan.documents) == (Step.iteration(200), (), ())


def test_a_rank_that_others_replace_is_no_reason_to_go_back(tmp_path):
    root = unpack("dp2_mp2_pp2", tmp_path)
    whole = contents(root)
    drop(root, "*-0000001-0000008.safetensors", "*-0000002-0000008.safetensors", "*.json")
    track(root, "100")
    plan = api.plan(api.scan(root))
    assert plan.step == Step.iteration(200)
    assert len(plan.actions) == 4
    api.apply(plan)
    assert contents(root) == whole


@pytest.mark.parametrize(("vouched", "tracked"), [(False, "100"), (False, "200"), (True, "200")])
def test_metadata_without_the_optimizer(vouched, tracked, tmp_path):
    """remove_redundancy writes it after the model file, again after the optimizer file, and then common.json."""
    root = write_job(tmp_path, DEALT)
    metadata = only_kinds(make_metadata(DEALT), frozenset(["model"]))
    (root / NEW / "metadata.json").write_bytes(b"".join(encode_metadata(metadata)))
    drop(root, "*opt*", *(() if vouched else ("common.json",)))
    track(root, tracked)
    plan = api.plan(api.scan(root))
    assert plan.step == Step.iteration(200 if vouched else 100)


def test_metadata_without_the_optimizer_although_its_files_are_there(tmp_path):
    root = write_job(tmp_path, DEALT)
    whole = contents(root)
    metadata = only_kinds(make_metadata(DEALT), frozenset(["model"]))
    (root / NEW / "metadata.json").write_bytes(b"".join(encode_metadata(metadata)))
    plan = api.plan(api.scan(root))
    assert plan.step == Step.iteration(200)
    assert [write.target for write in plan.documents] == [f"{NEW}/metadata.json"]
    api.apply(plan)
    assert contents(root) == whole


def test_a_later_run_that_resumed_from_an_older_iteration_is_named(tmp_path):
    """It has reached a smaller number than the abandoned one: which is meant only the operator knows."""
    root = unpack("dp2_mp2_pp2", tmp_path)
    latest = max(path.stat().st_mtime_ns for path in (root / NEW).iterdir())
    for path in (root / OLD).iterdir():
        os.utime(path, ns=(latest + 10**9, latest + 10**9))
    track(root, "100")
    plan = api.plan(api.scan(root))
    assert (plan.step, plan.documents) == (Step.iteration(200), ())
    assert "--step 100" in " ".join(plan.warnings)
    assert not api.plan(api.scan(root), PlanOptions(step=Step.iteration(100))).documents
    chosen = api.plan(api.scan(root), PlanOptions(step=Step.iteration(200)))
    assert [write.value for write in chosen.documents] == [200]
