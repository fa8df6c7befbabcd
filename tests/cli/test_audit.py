"""``recover-ckpt audit``: what it says, its codes, and what it refuses."""

import json
import shutil
from pathlib import Path

import jsonschema
import pytest

from ms_recover.execution.rank_lists import write_group_info
from ms_recover.model.steps import Step
from ms_recover.testing.trees import make_tree, save_manifests
from tests.support.command_line import in_this_process

SCHEMAS = Path(__file__).parents[2] / "docs" / "schemas"


def run(*words, code=0):
    done = in_this_process("audit", *map(str, words))
    assert done.code == code, done.out + done.err
    return done


def as_json(*words, code=0):
    made = json.loads(run(*words, "--json", code=code).out)
    jsonschema.validate(made, json.loads((SCHEMAS / "audit.schema.json").read_text()))
    return made


@pytest.fixture
def root(tmp_path):
    """Make 8 ranks, of which r and r + 4 hold the same."""
    return make_tree(tmp_path / "tree", data_parallel=2, model_parallel=4)


def hosts(path, *lines):
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def test_replicas_on_two_hosts_survive_either(root):
    done = run(root, "--ranks-per-host", 4)
    assert "survives any 1 host; smallest fatal loss: 2 hosts (1 such pair of 1)" in done.out
    assert "OK: it survives the loss of any host" in done.out


def test_the_classic_trap_is_fatal_and_the_proposed_placement_survives_as_a_tree(tmp_path):
    """8 cards a host, and replicas r and r + 4 on one."""
    saved = tmp_path / "trap"
    for stage in range(2):
        make_tree(tmp_path / f"stage{stage}", data_parallel=2, model_parallel=4, steps=[Step(1, 8 + 0)])
        for rank in range(8):
            shutil.copytree(tmp_path / f"stage{stage}/ckpt_dir{rank}", saved / f"ckpt_dir{8 * stage + rank}")
            group = [8 * stage + rank % 4, 8 * stage + rank % 4 + 4]
            write_group_info(saved / f"ckpt_dir{8 * stage + rank}/group_info.pb", group)
    file = hosts(tmp_path / "hosts", "one slots=8", "two slots=8")
    wanted = tmp_path / "placement"
    done = run(saved, "--hostfile", file, "--write-placement", wanted, code=6)
    assert "survives no host; smallest fatal loss: 1 host (2 of 2)" in done.out
    assert "PLACEMENT" in done.out
    assert str(wanted) in done.err
    assert "survives any 1 host" in run(saved, "--hostfile", wanted).out
    shutil.rmtree(tmp_path / "stage0")
    text = wanted.read_text()
    made = as_json(saved, "--hostfile", wanted)
    lost = set(made["levels"][0]["singles"][0]["ranks"])
    for rank in lost:
        shutil.rmtree(saved / f"ckpt_dir{rank}")
    assert in_this_process("plan", str(saved), "--world-size", "16").code == 0, text


def test_hosts_in_manifests_need_no_option(root):
    save_manifests(root, hosts=[f"node{rank // 4}" for rank in range(8)])
    made = as_json(root)
    assert made["topology"]["source"] == "the hosts in manifests"
    assert made["levels"][0]["survived"] == 1
    assert made["gate"] == {"survive": "1 host", "passed": True}


def test_a_rank_whose_manifest_names_no_host_is_named(root):
    save_manifests(root, hosts=[f"node{rank // 4}" for rank in range(8)])
    shutil.rmtree(root / "ckpt_dir5")
    made = as_json(root, code=6)
    texts = {one["kind"]: one["text"] for one in made["findings"]}
    assert texts["topology"].endswith(": manifests do not name that of rank 5")


