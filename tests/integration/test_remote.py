"""Recovery between nodes that share no file system: real servers and clients over loopback."""

import json
import os
import shutil
import signal
import socket
import subprocess
import threading
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from ms_recover.model.steps import Step
from ms_recover.testing.trees import make_tree, save_manifests
from tests.support.cuts import CutTensor, cut_layout, make_cut_tree
from tests.support.fault_proxy import FaultProxy, eventually
from tests.support.iteration_trees import unpack
from tests.support.serving import RECOVER, Served, leftovers, serving, split

NAME = "test-1_8.ckpt"
LARGE = {"w": 12 << 20, "global_step": 1}
MIB = 1 << 20


@pytest.fixture
def tree(tmp_path):
    """Six ranks: 0, 2 and 4 hold the same, 1, 3 and 5 do."""
    whole = make_tree(tmp_path / "whole", data_parallel=3, model_parallel=2, steps=[Step(1, 4), Step(1, 8)])
    save_manifests(whole)
    return whole


@pytest.fixture(scope="session")
def large(tmp_path_factory):
    """Three ranks that hold the same 48 MiB."""
    whole = make_tree(tmp_path_factory.mktemp("large"), data_parallel=3, model_parallel=1, parameters=LARGE)
    save_manifests(whole)
    return whole


def content(tree, rank, name=NAME):
    return (tree / f"ckpt_dir{rank}" / name).read_bytes()


