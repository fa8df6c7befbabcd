"""Outputs of a reshard: what lies there, what a second run and a dry run say of it, and how it is compared."""

import json
import os

import numpy as np
import pytest

from ms_recover import api
from ms_recover.errors import UnrecoverableError, UsageError, VerificationError
from ms_recover.execution.reshard_check import compare_back
from ms_recover.file_names import MANIFEST_SUFFIX
from ms_recover.formats.header import read_header
from ms_recover.formats.manifest import read_manifest
from ms_recover.model.options import PlanOptions
from ms_recover.model.reshard import ReshardOptions
from ms_recover.stores.digest import digest_file
from ms_recover.stores.urls import open_store
from tests.support.cuts import cut_layout
from tests.support.reshard import COUNTER, Job, make_job_tree, write_strategies

ARRAYS = {
    "weight": np.arange(64, dtype=np.float32),
    "whole": np.arange(3, dtype=np.float32),
    COUNTER: np.int8(8),
}


def job_of(devices, *names):
    layouts = {"weight": cut_layout("weight", (devices,), (0,)), "whole": cut_layout("whole", (devices,), ())}
    return Job(devices, [{name: layouts[name] for name in names or layouts}])


@pytest.fixture
def root(tmp_path):
    return make_job_tree(tmp_path / "source", job_of(2), ARRAYS, manifests=True)


def plan_of(root, target=None, **wanted):
    """Plan to write the slices of four ranks, or those of another job."""
    if not wanted.get("full"):
        wanted["strategy"] = str(write_strategies(root.parent / "target", target or job_of(4)))
    return api.plan_reshard(api.scan(root), root.parent / "output", ReshardOptions(**wanted))


def written(output):
    return {path.relative_to(output): path.read_bytes() for path in output.rglob("*") if path.is_file()}


def contents_of(path):
    header, data = read_header(path), path.read_bytes()
    contents = [b"".join(data[one.start : one.end] for one in ranges) for ranges in header.contents]
    return dict(zip((one.name for one in header.parameters), contents, strict=True))


def test_each_slice_has_its_part_and_a_manifest_that_names_the_strategy_file_beside_it(root):
    plan = plan_of(root)
    assert api.reshard(plan).exit_code == 0
    for file in plan.files:
        path = root.parent / "output" / file.target
        part = ARRAYS["weight"][16 * file.rank : 16 * file.rank + 16]
        assert contents_of(path) == {
            "weight": part.tobytes(),
            "whole": ARRAYS["whole"].tobytes(),
            COUNTER: ARRAYS[COUNTER].tobytes(),
        }
        manifest = read_manifest(f"{path}{MANIFEST_SUFFIX}")
        assert (manifest.rank, manifest.world_size, manifest.group) == (file.rank, 4, (file.rank,))
        assert manifest.digests == digest_file(path, read_header(path).contents)
        assert manifest.strategy_digest == digest_file(path.with_name("strategy.ckpt")).file
        assert manifest.provenance.kind == "resharded"


def test_a_second_run_writes_nothing(root):
    plan, output = plan_of(root), root.parent / "output"
    first = api.reshard(plan)
    inodes = {path: path.stat().st_ino for path in output.rglob("*")}
    second = api.reshard(plan)
    assert [one.status for one in first.results] == ["written"] * 4
    assert [one.status for one in second.results] == ["already there"] * 4
    assert [one.digest for one in second.results] == [one.digest for one in first.results]
    assert (second.documents, second.exit_code) == ((), 0)
    assert {path: path.stat().st_ino for path in output.rglob("*")} == inodes


def test_a_slice_whose_bytes_are_gone_is_written_again_and_no_other(root):
    plan, output = plan_of(root), root.parent / "output"
    api.reshard(plan)
    before = written(output)
    (output / plan.files[2].target).unlink()
    again = api.reshard(plan)
    assert [one.status for one in again.results] == ["already there", "already there", "written", "already there"]
    assert written(output) == before


def test_a_dry_run_says_what_a_run_does_and_writes_nothing(root):
    plan, output = plan_of(root), root.parent / "output"
    foreseen = api.reshard(plan, dry_run=True)
    assert not output.exists()
    done = api.reshard(plan)
    assert [one.status for one in foreseen.results] == ["planned"] * 4
    assert [(one.bytes, one.digest) for one in foreseen.results] == [(one.bytes, one.digest) for one in done.results]
    assert (set(foreseen.documents), foreseen.exit_code) == (set(done.documents), 0)
    before = written(output)
    again = api.reshard(plan, dry_run=True)
    assert [one.status for one in again.results] == ["already there"] * 4
    assert (again.documents, again.exit_code, written(output)) == ((), 0, before)


@pytest.mark.parametrize("dry_run", [True, False])
def test_documents_wait_for_a_slice_that_something_else_lies_in_the_place_of(dry_run, root):
    plan, output = plan_of(root), root.parent / "output"
    api.reshard(plan)
    first = output / plan.files[0].target
    first.chmod(0o600)
    first.write_bytes(b"of somebody")
    documents = [path for path in output.rglob("*") if path.name in ("strategy.ckpt", "group_info.pb")]
    for path in documents:
        path.unlink()
    outcome = api.reshard(plan, dry_run=dry_run)
    assert [one.status for one in outcome.results] == ["failed"] + ["already there"] * 3
    assert "is there already and holds other bytes: move it away" in outcome.results[0].error
    assert (outcome.documents, outcome.exit_code) == ((), VerificationError.exit_code)
    assert not any(path.exists() for path in documents)
    assert first.read_bytes() == b"of somebody"