@pytest.mark.parametrize(
    ("gate", "code"), [("host", 0), ("1host", 0), ("2hosts", 6), ("2 hosts", 6), ("rack", 0), ("2racks", 6)]
)
def test_the_gate(root, tmp_path, gate, code):
    topology = tmp_path / "topology.json"
    placed = {f"h{host}": {"ranks": [2 * host, 2 * host + 1], "rack": f"r{host // 2}"} for host in range(4)}
    topology.write_text(json.dumps({"hosts": placed}))
    run(root, "--topology", topology, "--survive", gate, code=code)


@pytest.mark.parametrize("gate", ["", "0hosts", "3", "power supply", "-1host"])
def test_a_gate_that_means_nothing_is_refused(root, gate):
    run(root, "--ranks-per-host", 4, "--survive", gate, code=2)


def test_without_hosts_a_gate_cannot_be_judged_unless_one_rank_settles_it(root):
    done = run(root, code=3)
    assert "nothing says which ranks share a host" in done.err
    assert "survives any 1 rank" in done.out
    run(root, "--survive", "rank")
    shutil.rmtree(root / "ckpt_dir4")
    assert "NOT SURVIVED" in run(root, code=6).out


def test_a_tree_that_cannot_be_recovered_now_ends_as_its_plan_does(root):
    for rank in (0, 4):
        shutil.rmtree(root / f"ckpt_dir{rank}")
    done = run(root, "--ranks-per-host", 4, code=4)
    assert "not recoverable as it is" in done.out
    assert as_json(root, "--ranks-per-host", 4, code=4)["step"] is None


def test_damaged_slices_are_no_holders(root):
    path = root / "ckpt_dir4/test-1_8.ckpt"
    path.chmod(0o600)
    path.write_bytes(path.read_bytes()[:-9])
    made = as_json(root, "--ranks-per-host", 4, code=6)
    (fatal,) = [one for one in made["levels"][0]["singles"] if one["fatal"]]
    assert fatal["domains"] == ["host0"]
    assert any(one["kind"] == "slices" for one in made["findings"])


def test_the_step_that_a_loss_goes_back_to_is_named(tmp_path):
    root = make_tree(tmp_path / "tree", data_parallel=2, model_parallel=4, steps=[Step(1, 8), Step(2, 8)])
    (root / "ckpt_dir4/test-2_8.ckpt").unlink()
    made = as_json(root, "--ranks-per-host", 4)
    steps = {one["domains"][0]: one["step"]["epoch"] for one in made["levels"][0]["singles"]}
    assert steps == {"host0": 1, "host1": 2}
    assert made["levels"][0]["losses"][0]["newest"] == 1


def test_an_older_step_counts_where_a_slice_of_the_newest_is_not_committed(tmp_path):
    """Rank 0's newest slice has no manifest; with rank 4 on the same host, only the older step is left."""
    root = make_tree(tmp_path / "tree", data_parallel=2, model_parallel=4, steps=[Step(1, 8), Step(2, 8)])
    save_manifests(root)
    (root / "ckpt_dir0/test-2_8.ckpt.manifest.json").unlink()
    made = as_json(root, "--ranks-per-host", 1)
    steps = {one["domains"][0]: one["step"] and one["step"]["epoch"] for one in made["levels"][0]["singles"]}
    assert (steps["host0"], steps["host4"]) == (2, 1)


def test_a_topology_of_another_number_of_ranks_is_an_error(root, tmp_path):
    run(root, "--hostfile", hosts(tmp_path / "hosts", "a slots=8", "b slots=8"), code=3)


def test_bytes_sources_and_time(root):
    made = as_json(root, "--ranks-per-host", 4, "--bandwidth", "8kbit")
    one = made["levels"][0]["singles"][0]
    size = sum((root / f"ckpt_dir{rank}/test-1_8.ckpt").stat().st_size for rank in range(4))
    assert one["bytes"] == size
    assert one["sources"] == [{"host": "host1", "bytes": size}]
    assert one["seconds"] == pytest.approx(size / 1000)
    for wrong in ("fast", "0Gbit", "10"):
        run(root, "--ranks-per-host", 4, "--bandwidth", wrong, code=2)


