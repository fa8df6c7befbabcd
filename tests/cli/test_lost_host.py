"""One host of 32 dies with its folders: the others keep their names in pictures, and the gate of an audit is strict."""

import json
import shutil

import pytest

from ms_recover.errors import MissingInputError
from ms_recover.model.steps import Step
from ms_recover.testing.trees import make_tree, save_manifests

HOSTS, PER_HOST, DEAD = 32, 2, 5
RANKS = HOSTS * PER_HOST
GONE = range(DEAD * PER_HOST, (DEAD + 1) * PER_HOST)
UNKNOWN = f"{PER_HOST} ranks on hosts unknown"


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = make_tree(tmp_path_factory.mktemp("lost") / "tree", data_parallel=16, model_parallel=4, steps=(Step(1, 8),))
    save_manifests(root, hosts=[f"node{rank // PER_HOST:02d}" for rank in range(RANKS)])
    for rank in GONE:
        shutil.rmtree(root / f"ckpt_dir{rank}")
    return root


def test_the_picture_of_a_plan_shows_the_hosts_that_are_left(root, recover_ckpt):
    done = recover_ckpt("plan", root)
    assert f"Ranks at step 1_8, by host (the hosts in manifests; {UNKNOWN}):" in done.out
    assert "node04 │■■│" in done.out
    assert "unknown │◆◆│" in done.out
    assert all(f"node{host:02d}" in done.out for host in range(HOSTS) if host != DEAD)


def test_a_scan_shows_them_too(root, recover_ckpt):
    assert "node31 │■■│" in recover_ckpt("scan", root).out


def test_the_page_counts_the_hosts_and_its_column_is_not_empty(root, tmp_path, recover_ckpt):
    page = tmp_path / "report.html"
    assert recover_ckpt("report", root, "-o", page).code == 0
    text = page.read_text()
    assert f"31 hosts, by the hosts in manifests; {UNKNOWN}" in text
    assert "Hosts are not known" not in text
    assert '<td class="name">unknown</td>' in text
    assert '<td class="name"></td>' not in text
    assert f"on hosts unknown ({PER_HOST})" in text
    assert f"nothing names the hosts of ranks {GONE[0]}-{GONE[-1]}" in text
    [level] = json.loads(text.partition('id="data">')[2].partition("</script>")[0])["levels"]
    assert len(level["names"]) == HOSTS - 1
    assert [rank for rank, host in enumerate(level["of"]) if host < 0] == list(GONE)


def test_the_gate_of_an_audit_does_not_guess_where_the_others_lived(root, recover_ckpt):
    done = recover_ckpt("audit", root, "--survive", "host")
    assert done.code == MissingInputError.exit_code
    assert "nothing says which ranks share a host" in done.err
    assert recover_ckpt("audit", root, "--ranks-per-host", PER_HOST, "--survive", "host").code == 0


def test_racks_of_a_topology_file_go_with_the_hosts_that_are_known(root, tmp_path, recover_ckpt):
    hosts = {f"node{host:02d}": {"rack": f"rack{host % 4}"} for host in range(HOSTS) if host != DEAD}
    topology = tmp_path / "topology.json"
    topology.write_text(json.dumps({"hosts": hosts}))
    done = recover_ckpt("plan", root, "--topology", topology)
    assert (done.code, done.err) == (0, "")
    assert UNKNOWN in done.out
