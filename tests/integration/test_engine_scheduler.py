"""A scheduler with TLS on all sides, and one that is lost and started anew in the middle of use."""

import json
import random
import shutil
import threading
import time

import pytest

from ms_recover.testing.trees import make_tree, save_manifests
from tests.support.command_line import in_this_process
from tests.support.dask_cluster import DaskCluster
from tests.support.examples import examples
from tests.support.ports import free_port
from tests.support.serving import leftovers, make_certificates

dask = pytest.importorskip("dask")
pytest.importorskip("distributed")

NAME = "test-1_8.ckpt"


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory, certificates):
    folder = tmp_path_factory.mktemp("cluster")
    with DaskCluster(folder, nodes=2, port=free_port(), certificates=certificates) as started:
        yield started


@pytest.fixture
def trusted(cluster):
    with dask.config.set(cluster.tls):
        yield


@pytest.fixture
def nodes(cluster, tmp_path):
    """Two ranks that hold the same, one on each node; that of the second is lost."""
    whole = make_tree(tmp_path / "whole", data_parallel=2, model_parallel=1, parameters={"w": 1 << 20})
    save_manifests(whole)
    trees = [cluster.disk(node) / tmp_path.name for node in cluster.names]
    for rank, tree in enumerate(trees):
        shutil.copytree(whole / f"ckpt_dir{rank}", tree / f"ckpt_dir{rank}")
    shutil.rmtree(trees[1] / "ckpt_dir1")
    return whole, trees


def run(command, tree, engine, timeout=10):
    done = in_this_process(command, f"node://*/data/{tree}", "--engine", engine, "--worker-timeout", timeout)
    assert "Traceback" not in done.err, done.err
    return done


def assert_whole(whole, trees):
    for rank, tree in enumerate(trees):
        assert (tree / f"ckpt_dir{rank}" / NAME).read_bytes() == (whole / f"ckpt_dir{rank}" / NAME).read_bytes()
        assert not leftovers(tree)


def test_all_sides_show_certificates(cluster, nodes, trusted):
    """Slices go from worker to worker over TLS too; the scheduler is named by its file or its port."""
    whole, trees = nodes
    address = json.loads(cluster.file.read_text())["address"]
    assert address == f"tls://127.0.0.1:{cluster.port}"
    for engine in (cluster.url, f"dask://127.0.0.1:{cluster.port}", address):
        done = run("apply", trees[0].name, engine)
        assert done.code == 0, done.out + done.err
        assert_whole(whole, trees)
        shutil.rmtree(trees[1])


def test_who_shows_none_or_that_of_another_authority_is_refused_in_time(cluster, nodes, certificates):
    tree = nodes[1][0].name
    stranger = {
        "distributed.comm.tls.ca-file": str(certificates / "both.ca"),
        "distributed.comm.tls.client.cert": str(certificates / "stranger.pem"),
        "distributed.comm.tls.client.key": str(certificates / "stranger.key"),
    }
    for settings, engine in (
        ({}, f"dask://127.0.0.1:{cluster.port}"),
        ({}, f"tls://127.0.0.1:{cluster.port}"),
        ({}, cluster.url),
        (stranger, f"tls://127.0.0.1:{cluster.port}"),
        ({**stranger, "distributed.comm.tls.client.key": "/nowhere.key"}, f"tls://127.0.0.1:{cluster.port}"),
    ):
        begun = time.monotonic()
        with dask.config.set(settings):
            done = run("plan", tree, engine, 2)
        assert done.code in (1, 2), done.out + done.err
        assert engine in done.err
        assert "TLS" in done.err
        assert time.monotonic() - begun < 15


def test_a_scheduler_that_is_started_anew_is_an_error_in_time_or_not_noticed(cluster, nodes, trusted):
    whole, trees = nodes
    engine, chance, ends = f"tls://127.0.0.1:{cluster.port}", random.Random(15), []
    begun = time.monotonic()
    assert run("apply", trees[0].name, engine).code == 0
    lasts = time.monotonic() - begun
    for _ in range(examples(1)):
        shutil.rmtree(trees[1])
        striker = threading.Timer(chance.uniform(0.1, 0.8) * lasts, restart, (cluster,))
        striker.start()
        begun = time.monotonic()
        done = run("apply", trees[0].name, engine, 15)
        assert time.monotonic() - begun < 60
        striker.join()
        ends.append((done.code, done.err))
        if done.code:
            assert done.code == 1, done.out + done.err
            assert "scheduler" in done.out + done.err
            again = run("apply", trees[0].name, engine, 15)
            assert again.code == 0, again.out + again.err
        assert_whole(whole, trees)
    print("ends after a restart:", ends)


def restart(cluster):
    """Kill the scheduler; its workers end with it, or come back to the new one."""
    cluster.kill("scheduler")
    time.sleep(0.3)
    cluster.start_scheduler()
    for name in cluster.names:
        cluster.end(name)
        (cluster.folder / f"{name}.log").write_text("")
        cluster.start(name, wait=False)
    cluster.wait_for(cluster.names)