def test_before_the_first_checkpoint_by_axes():
    words = ("--axes", "dp=64,tp=8,pp=4", "--ranks-per-host", 8)
    made = as_json(*words, "--optimizer-shards", 8)
    assert made["before_first_checkpoint"]
    assert made["world_size"] == 2048
    assert made["levels"][0]["survived"] == 7
    done = run(*words, "--optimizer-shards", "all", code=6)
    assert "optimizer_weight_shard_size=32" in done.out
    assert as_json("--axes", "dp=2,tp=4", "--ranks-per-host", 8, code=6)["levels"][0]["survived"] == 0


def test_before_the_first_checkpoint_by_files(fixtures, tmp_path):
    source = fixtures / "dp4_mp2_opt2"
    for words in (
        ("--strategy", source),
        ("--group-info", source),
        ("--strategy", f"{source}/ckpt_dir{{rank}}/strategy.ckpt"),
        ("--group-info", f"{source}/ckpt_dir{{rank}}/group_info.pb"),
    ):
        made = as_json(*words, "--ranks-per-host", 4)
        assert made["before_first_checkpoint"]
        assert (made["world_size"], made["levels"][0]["survived"]) == (8, 1)
    empty = tmp_path / "empty"
    empty.mkdir()
    run("--strategy", empty, code=3)
    run("--group-info", empty, code=3)
    run("--strategy", tmp_path / "none", code=3)
    run(code=2)


def test_before_the_first_checkpoint_every_pipeline_stage_counts(fixtures):
    made = as_json("--strategy", fixtures / "dp2_mp2_pp2", "--ranks-per-host", 4, code=6)
    assert (made["world_size"], made["levels"][0]["survived"]) == (8, 0)


def test_a_tree_without_slices_is_audited_by_what_says_who_will_hold_the_same(fixtures, tmp_path):
    root = tmp_path / "tree"
    shutil.copytree(fixtures / "dp4_mp2_opt2", root, ignore=shutil.ignore_patterns("*-1_77.ckpt", "truth"))
    made = as_json(root, "--ranks-per-host", 4)
    assert made["before_first_checkpoint"]
    assert made["levels"][0]["survived"] == 1


def test_an_optimizer_sharded_over_all_replicas_is_a_finding(fixtures):
    made = as_json(fixtures / "dp4_mp2_optfull", "--ranks-per-host", 2, code=6)
    (finding,) = [one for one in made["findings"] if one["kind"] == "optimizer"]
    assert "optimizer_weight_shard_size=2" in finding["mend"]
    assert made["single_copy_bytes"] > 0


def test_missing_rank_lists_are_a_finding(root):
    for path in root.rglob("group_info.pb"):
        path.unlink()
    made = as_json(root, "--ranks-per-host", 4, code=6)
    assert any("GROUP_INFO_FILE" in one["mend"] for one in made["findings"])


def test_losses_of_three_are_listed_where_they_are_asked_for(root):
    made = as_json(root, "--ranks-per-host", 1, "--losses", 3)
    assert len(made["pairs"]) == 28
    assert len(made["chosen"]) == 56
    assert [one["fatal"] for one in made["levels"][0]["losses"]] == [0, 4, 24]
    assert sum(one["fatal"] for one in made["chosen"]) == 24


def test_a_majority_that_a_loss_makes_a_tie_is_fatal(tmp_path):
    """Of three slices that should be the same one was flipped: no manifest says which, only the two others do."""
    root = make_tree(tmp_path / "tree", data_parallel=3, model_parallel=2)
    path = root / "ckpt_dir0/test-1_8.ckpt"
    path.chmod(0o600)
    path.write_bytes(path.read_bytes()[:100] + b"!" + path.read_bytes()[101:])
    made = as_json(root, "--ranks-per-host", 1, code=6)
    fatal = [one["domains"] for one in made["levels"][0]["singles"] if one["fatal"]]
    assert fatal == [["host2"], ["host4"]]
    for rank in (2, 4):
        copy = tmp_path / f"copy{rank}"
        shutil.copytree(root, copy)
        shutil.rmtree(copy / f"ckpt_dir{rank}")
        assert in_this_process("plan", str(copy), "--world-size", "6").code == 5