def test_what_a_killed_run_left_is_no_foreign_file_and_goes(root):
    plan, output = plan_of(root), root.parent / "output"
    api.reshard(plan)
    left = output / plan.files[0].target
    left = left.with_name(f".{left.name}.ms_recover.tmp")
    left.touch()
    assert api.reshard(plan).exit_code == 0
    assert not left.exists()


def test_a_file_of_somebody_else_and_another_plan_are_refused(root):
    plan, output = plan_of(root), root.parent / "output"
    api.reshard(plan)
    with pytest.raises(UsageError, match="holds what another reshard wrote or began"):
        api.reshard(plan_of(root, job_of(2)))
    (output / "notes.txt").touch()
    with pytest.raises(UsageError, match=r"holds notes\.txt, which is no part of this reshard"):
        api.reshard(plan)


@pytest.mark.parametrize("dry_run", [True, False])
def test_what_nobody_holds_is_left_out_where_that_is_asked_for_alone(dry_run, tmp_path):
    root = make_job_tree(tmp_path / "source", job_of(2), ARRAYS, manifests=True)
    for path in (root / "ckpt_dir1").glob("test-*"):
        path.unlink()
    plan = plan_of(root)
    with pytest.raises(UnrecoverableError, match="it names what nobody holds"):
        api.reshard(plan, dry_run=dry_run)
    outcome = api.reshard(plan, partial=True, dry_run=dry_run)
    assert (outcome.partial, outcome.exit_code) == (True, UnrecoverableError.exit_code)


@pytest.mark.parametrize(("size", "files"), [(1 << 30, 1), (260, 2)])
def test_a_full_checkpoint_of_several_files_has_an_index(size, files, root):
    plan, output = plan_of(root, full=True, shard_size=size), root.parent / "output"
    assert len(plan.files) == files
    assert api.reshard(plan).exit_code == 0
    found = [json.loads(path.read_text()) for path in output.glob("*.index.json")]
    expected = {one.name: file.target for file in plan.files for one, _, _ in plan.parts_of(file)}
    assert [one["weight_map"] for one in found] == ([expected] if files > 1 else [])
    assert [one["metadata"]["total_size"] for one in found] == ([64 * 4 + 3 * 4 + 1] if files > 1 else [])


def digests_of(plan):
    found = {}
    for file in plan.files:
        path = os.path.join(plan.output, file.target)
        header = read_header(path)
        names = (one.name for one in header.parameters)
        found[file.target] = dict(zip(names, digest_file(path, header.contents).parameters, strict=True))
    return found


@pytest.mark.parametrize("manifests", [True, False])
@pytest.mark.parametrize("dtype", [None, "float16"])
def test_an_output_is_compared_with_every_region_of_the_source(dtype, manifests, tmp_path):
    root = make_job_tree(tmp_path / "source", job_of(2), ARRAYS, manifests=manifests)
    wanted = ReshardOptions(strategy=str(write_strategies(tmp_path / "target", job_of(4))), dtype=dtype)
    plan = api.plan_reshard(api.scan(root), tmp_path / "output", wanted, PlanOptions(quick=True))
    outcome = api.reshard(plan, compare=True)
    assert (outcome.exit_code, outcome.errors) == (0, ())
    assert outcome.compared >= len(plan.parameters)
    known = digests_of(plan)
    with open_store(plan.root) as origin:
        (count, total), wrong = compare_back(plan, origin, known)
    assert ((count, total), wrong) == ((outcome.compared, outcome.compared_bytes), [])
    damaged = plan.files[1].target
    path = tmp_path / "output" / damaged
    place = {
        one.name: ranges for one, ranges in zip(read_header(path).parameters, read_header(path).contents, strict=True)
    }
    path.chmod(0o600)
    with path.open("r+b") as file:
        file.seek(place["weight"][0].start)
        file.write(b"\x7f")
    with open_store(plan.root) as origin:
        _, wrong = compare_back(plan, origin, known)
        taken_as_written = compare_back(plan, origin, digests_of(plan))[1]
    assert f"{path} does not hold 'weight' as it was written" in wrong
    assert [text for text in taken_as_written if "'weight' of" in text and "does not come back out of" in text]


def test_two_slices_that_should_hold_the_same_and_do_not_are_named(root):
    plan = plan_of(root, job_of(2, "whole"))
    assert api.reshard(plan).exit_code == 0
    path = root.parent / "output" / plan.files[1].target
    place = dict(zip((one.name for one in read_header(path).parameters), read_header(path).contents, strict=True))
    path.chmod(0o600)
    with path.open("r+b") as file:
        file.seek(place["whole"][0].start)
        file.write(b"\x7f")
    with open_store(plan.root) as origin:
        _, wrong = compare_back(plan, origin, digests_of(plan))
    assert f"{path} and {plan.files[0].target} should hold the same of 'whole', and do not" in wrong
