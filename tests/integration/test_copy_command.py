"""``recover-ckpt copy``, and recoveries at URLs, as commands against real servers; a copy that is killed."""

import json
import os
import subprocess
import time

import pytest

from ms_recover import api
from ms_recover.errors import MissingInputError, UsageError
from ms_recover.joint.shares import share_here
from ms_recover.joint.union import unite
from ms_recover.model.options import PlanOptions, ScanOptions
from ms_recover.scanning.read import read_store
from ms_recover.stores.urls import open_plain, open_store
from ms_recover.testing.trees import make_tree, save_manifests
from tests.support.serving import RECOVER

MORE = "MS_RECOVER_EXAMPLES" in os.environ
SLICE = "ckpt_dir{}/test-1_8.ckpt"


@pytest.fixture
def tree(tmp_path):
    tree = make_tree(tmp_path / "tree", data_parallel=2, model_parallel=2, parameters={"w": 700_000, "b": 7})
    save_manifests(tree)
    return tree


@pytest.fixture(params=["sftp", "s3", *(["webdav"] if MORE else [])])
def url(request, tmp_path):
    """Return a URL with nothing below it, on a real server that the environment describes."""
    if request.param == "sftp":
        server = request.getfixturevalue("sftp")
        return f"sftp://127.0.0.1:{server.port}{tmp_path}/backup"
    if request.param == "webdav":
        server = request.getfixturevalue("webdav")
        (server.root / tmp_path.name).mkdir()
        return f"webdav://127.0.0.1:{server.port}/{tmp_path.name}/backup"
    return f"s3://{request.getfixturevalue('bucket')}/backup"


def upload(tree, url):
    with open_plain(url) as store:
        for path in sorted(tree.rglob("*")):
            if path.is_file():
                with store.create(str(path.relative_to(tree))) as file:
                    file.write(path.read_bytes())
                    file.commit()


def copied(tree, url):
    return api.copy(api.scan(tree), url, jobs=4)


def test_a_step_is_copied_and_sent_once(recover_ckpt, tree, url):
    first = recover_ckpt("copy", tree, url, "--json")
    assert first.code == 0, first.err
    said = json.loads(first.out)
    assert (said["uploaded"], said["verified"], said["url"]) == (said["objects"], True, url)
    assert copied(tree, url).uploaded == 0
    plan = api.plan(api.scan(url))
    assert (plan.root, {rank.verdict for rank in plan.ranks}) == (url, {"keep"})


def test_every_rank_comes_back_into_an_empty_root(tree, url, tmp_path):
    copied(tree, url)
    (tmp_path / "empty").mkdir()
    ranks = frozenset(range(4))
    union = unite(api.scan(tmp_path / "empty", ScanOptions(may_be_empty=True)), [api.scan(url)])
    with open_store(url) as store:
        made = api.plan(union.inventory, PlanOptions(ranks=ranks), read=lambda files: read_store(store, files))
        plan = share_here(made, union, ranks, {})
        outcome = api.apply(plan, sources=dict.fromkeys(union.holders, store))
    assert outcome.exit_code == 0, outcome
    for rank in range(4):
        path = SLICE.format(rank)
        assert (tmp_path / "empty" / path).read_bytes() == (tree / path).read_bytes()
        assert (tmp_path / "empty" / path).stat().st_mtime_ns == (tree / path).stat().st_mtime_ns


def test_a_source_that_flipped_leaves_no_wrong_object(recover_ckpt, tree, url):
    path = tree / SLICE.format(0)
    before = path.stat()
    path.chmod(0o600)
    data = bytearray(path.read_bytes())
    data[100_000] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    done = recover_ckpt("copy", tree, url)
    assert (done.code, SLICE.format(0) in done.out) == (5, True), done.err
    assert api.verify(api.scan(url)).ok
    path = tree / SLICE.format(2)
    path.chmod(0o600)
    path.write_bytes(data)
    refused = recover_ckpt("copy", tree, f"{url}2")
    assert (refused.code, "rank 0" in refused.err) == (4, True), refused.err
    assert not api.scan(f"{url}2", ScanOptions(may_be_empty=True)).slices


@pytest.mark.parametrize("parts", range(8 if MORE else 1))
def test_a_copy_that_is_killed_is_nothing_until_the_next_one(tree, sftp, tmp_path, parts):
    """The process is killed when some of the objects lie there, at another moment each time."""
    url, objects = f"sftp://127.0.0.1:{sftp.port}{tmp_path}/backup", tmp_path / "backup" / "objects"
    process = subprocess.Popen([*RECOVER, "copy", str(tree), url], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        while len([path for path in objects.rglob("*") if path.is_file()]) <= parts and process.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.001)
    finally:
        process.kill()
        process.wait(30)
    indexes = list((tmp_path / "backup").glob("steps/[!.]*.json"))
    assert bool(api.scan(url, ScanOptions(may_be_empty=True)).slices) is bool(indexes)
    copied(tree, url)
    assert api.verify(api.scan(url)).ok