def test_a_placement_that_cannot_be_written_is_said(root, tmp_path):
    done = run(root, "--ranks-per-host", 8, "--write-placement", tmp_path / "hosts", code=6)
    assert "no placement was written" in done.err
    assert not (tmp_path / "hosts").exists()


def test_an_engine_reads_a_tree_and_nothing_else(root):
    assert "--engine goes with ROOT" in run("--axes", "dp=2,tp=4", "--engine", "dask://localhost:8786", code=2).err
    assert "--home goes with --engine" in run(root, "--home", "0-3=node1", code=2).err
    assert "add --engine dask://HOST:PORT" in run("node://*/data/ckpt", code=2).err


def kinds(made):
    return [one["kind"] for one in made["findings"]]


def test_without_replicas_no_setting_of_shards_is_proposed(tmp_path):
    made = as_json("--axes", "dp=1,tp=4", "--ranks-per-host", 2, code=6)
    assert kinds(made) == ["redundancy"]
    assert made["findings"][0]["mend"].startswith("data parallel of 2 or more")
    alone = as_json(make_tree(tmp_path / "alone", data_parallel=1, model_parallel=4), "--ranks-per-host", 2, code=6)
    assert kinds(alone) == ["redundancy"]
    assert alone["findings"][0]["text"] == "by the rank lists every rank alone has its slice"


def test_slices_that_are_missing_now_are_the_finding_and_mending_them_leaves_none(root):
    shutil.rmtree(root / "ckpt_dir3")
    assert kinds(as_json(root, "--ranks-per-host", 4, "--world-size", 8, code=6)) == ["slices"]
    assert in_this_process("apply", str(root), "--world-size", "8").code == 0
    assert kinds(as_json(root, "--ranks-per-host", 4)) == []


def test_missing_rank_lists_are_the_only_finding_and_rank_lists_mend_it(root):
    lists = {path: path.read_bytes() for path in root.glob("*/group_info.pb")}
    for path in lists:
        path.unlink()
    assert kinds(as_json(root, "--ranks-per-host", 4, code=6)) == ["evidence"]
    for path, data in lists.items():
        path.write_bytes(data)
    assert kinds(as_json(root, "--ranks-per-host", 4)) == []


@pytest.mark.parametrize("shards", ["all", "3"])
def test_the_number_of_optimizer_shards_that_a_finding_names_mends_it(shards):
    words = ("--axes", "dp=8,tp=2", "--ranks-per-host", 4, "--optimizer-shards")
    (finding,) = as_json(*words, shards, code=6)["findings"]
    setting, _, number = finding["mend"].partition(":")[0].partition("=")
    assert (setting, kinds(as_json(*words, number))) == ("optimizer_weight_shard_size", [])


def test_a_strategy_file_is_lost_with_the_directory_of_a_rank_that_has_no_slice(fixtures, tmp_path):
    root = tmp_path / "tree"
    shutil.copytree(fixtures / "dp4_mp2_opt2", root, ignore=shutil.ignore_patterns("group_info.pb", "truth"))
    for rank in range(1, 8):
        (root / f"ckpt_dir{rank}/strategy.ckpt").unlink()
    next((root / "ckpt_dir0").glob("*-1_77.ckpt")).unlink()
    made = as_json(root, "--ranks-per-host", 1, "--world-size", 8, code=6)
    fatal = {rank for one in made["levels"][0]["singles"] if one["step"] is None for rank in one["ranks"]}
    assert fatal == {0, 4}  # the strategy file, and the other copy of the shard that rank 0 had
    shutil.rmtree(root / "ckpt_dir0")
    assert in_this_process("plan", str(root), "--world-size", "8").code == 4
