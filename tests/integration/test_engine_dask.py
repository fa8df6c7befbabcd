"""A tree on the disks of four nodes, through the workers of a real cluster of dask."""

import json
import random
import shutil
import signal
import subprocess
import sys
import threading
import time

import pytest

from ms_recover import api
from ms_recover.engine import open_engine, tasks
from ms_recover.errors import MsRecoverError, StorageError
from ms_recover.model.steps import Step
from ms_recover.testing.trees import make_tree, save_manifests
from ms_recover.verbs.spread_tree import SpreadTree
from tests.support.command_line import in_this_process
from tests.support.dask_cluster import REPOSITORY, DaskCluster
from tests.support.engine_tasks import count_twice, on_all
from tests.support.examples import examples
from tests.support.serving import RECOVER, leftovers

pytest.importorskip("distributed")

LARGE = {"w": 4 << 20, "global_step": 1}
STEPS = [Step(1, 4), Step(1, 8)]
NAME = "test-1_8.ckpt"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with DaskCluster(tmp_path_factory.mktemp("cluster")) as started:
        yield started


@pytest.fixture
def whole(tmp_path):
    """Eight ranks: the even ones hold the same, the odd ones do."""
    return make_tree(tmp_path / "whole", data_parallel=4, model_parallel=2, steps=STEPS)


def spread(whole, cluster, name, per_node=2):
    """Move the directories of ranks to the disks of the nodes; return where each node has its tree."""
    nodes = []
    for index, node in enumerate(cluster.names):
        folder = cluster.disk(node) / name
        folder.mkdir()
        for rank in range(index * per_node, (index + 1) * per_node):
            shutil.copytree(whole / f"ckpt_dir{rank}", folder / f"ckpt_dir{rank}")
        nodes.append(folder)
    return nodes


def run(*arguments, cluster, timeout=10, **options):
    done = in_this_process(*arguments, "--engine", cluster.url, "--worker-timeout", timeout, **options)
    assert "Traceback" not in done.err, done.err
    assert "distributed" not in done.err, done.err
    return done