def test_a_tree_at_a_url_is_recovered_there(tree, url, tmp_path):
    upload(tree, url)
    with open_plain(url) as store:
        store.remove(SLICE.format(2))
        store.remove("ckpt_dir2/group_info.pb")
    (tmp_path / "scratch").mkdir()
    outcome = api.apply(api.plan(api.scan(url)), jobs=2, scratch=str(tmp_path / "scratch"))
    assert outcome.exit_code == 0, outcome
    assert os.listdir(tmp_path / "scratch") == []
    assert api.verify(api.scan(url)).ok
    with open_store(url) as store, store.open(SLICE.format(2)) as file:
        assert file.read_at(0, file.size) == (tree / SLICE.format(2)).read_bytes()


def test_a_tree_at_a_url_is_sealed(recover_ckpt, tree, sftp, tmp_path):
    for path in tree.rglob("*.manifest.json"):
        path.unlink()
    done = recover_ckpt("seal", f"sftp://127.0.0.1:{sftp.port}{tree}")
    assert done.code == 0, done.err
    assert "4 manifests written" in done.out
    assert all(file.manifest is not None for file in api.scan(tree).slices)
    assert api.verify(api.scan(tree)).ok


def test_a_bucket_that_does_not_exist_is_named_before_anything_is_read(recover_ckpt, tmp_path, s3):
    for more in ((), ("--dry-run",)):
        done = recover_ckpt("copy", tmp_path / "nothing", "s3://no-such-bucket/run7", *more)
        assert done.code == MissingInputError.exit_code
        assert "there is no bucket 'no-such-bucket'" in done.err
        assert str(tmp_path) not in done.err


def test_a_backup_below_a_tree_of_a_bucket_is_refused(tree, bucket):
    root = f"s3://{bucket}/run7"
    for url in (f"{root}/backup", f"s3a://{bucket}/run7/a/b/"):
        with pytest.raises(UsageError, match=f"lies in {root}"), api.open_target(url, root):
            pass
    with api.open_target(f"s3://{bucket}/run77", root):
        pass


def test_the_trial_leaves_nothing_in_a_bucket(tree, bucket, s3):
    with api.open_target(f"s3://{bucket}/run7", str(tree)):
        pass
    assert "Contents" not in s3.client.list_objects_v2(Bucket=bucket)


def test_a_disk_without_room_is_known_before_anything_is_sent(tree, tmp_path, recover_ckpt):
    """A real one, of which a file takes what the backup needs, and gives it back."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=16m,mode=700", "tmpfs", str(disk)]
    mounted = subprocess.run(mount, capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip(f"no tmpfs can be mounted here: {mounted.stderr.decode().strip()}")
    try:
        wanted = api.copy(api.scan(tree), str(disk), dry_run=True).uploaded_bytes
        room = os.statvfs(disk)
        (tmp_path / "disk" / ".filler.ms_recover.tmp").write_bytes(bytes(room.f_bavail * room.f_bsize - wanted // 2))
        for more in (("--dry-run",), ()):
            done = recover_ckpt("copy", tree, disk, *more)
            assert done.code == 1
            assert f"{wanted:,} have to go there" in done.err
            assert [path.name for path in disk.iterdir()] == [".filler.ms_recover.tmp"]
        (tmp_path / "disk" / ".filler.ms_recover.tmp").unlink()
        assert recover_ckpt("copy", tree, disk).code == 0
    finally:
        subprocess.run(["umount", str(disk)], check=True, timeout=60)


def test_a_dry_run_writes_nothing_to_a_store(recover_ckpt, fixture_tree, bucket, s3):
    tree = fixture_tree("dp2_mp4")
    url, command = f"s3://{bucket}/tree", ("complete", f"s3://{bucket}/tree", "1")
    upload(tree, url)
    before = s3.client.list_objects_v2(Bucket=bucket)["Contents"]
    for one in (("copy", tree, f"s3://{bucket}/backup"), command, ("seal", url), (*command, "-o", f"{url}/x.ckpt")):
        done = recover_ckpt(*one, "--dry-run")
        assert done.code == 0, done.err
        assert "would be" in done.out
    assert s3.client.list_objects_v2(Bucket=bucket)["Contents"] == before
    there = recover_ckpt(*command, "-o", f"{url}/ckpt_dir0/test-2_77.ckpt", "--dry-run")
    assert (there.code, "is there already" in there.err) == (2, True)