def start(*arguments):
    return subprocess.Popen([*RECOVER, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_a_lost_rank_comes_from_one_server(tree, tmp_path, recover_ckpt):
    here, there = split(tree, tmp_path, here=(0, 1), there=(2, 3, 4, 5))
    shutil.rmtree(here / "ckpt_dir1")
    with serving(there) as [server]:
        planned = recover_ckpt("plan", here, "--from", server.address, "--json")
        assert planned.code == 0
        [action] = planned.json["actions"]
        assert (action["rank"], action["target"]) == (1, f"ckpt_dir1/{NAME}")
        assert f"fetched from {server.url}" in planned.json["ranks"][1]["reason"]
        assert not (here / "ckpt_dir1").exists()
        assert recover_ckpt("plan", here, "--from", server.address, "--explain", "1").code == 0
        done = recover_ckpt("apply", here, "--from", server.address)
        assert done.code == 0, done.err
        again = recover_ckpt("apply", here, "--from", server.address)
        assert "already had its slice" in again.out
    assert content(here, 1) == content(tree, 1)
    told = json.loads(content(here, 1, f"{NAME}.manifest.json"))
    assert told["provenance"]["kind"] == "copied"
    assert told["provenance"]["sources"] == [{"rank": 3, "path": f"ckpt_dir3/{NAME}", "host": str(server.address)}]
    assert (told["rank"], told["file"]) == (1, NAME)
    target, source = here / "ckpt_dir1" / NAME, tree / "ckpt_dir1" / NAME
    assert target.stat().st_mode == source.stat().st_mode
    assert (here / "ckpt_dir1" / "group_info.pb").exists()
    assert not leftovers(here)


def test_an_iteration_of_mindformers_comes_whole_from_one_server(tmp_path, recover_ckpt):
    there, here = unpack("dp2_mp2_pp2", tmp_path / "there"), unpack("dp2_mp2_pp2", tmp_path / "here", 100)
    for path in (here / "iteration_00000100").glob("*-0000003-*"):
        path.unlink()
    with serving(there) as [server]:
        done = recover_ckpt("apply", here, "--from", server.address)
        assert done.code == 0, done.err
        again = recover_ckpt("plan", here, "--from", server.address, "--detailed-exitcode")
        assert again.code == 0, again.out
    new = "iteration_00000200"
    written = {path.name: path.read_bytes() for path in (here / new).iterdir() if not path.name.endswith(".json")}
    assert written == {path.name: path.read_bytes() for path in (there / new).iterdir() if path.suffix != ".json"}
    for name in (f"{new}/metadata.json", f"{new}/common.json", "latest_checkpointed_iteration.txt"):
        assert (here / name).read_bytes() == (there / name).read_bytes()


def test_no_other_program_gets_the_port_between_clients(tree, tmp_path, recover_ckpt):
    here, there = split(tree, tmp_path, here=(0, 1), there=(2, 3, 4, 5))
    taken, over = [], threading.Event()

    def take(port):
        while not over.wait(0.001):
            with socket.socket() as other, suppress(OSError):
                other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                other.bind(("127.0.0.1", port))
                other.listen()
                taken.append(port)

    with serving(there) as [server]:
        taking = threading.Thread(target=take, args=(server.port,))
        taking.start()
        try:
            codes = [recover_ckpt("plan", here, "--from", server.address).code for _ in range(5)]
        finally:
            over.set()
            taking.join()
        assert server.process.poll() is None
    assert (codes, taken) == ([0] * 5, [])


def test_a_node_that_lost_everything_comes_from_two_servers(tree, tmp_path, recover_ckpt):
    first, second = split(tree, tmp_path, first=(2, 5), second=(3, 4))
    here = tmp_path / "here"
    here.mkdir()
    with serving(first, second) as [one, two]:
        done = recover_ckpt("apply", here, "--from", one.address, "--from", two.address, "--json")
        assert done.code == 0, done.err
    hosts = {result["rank"] for result in done.json["results"]}
    assert hosts == {0, 1}
    for rank in (0, 1):
        assert content(here, rank) == content(tree, rank)
    assert {path.name for path in here.iterdir()} == {"ckpt_dir0", "ckpt_dir1"}


def test_only_the_ranks_that_live_here_need_a_slice(tree, tmp_path, recover_ckpt):
    here, there = split(tree, tmp_path, here=(0,), there=(2,))
    damaged = here / "ckpt_dir0" / NAME
    damaged.chmod(0o600)
    damaged.write_bytes(damaged.read_bytes()[:-7])
    with serving(there) as [server]:
        everybody = recover_ckpt("apply", here, "--from", server.address)
        assert everybody.code == 4  # nobody serves what ranks 1, 3 and 5 hold
        assert recover_ckpt("plan", here, "--from", server.address, "--ranks", "0", "--json").json["recoverable"]
        assert recover_ckpt("apply", here, "--from", server.address, "--ranks", "0").code == 0
        assert recover_ckpt("plan", here, "--from", server.address, "--ranks", "9").code == 2
    assert content(here, 0) == content(tree, 0)
    assert {path.name for path in here.iterdir()} == {"ckpt_dir0"}


def test_the_newest_step_can_be_required_over_several_nodes(tree, tmp_path, recover_ckpt):
    here, there = split(tree, tmp_path, here=(0, 1), there=(2, 3, 4, 5))
    for node, ranks in ((here, (1,)), (there, (3, 5))):
        for rank in ranks:
            (node / f"ckpt_dir{rank}" / NAME).unlink()
    shutil.rmtree(here / "ckpt_dir0")
    with serving(there) as [server]:
        for command in ("plan", "apply"):
            done = recover_ckpt(command, here, "--from", server.address, "--require-newest")
            assert done.code == 4, done.err
            assert "REFUSED by --require-newest: nothing is done; going back from step 1_8" in done.out
            assert not (here / "ckpt_dir0").exists()
        assert recover_ckpt("apply", here, "--from", server.address).code == 0
    assert content(here, 0, "test-1_4.ckpt") == content(tree, 0, "test-1_4.ckpt")


def test_a_backup_gives_ranks_their_own_slices(tree, tmp_path, recover_ckpt):
    here = tmp_path / "here"
    here.mkdir()
    with serving(tree) as [server]:
        nothing = recover_ckpt("apply", here, "--from", server.address)
        assert (nothing.code, "--ranks" in nothing.err) == (2, True)
        assert not list(here.iterdir())  # they all live there
        assert recover_ckpt("apply", here, "--from", server.address, "--ranks", "3").code == 0
    assert content(here, 3) == content(tree, 3)


def cut_tree(folder):
    """Four ranks; every part of a slice is on two of them, and no other rank holds all of it."""
    matrix, source = (2, 2), np.random.default_rng(7)
    rows = CutTensor("Float32", source.random((8, 6), np.float32), cut_layout("rows", matrix, (1,), ()))
    columns = CutTensor("Float32", source.random((8, 12), np.float32), cut_layout("columns", matrix, (), (0,)))
    step = CutTensor("Int64", np.int64(8))
    return make_cut_tree(folder, {"rows": rows, "columns": columns, "global_step": step}, 4, manifests=True)


def test_a_slice_is_put_together_from_two_servers(tmp_path, recover_ckpt):
    whole = cut_tree(tmp_path / "whole")
    here, first, second = split(whole, tmp_path, here=(0,), first=(1,), second=(2,))
    with serving(first, second) as [one, two]:
        (here / "ckpt_dir0" / NAME).unlink()
        saved = content(here, 0, f"{NAME}.manifest.json")
        away = ["--from", one.address, "--from", two.address, "--world-size", "4"]
        planned = recover_ckpt("plan", here, *away, "--json").json
        assert [(action["kind"], action["rank"]) for action in planned["actions"]] == [("compose", 0), ("compose", 3)]
        done = recover_ckpt("apply", here, *away)
        assert done.code == 0, done.out + done.err
    assert [content(here, rank) for rank in (0, 3)] == [content(whole, rank) for rank in (0, 3)]
    assert content(here, 0, f"{NAME}.manifest.json") == saved  # which the bytes have again
    sources = json.loads(content(here, 3, f"{NAME}.manifest.json"))["provenance"]["sources"]
    assert "ms_recover" not in str(sources)
    assert {"rank": 1, "path": f"ckpt_dir1/{NAME}", "host": str(one.address)} in sources
    assert {"rank": 2, "path": f"ckpt_dir2/{NAME}", "host": str(two.address)} in sources
    assert not leftovers(here)
    assert not [path for path in here.iterdir() if not path.name.startswith("ckpt_dir")]


def test_a_server_killed_in_the_middle_is_replaced_by_another_replica(large, tmp_path, recover_ckpt):
    here, first, second = split(large, tmp_path, here=(), first=(1,), second=(2,))
    with (
        serving(first, second) as [one, two],
        FaultProxy(one.port, 20 * MIB, one.kill) as relay,
    ):
        # Rank 1 is the first choice, and it is behind the relay.
        away = ["--from", relay.address, "--from", two.address, "--timeout", "1"]
        done = recover_ckpt("apply", here, *away, "--json")
    assert relay.count >= 20 * MIB
    assert done.code == 5, done.err  # a source failed; the next run is clean
    [result] = done.json["results"]
    assert result["status"] == "copied"
    assert "cannot be reached" in result["dropped"][0]
    assert content(here, 0) == content(large, 0)
    assert not leftovers(here)


def test_a_frozen_server_is_given_up(large, tmp_path, recover_ckpt):
    here, there = split(large, tmp_path, here=(), there=(1, 2))
    with serving(there) as [server]:
        with FaultProxy(server.port, 20 * MIB, lambda: server.process.send_signal(signal.SIGSTOP)) as relay:
            done = recover_ckpt("apply", here, "--from", relay.address, "--timeout", "1")
            server.process.send_signal(signal.SIGCONT)
        assert done.code == 5
        assert "cannot be reached" in done.out
        assert not leftovers(here)
        assert recover_ckpt("apply", here, "--from", server.address).code == 0
    assert content(here, 0) == content(large, 0)


def test_a_server_that_comes_back_is_asked_for_the_rest(large, tmp_path, recover_ckpt):
    here, there = split(large, tmp_path, here=(), there=(1, 2))
    again = []
    with serving(there) as [server]:

        def restart():
            server.kill()
            again.append(Served(there, port=server.port))

        with FaultProxy(server.port, 30 * MIB, restart) as relay:
            done = recover_ckpt("apply", here, "--from", relay.address, "--timeout", "30")
        [second] = again
        assert second.end()[0] == 0
        second.process.stdout.close()
        second.process.stderr.close()
    assert done.code == 0, done.err
    assert "resuming at byte" in done.err
    assert content(here, 0) == content(large, 0)
    assert relay.count < (48 + 20) * MIB  # twice goes what was on its way when it was killed, not the whole slice
    assert not leftovers(here)


def test_a_killed_client_leaves_nothing_under_a_final_name(large, tmp_path, recover_ckpt):
    here, there = split(large, tmp_path, here=(), there=(1, 2))
    with serving(there) as [server]:
        clients = []
        with FaultProxy(server.port, 20 * MIB, lambda: clients[0].send_signal(signal.SIGKILL)) as relay:
            clients.append(start("apply", here, "--from", relay.address))
            clients[0].communicate(timeout=60)
        assert clients[0].returncode == -signal.SIGKILL
        assert not (here / "ckpt_dir0" / NAME).exists()
        assert recover_ckpt("apply", here, "--from", server.address).code == 0
    assert content(here, 0) == content(large, 0)
    assert not leftovers(here)


def test_an_interrupted_client_leaves_nothing(large, tmp_path):
    here, there = split(large, tmp_path, here=(), there=(1, 2))
    with serving(there) as [server]:
        clients = []
        with FaultProxy(server.port, 20 * MIB, lambda: clients[0].send_signal(signal.SIGINT)) as relay:
            clients.append(start("apply", here, "--from", relay.address))
            _, err = clients[0].communicate(timeout=60)
        assert clients[0].returncode == 130, err
        assert "Traceback" not in err
        assert "never retrieved" not in err
        assert not leftovers(here)
        assert not (here / "ckpt_dir0" / NAME).exists()


def test_a_server_ends_when_told_also_with_a_client(large, tmp_path):
    here, there = split(large, tmp_path, here=(), there=(1, 2))
    server = Served(there)
    with FaultProxy(server.port, 20 * MIB, lambda: server.process.send_signal(signal.SIGINT)) as relay:
        client = start("apply", here, "--from", relay.address, "--timeout", "1")
        _, err = client.communicate(timeout=60)
        code, said = server.end(signal.SIGINT)
    assert code == 0, said
    assert client.returncode in (1, 5), err
    assert "recover-ckpt serve" in err or "taken up" in err
    assert not leftovers(here)


def test_a_server_leaks_nothing_and_serves_several_at_a_time(tree, tmp_path, recover_ckpt):
    [there] = split(tree, tmp_path, there=(2, 3, 4, 5))
    with serving(there) as [server]:
        roots = [tmp_path / f"here{number}" for number in range(4)]
        for root in roots:
            root.mkdir()
        pid = server.process.pid
        assert recover_ckpt("plan", roots[0], "--from", server.address).code == 0
        eventually(lambda: not children(pid))
        before = max(descriptors(pid) for _ in range(20) if time.sleep(0.02) is None)
        clients = [start("apply", root, "--from", server.address) for root in roots]
        for client in clients:
            assert client.communicate(timeout=60)
            assert client.returncode == 0
        eventually(lambda: descriptors(pid) <= before and not children(pid))
    for root in roots:
        assert content(root, 0) == content(tree, 0)


def descriptors(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


def children(pid):
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def test_an_idle_server_ends(tree):
    server = Served(tree, "--idle", "0.5")
    out, _ = server.process.communicate(timeout=60)
    assert server.process.returncode == 0, out