def assert_whole(whole, nodes, per_node=2, steps=(NAME,), ranks=None):
    for rank in ranks or range(len(nodes) * per_node):
        for name in steps:
            found = nodes[rank // per_node] / f"ckpt_dir{rank}" / name
            assert found.read_bytes() == (whole / f"ckpt_dir{rank}" / name).read_bytes(), found
            assert found.stat().st_mode == (whole / f"ckpt_dir{rank}" / name).stat().st_mode


def without_prose(data, root):
    """What a plan or a verification says, without the words that name a tree or a node."""
    text = json.dumps(data, sort_keys=True).replace(root, "ROOT")
    return json.loads(text, object_hook=lambda one: {k: v for k, v in one.items() if k not in ("reason", "notes")})


def test_four_disks_are_one_tree_for_seal_verify_plan_and_apply(whole, cluster):
    nodes = spread(whole, cluster, "one")
    root = "node://*/data/one"
    foreseen = run("seal", root, "--json", "--dry-run", cluster=cluster)
    assert (foreseen.code, len(foreseen.json["sealed"]), foreseen.json["dry_run"]) == (0, 16, True)
    sealed = run("seal", root, "--json", cluster=cluster)
    assert (sealed.code, len(sealed.json["sealed"])) == (0, 16)
    local = in_this_process("seal", whole, "--json")
    assert without_prose(sealed.json, root) == without_prose(local.json, str(whole))
    for rank in range(8):
        for name in ("test-1_4.ckpt.manifest.json", f"{NAME}.manifest.json"):
            written = nodes[rank // 2] / f"ckpt_dir{rank}" / name
            assert written.read_bytes() == (whole / f"ckpt_dir{rank}" / name).read_bytes()
    verified, as_one = run("verify", root, "--json", cluster=cluster), in_this_process("verify", whole, "--json")
    assert verified.code == 0
    assert without_prose(verified.json, root) == without_prose(as_one.json, str(whole))

    shutil.rmtree(nodes[2])
    for rank in (4, 5):
        shutil.rmtree(whole / f"ckpt_dir{rank}")
    planned, as_one = run("plan", root, "--json", cluster=cluster), in_this_process("plan", whole, "--json")
    assert planned.code == 0
    assert without_prose(planned.json, root) == without_prose(as_one.json, str(whole))
    assert "at n3, fetched from n1" in planned.json["ranks"][4]["reason"]
    applied = run("apply", root, cluster=cluster)
    assert applied.code == 0, applied.out + applied.err
    assert in_this_process("apply", whole).code == 0
    assert_whole(whole, nodes)
    told = json.loads((nodes[2] / "ckpt_dir4" / f"{NAME}.manifest.json").read_text())
    assert told["provenance"]["sources"] == [{"rank": 0, "path": f"ckpt_dir0/{NAME}", "host": "n1"}]
    assert (nodes[2] / "ckpt_dir5" / "group_info.pb").read_bytes() == (
        nodes[0] / "ckpt_dir1" / "group_info.pb"
    ).read_bytes()
    assert not any(leftovers(node) for node in nodes)
    again = run("apply", root, cluster=cluster)
    assert "already had its slice" in again.out


def test_an_audit_takes_the_nodes_for_hosts(whole, cluster):
    spread(whole, cluster, "audited")
    run("seal", "node://*/data/audited", cluster=cluster)
    found = run("audit", "node://*/data/audited", "--json", cluster=cluster)
    local = in_this_process("audit", whole, "--ranks-per-host", "2", "--json")
    assert found.json["topology"]["source"] == "the nodes of node://*/data/audited"
    losses = [level["losses"] for level in found.json["levels"]]
    assert (found.code, losses) == (local.code, [level["losses"] for level in local.json["levels"]])


def test_a_plan_is_kept_and_applied_later(whole, cluster, tmp_path):
    save_manifests(whole)
    nodes = spread(whole, cluster, "kept")
    shutil.rmtree(nodes[1] / "ckpt_dir2")
    plan = tmp_path / "plan.json"
    assert run("plan", "node://*/data/kept", "-o", plan, cluster=cluster).code == 0
    assert run("apply", plan, cluster=cluster).code == 0
    assert_whole(whole, nodes)
    (nodes[0] / "ckpt_dir0" / NAME).touch()
    shutil.rmtree(nodes[1] / "ckpt_dir2")
    stale = run("apply", plan, cluster=cluster)
    assert stale.code == 5
    assert "plan again" in stale.err


def test_a_damaged_slice_is_outvoted_across_nodes(whole, cluster):
    nodes = spread(whole, cluster, "damaged")
    target = nodes[3] / "ckpt_dir6" / NAME
    data = bytearray(target.read_bytes())
    data[-30] ^= 1
    target.chmod(0o600)
    target.write_bytes(data)
    found = run("verify", "node://*/data/damaged", "--json", cluster=cluster)
    assert found.code == 5
    done = run("apply", "node://*/data/damaged", cluster=cluster)
    assert done.code == 0, done.out + done.err
    assert target.read_bytes() == (whole / "ckpt_dir6" / NAME).read_bytes()


def test_workers_say_what_they_see(whole, cluster):
    spread(whole, cluster, "seen")
    done = run("worker-info", "node://{n1,n3}/data/seen", cluster=cluster)
    assert [one["name"] for one in done.json["workers"]] == ["n1", "n3"]
    assert done.json["workers"][0]["root"]["path"] == str(cluster.disk("n1") / "seen")
    assert done.code == 0
    assert run("worker-info", "node://*/data/nowhere", cluster=cluster).code == 3


def test_one_path_that_all_workers_share_needs_no_hosts(whole, cluster):
    save_manifests(whole)
    assert run("verify", whole, cluster=cluster).code == 0
    shutil.rmtree(whole / "ckpt_dir3")
    done = run("apply", whole, cluster=cluster)
    assert done.code == 0, done.err
    spread(whole, cluster, "apart")
    refused = run("verify", "/data/apart", cluster=cluster)
    assert refused.code == 2
    assert "node://*/data/apart" in refused.err


def test_a_worker_that_lies_about_its_root_is_found_out(whole, cluster, tmp_path):
    """One that has nothing there is a node without slices; one with another tree contradicts."""
    nodes = spread(whole, cluster, "lies")
    other = make_tree(tmp_path / "other", data_parallel=4, model_parallel=2, steps=STEPS, parameters={"x": 5})
    root = "node://*/data/lies"
    cluster.start("liar", roots="/data=/nowhere")
    try:
        done = run("verify", root, cluster=cluster)
        assert done.code == 0
        shutil.rmtree(nodes[2])
        planned = run("plan", root, cluster=cluster)  # two nodes have nothing: which of them had ranks 4 and 5?
        assert planned.code == 2
        assert "--home 4-5=liar" in planned.err
        applied = run("apply", root, "--home", "4-5=n3", cluster=cluster)
        assert applied.code == 0, applied.err
        assert_whole(whole, nodes)
    finally:
        cluster.kill("liar")
    (tmp_path / "disk").mkdir()
    shutil.copytree(other / "ckpt_dir0", tmp_path / "disk" / "lies" / "ckpt_dir0")
    cluster.start("liar", roots=f"/data={tmp_path / 'disk'}")
    try:
        for command in ("verify", "plan", "apply", "seal"):
            done = run(command, root, cluster=cluster)
            assert done.code == 3, (done.out, done.err)
            assert f"ckpt_dir0/{NAME}" in done.err or "ckpt_dir0/test-1_4.ckpt" in done.err
            assert "liar" in done.err
            assert "n1" in done.err
        assert run("verify", "node://{n1,n2,n3,n4}/data/lies", "--step", "1_8", cluster=cluster).code == 0
    finally:
        cluster.kill("liar")


@pytest.mark.parametrize("broken", [False, True])
def test_a_worker_of_another_version_or_without_the_package_takes_no_part(whole, cluster, tmp_path, broken):
    name = f"versions{broken}"
    spread(whole, cluster, name)
    metadata = tmp_path / "old" / "ms_recover-0.0.1.dist-info" / "METADATA"
    (tmp_path / "old" / "ms_recover").mkdir(parents=True)
    stub = "raise ImportError('not the package')\n" if broken else "__version__ = '0.0.1'\n"
    (tmp_path / "old" / "ms_recover" / "__init__.py").write_text(stub)
    if not broken:
        metadata.parent.mkdir()
        metadata.write_text("Metadata-Version: 2.1\nName: ms-recover\nVersion: 0.0.1\n")
    cluster.start("old", environment={"PYTHONPATH": str(tmp_path / "old")})
    try:
        done = run("verify", f"node://*/data/{name}", cluster=cluster)
        assert done.code == 3, (done.out, done.err)
        words = ("cannot run ms_recover", "has no ms_recover") if broken else ("has ms_recover 0.0.1, and this host",)
        assert any(f"worker old: {one}" in done.err for one in words), done.err  # the release of dask decides
        assert run("verify", f"node://{{n1,n2,n3,n4}}/data/{name}", cluster=cluster).code == 0
    finally:
        cluster.kill("old")


def test_errors_name_the_scheduler_and_the_node(whole, cluster):
    gone = in_this_process("verify", "node://*/data/x", "--engine", "dask://127.0.0.1:1", "--worker-timeout", 2)
    assert gone.code == 1
    assert "dask://127.0.0.1:1 cannot be reached" in gone.err
    for arguments, code, words in (
        (("verify", "node://nobody/data/x"), 3, "no worker of nobody"),
        (("verify", "node://*/data/nowhere"), 3, "does not exist on any of 4 workers"),
        (("plan", "node://*/data/nowhere", "--from", "h:1"), 2, "--from does not go with --engine"),
        (("seal", "node://*/data/nowhere", "--watch"), 2, "--watch"),
        (("verify", "node://data"), 2, "names no tree on nodes"),
    ):
        done = run(*arguments, cluster=cluster)
        assert (done.code, words in done.err) == (code, True), done.err
    for wrong in ("dusk://x:1", "dask://x"):
        assert in_this_process("scan", "node://*/x", "--engine", wrong).code == 2


def large(cluster, tmp_path, name):
    """Four ranks of 16 MiB that hold the same, one on each node; that of the third is lost."""
    whole = make_tree(tmp_path / "large", data_parallel=4, model_parallel=1, parameters=LARGE)
    save_manifests(whole)
    nodes = spread(whole, cluster, name, per_node=1)
    shutil.rmtree(nodes[2])
    return whole, nodes


def test_workers_that_are_killed_in_the_middle(cluster, tmp_path):
    """At every moment: right bytes, or an error and right bytes the next time; never a wrong one, never a hang."""
    chance = random.Random(15)
    codes, lasts = [], 0.0
    for number in range(1 + examples(2)):
        name = f"killed{number}"
        whole, nodes = large(cluster, tmp_path / name, name)
        begun = time.monotonic()
        if number:
            striker = threading.Timer(chance.uniform(0.0, lasts), strike, (cluster, chance.choice(("n3", "n1", "n2"))))
            striker.start()
        done = run("apply", f"node://*/data/{name}", cluster=cluster, timeout=30)
        if number:
            striker.join()
            codes.append(done.code)
        else:
            lasts = time.monotonic() - begun
        assert time.monotonic() - begun < 100
        if done.code:
            assert number
            assert done.code in (1, 3, 5)
            assert done.err or "FAILED" in done.out
            again = run("apply", f"node://*/data/{name}", cluster=cluster, timeout=30)
            assert again.code == 0, done.out + done.err + again.out + again.err
        assert_whole(whole, nodes, per_node=1)
        assert not any(leftovers(node) for node in nodes)
        for node in nodes:
            shutil.rmtree(node)
        shutil.rmtree(tmp_path / name)
    print("exit codes after a kill:", codes)


def strike(cluster, name):
    cluster.kill(name)
    cluster.start(name)


def test_a_node_that_does_not_come_back_is_an_error_in_time(whole, cluster):
    nodes = spread(whole, cluster, "lost")
    with open_engine(cluster.url, timeout=2) as engine:
        tree = SpreadTree(engine, "node://*/data/lost")
        inventory = tree.scan()
        cluster.kill("n2")
        begun = time.monotonic()
        try:
            with pytest.raises(StorageError, match="n2: its workers are gone"):
                api.verify(inventory, read=tree.read)
            assert time.monotonic() - begun < 20
        finally:
            cluster.start("n2")
    assert run("verify", "node://*/data/lost", cluster=cluster).code == 0
    assert len(nodes) == 4


WAITING = """
import sys
from ms_recover.engine import open_engine
from tests.support.engine_tasks import on_all, wait_until_stopped
with open_engine(sys.argv[1], timeout=20) as engine:
    engine.run(on_all(engine, wait_until_stopped, [(sys.argv[2],)] * 2))
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_tasks_end_with_their_client(cluster, tmp_path, number):
    client = subprocess.Popen(
        [sys.executable, "-c", WAITING, cluster.url, tmp_path], stderr=subprocess.PIPE, cwd=REPOSITORY, text=True
    )
    until(lambda: len(list(tmp_path.glob("begun*"))) == 2)
    client.send_signal(number)
    client.communicate(timeout=60)
    if number == signal.SIGKILL:
        until(lambda: not list(tmp_path.glob("begun*")))
    assert not list(tmp_path.glob("begun*"))  # the client has waited until the tasks had cleaned up
    assert len(list(tmp_path.glob("ended*"))) == 2


def test_a_frozen_worker_is_an_error_in_time_and_ctrl_c_ends_the_wait(whole, cluster):
    spread(whole, cluster, "frozen")
    command = ["verify", "node://*/data/frozen", "--engine", cluster.url, "--worker-timeout"]
    frozen = cluster.processes["n2"]
    frozen.send_signal(signal.SIGSTOP)
    try:
        patient = subprocess.Popen([*RECOVER, *command, "60"], stderr=subprocess.PIPE, text=True)
        done = in_this_process(*command, 2)
        assert (done.code, "worker n2: does not answer within 2 s" in done.err) == (3, True), done.err
        time.sleep(1)
        patient.send_signal(signal.SIGINT)
        _, err = patient.communicate(timeout=60)
        assert patient.returncode == 130, err
        assert "Traceback" not in err
    finally:
        frozen.send_signal(signal.SIGCONT)
    assert in_this_process(*command, 20).code == 0


def until(ready):
    deadline = time.monotonic() + 60
    while not ready():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_bytes_are_counted_over_all_workers(cluster):
    counted = []
    with open_engine(cluster.url, timeout=20) as engine:
        assert engine.run(on_all(engine, count_twice, [(5,)] * 8), progress=counted.append) == [5] * 8
        with pytest.raises(MsRecoverError, match="ZeroDivisionError"):
            engine.run(on_all(engine, divmod, [(1, 0)]))
    assert sum(counted) == 80


def test_a_scheduler_that_is_killed_is_an_error(whole, tmp_path):
    with DaskCluster(tmp_path / "own", nodes=1) as own:
        (own.disk("n1") / "x").mkdir()
        shutil.copytree(whole / "ckpt_dir0", own.disk("n1") / "x" / "ckpt_dir0")
        with open_engine(own.url, timeout=2) as engine:
            waiting = on_all(engine, time.sleep, [(30,)])
            striker = threading.Timer(1, own.kill, ("scheduler",))
            striker.start()
            begun = time.monotonic()
            with pytest.raises(StorageError, match="the scheduler is gone"):
                engine.run(waiting)
            striker.join()
            assert time.monotonic() - begun < 30


def test_results_never_hold_the_bytes_of_slices():
    """What tasks return: inventories, digests, paths, outcomes."""
    names = [name for name in dir(tasks) if name.endswith(("_node", "_slices"))]
    kinds = {name: getattr(tasks, name).__annotations__["return"] for name in names}
    assert not any("bytes" in str(kind) for kind in kinds.values())
